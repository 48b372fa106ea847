"""Which cases are timed: the grid against composition and commit 1, and single sizes against every other route."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.cpu.routes import GIVEN, KINDS, MASKS

DTYPES = ("float32", "float64", "bfloat16", "float16")
PARTS = ("grid", "routes")
# With next to nothing to compute, what is left is the cost of a call.
OVERHEAD_N = 2
# D = E by N; 512 columns of q and of v are the widest for which a rule takes the kernels, so 1024 says little more.
SQUARE = {
    1: (1, 64, 1024),
    16: (1, 16, 64, 256, 1024),
    64: (1, 64, 256),
    256: (1, 16, 64, 128, 256, 512),
    1024: (1, 16, 64, 128, 256, 512),
    2048: (16, 64, 128, 256),
    4096: (1, 64, 256),
    8192: (64,),
}
# N, D and E: few rows that are long, one column, one side wider, and sizes that no vector divides.
OTHER = (
    *((1, 10**6, 1), (1, 1, 10**6), (16, 10**5, 16), (16, 16, 10**5), (4, 8192, 64), (256, 1024, 16), (256, 16, 1024)),
    *((1024, 1, 64), (1024, 64, 1), (2048, 16, 128), (2048, 128, 16), (37, 5, 9), (1000, 65, 33)),
    *((1000, 50, 50), (2000, 64, 64)),
)
ONE_GRADIENT = ((16, 16, 16), (256, 1, 1), (1024, 1, 1), (1024, 64, 1), (1024, 64, 64), (1, 10**6, 1))
GRADIENT_OF_ATTN = ((64, 16, 16), (256, 64, 64), (1000, 50, 50), (1024, 64, 64), (4096, 64, 64))
ONE_THREAD = (
    *((16, 64, 64), (256, 1, 1), (256, 64, 64), (1024, 1, 1), (1024, 64, 64), (1024, 256, 256), (2048, 64, 64)),
    *((4096, 64, 64), (4, 8192, 64), (16, 10**5, 16)),
)
# ATen's products in float16 are so slow that larger cases would take most of the time and say nothing new.
LARGEST_FLOAT16 = 2**28


@dataclass(frozen=True)
class Case:
    """One kind of work at one size and dtype; `part` tells the grid from the other routes."""

    part: str
    kind: str
    dtype: str
    n: int
    d: int = 64
    e: int = 64
    threads: int = 0
    """0 stands for as many as the record says."""

    @property
    def bytes(self) -> int:
        """Of one N x N tensor."""
        return self.n**2 * torch_dtype(self.dtype).itemsize

    @property
    def has_huge_pages(self) -> bool:
        """Whether a tensor is so large that PyTorch's switch for huge pages changes anything."""
        return self.n * max(self.n, self.d, self.e) * torch_dtype(self.dtype).itemsize >= 2 << 20

    def takes(self, route: str) -> bool:
        """Not every route is timed everywhere: one compilation takes longer than all other measurements of a case."""
        if route in ("composition", "torch.attn"):
            return True
        if self.part == "grid" or self.d != self.e:
            return False
        return route != "torch.compile" or (self.kind in KINDS[:3] and (self.n == OVERHEAD_N or self.n >= 1024))

    def __str__(self) -> str:
        size = f"N={self.n} D={self.d}" + f" E={self.e}" * (self.e != self.d)
        return f"{self.kind} {self.dtype} {size}" + f" {self.threads} thread" * bool(self.threads)


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def grid() -> Iterator[Case]:
    square = [(n, d, d) for n, widths in SQUARE.items() for d in widths]
    for kinds, points, threads in (
        (KINDS[:2], [*square, *OTHER], 0),
        (MASKS, ONE_GRADIENT, 0),
        (GIVEN, GRADIENT_OF_ATTN, 0),
        (KINDS[:2], ONE_THREAD, 1),
        (MASKS, [(1024, 1, 1), (1024, 64, 64)], 1),
    ):
        for dtype, (n, d, e), kind in itertools.product(DTYPES, points, kinds):
            if dtype != "float16" or n * n * (d + e) <= LARGEST_FLOAT16:
                yield Case("grid", kind, dtype, n, d, e, threads)


def other_routes() -> Iterator[Case]:
    """float32 at D = E = 64, and some of bfloat16, by every route."""
    for n in (OVERHEAD_N, 16, 256, 1024, 2048, 4096, 8192):
        for kind in KINDS[:2] if n == 8192 else KINDS:
            yield Case("routes", kind, "float32", n)
    for n, kind in itertools.product((256, 1024, 4096), KINDS[:2]):
        yield Case("routes", kind, "bfloat16", n)


def is_quick(case: Case) -> bool:
    """The cases of `--quick`: a few sizes at D = E = 64, the unusual ones in float32, and the cost of a call."""
    if case.part == "routes":
        return case.n == OVERHEAD_N and case.kind in KINDS[:2] or case.n == 1024 and case.kind in KINDS[:3]
    if case.threads or case.dtype != "float32":
        return case.kind in KINDS[:2] and case.d == 64 == case.e and case.n == 256 and not case.threads
    return case.n in (16, 256, 1024, 4096) if (case.d, case.e) == (64, 64) else case.n in (1, 4)
