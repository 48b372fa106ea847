"""`python -m fork` starts here."""

import sys

from fork.cli import main

sys.exit(main())
