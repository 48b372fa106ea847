"""All fixes of the table."""

from __future__ import annotations

from bench.fixes.bindings import BINDINGS
from bench.fixes.kernels import KERNELS
from bench.fixes.libraries import LIBRARIES
from bench.fixes.operators import OPERATORS
from bench.fixes.script import SCRIPT

FIXES = (*KERNELS, *OPERATORS, *LIBRARIES, *BINDINGS, *SCRIPT)
