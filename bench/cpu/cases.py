"""Which cases are timed: the grid against composition, and single sizes against every other route."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.cpu.routes import KINDS

SIZES = (2, 16, 64, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = (16, 64, 128, 256, 512, 1024)
DTYPES = ("float32", "float64", "bfloat16", "float16")
PARTS = ("grid", "routes")
# With next to nothing to compute, what is left is the cost of a call.
OVERHEAD_N = 2


@dataclass(frozen=True)
class Case:
    """One kind of work at one size and dtype; `part` tells the grid from the other routes."""

    part: str
    kind: str
    dtype: str
    n: int
    d: int = 64
    e: int = 64

    @property
    def bytes(self) -> int:
        """Of one N x N tensor."""
        return self.n**2 * torch_dtype(self.dtype).itemsize

    def takes(self, route: str) -> bool:
        """Not every route is timed everywhere: one compilation takes longer than all other measurements of a case."""
        if route in ("composition", "torch.attn"):
            return True
        if self.part == "grid" or self.d != self.e:
            return False
        return route != "torch.compile" or (self.kind in KINDS[:3] and (self.n == OVERHEAD_N or self.n >= 1024))


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def grid() -> Iterator[Case]:
    for dtype, n, d, kind in itertools.product(DTYPES, SIZES, WIDTHS, KINDS[:2]):
        yield Case("grid", kind, dtype, n, d, d)


def other_routes() -> Iterator[Case]:
    """float32: every route at D = E = 64, and composition at D != E."""
    for n in (OVERHEAD_N, 16, 256, 1024, 2048, 4096, 8192):
        for kind in KINDS[:2] if n == 8192 else KINDS:
            yield Case("routes", kind, "float32", n)
    for (d, e), kind in itertools.product(itertools.permutations((16, 64, 128), 2), KINDS[:2]):
        yield Case("routes", kind, "float32", 2048, d, e)


def is_quick(case: Case) -> bool:
    """The cases of `--quick`: a few sizes at D = E = 64, one wider, and the cost of a call."""
    if case.part == "routes":
        return (case.d, case.e) == (64, 64) and (case.n == 1024 or (case.n == OVERHEAD_N and case.kind in KINDS[:2]))
    if case.d == 64:
        return case.n in ((2, 16, 256, 1024, 2048, 4096) if case.dtype == "float32" else (16, 256, 2048))
    return case.dtype in ("float32", "bfloat16") and (case.n, case.d) == (1024, 256)
