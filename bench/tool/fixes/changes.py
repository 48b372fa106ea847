"""All fixes of the table."""

from __future__ import annotations

from bench.tool.fixes.bindings import BINDINGS
from bench.tool.fixes.kernels import KERNELS
from bench.tool.fixes.libraries import LIBRARIES
from bench.tool.fixes.operators import OPERATORS
from bench.tool.fixes.script import SCRIPT

FIXES = (*KERNELS, *OPERATORS, *LIBRARIES, *BINDINGS, *SCRIPT)
