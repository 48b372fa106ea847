"""Which cases are timed: contiguous matrices in a grid and in batches, heads as models hold them, every other route."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.attn.cpu.kinds import BATCHED, CAST, GIVEN, KINDS, MASKS, SHARED

DTYPES = ("float32", "float64", "bfloat16", "float16")
PARTS = ("grid", "heads", "batches", "routes")
# With next to nothing to compute, what is left is the cost of a call.
OVERHEAD_N = 2
# D = E by N of one matrix.
SQUARE = {
    16: (16, 64),
    64: (16, 64, 256),
    256: (16, 64, 128, 256),
    512: (128,),
    1000: (50, 64),
    1024: (1, 16, 64, 128, 256, 512),
    2048: (64, 128),
    4096: (64, 256),
    8192: (64,),
}
# N, D and E: one column, one side wider, and sizes that no vector divides.
OTHER = ((256, 1024, 16), (1024, 1, 64), (1024, 64, 1), (2048, 16, 128), (37, 5, 9), (1000, 65, 33))
ONE_GRADIENT = ((16, 16, 16), (256, 64, 64), (1024, 64, 64))
GRADIENT_OF_ATTN = ((256, 64, 64), (1024, 64, 64), (4096, 64, 64))
ONE_THREAD = ((16, 64, 64), (256, 64, 64), (1024, 64, 64), (1024, 256, 256), (4096, 64, 64))
# Matrices, M and N as models have them: heads over a batch, windows and patches of images, few queries of many keys.
BATCHES = (
    (2048, 16, 16),
    (512, 49, 49),
    (128, 100, 100),
    (96, 128, 128),
    (64, 197, 197),
    (32, 256, 256),
    (8, 512, 512),
    (4, 1024, 1024),
    (2, 4096, 4096),
    (32, 1, 4096),
    (32, 16, 4096),
)
WIDTHS = (32, 64, 128)
# B, M, N, heads of q, heads of k and v, D, of operands that are (B, N, H, D).transpose(1, 2): layers, then few queries
# of a cache, then queries in groups, then a long context.
HEADS = (
    (64, 16, 16, 8, 8, 32),
    (1, 77, 77, 12, 12, 64),
    (8, 197, 197, 12, 12, 64),
    (2, 512, 512, 8, 8, 64),
    (2, 512, 512, 4, 4, 128),
    (1, 1024, 1024, 16, 16, 64),
    (1, 2048, 2048, 4, 4, 64),
    (4, 1, 1024, 8, 8, 64),
    (4, 4, 1024, 8, 8, 64),
    (4, 16, 1024, 8, 8, 64),
    (4, 32, 1024, 8, 8, 64),
    (4, 1, 1024, 32, 8, 64),
    (2, 256, 256, 32, 8, 64),
    (1, 16, 1 << 18, 1, 1, 64),
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
    m: int = 0
    """Rows of q; 0 stands for N."""
    batch: int = 0
    """Matrices, or of heads the first dimension; 0 stands for one matrix without a leading dimension."""
    heads: int = 0
    """Of q in operands that are (B, N, H, D).transpose(1, 2); 0 stands for contiguous operands."""
    shared: int = 0
    """Heads of k and v, which are expanded to those of q; 0 stands for as many as q has."""

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimensions of attn."""
        return tuple(size for size in (self.batch, self.heads) if size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of attn."""
        return (*self.lead, self.m or self.n, self.n)

    @property
    def layout(self) -> str:
        return f"heads, {self.shared} of k and v" if self.shared else "heads" if self.heads else ""

    @property
    def bytes(self) -> int:
        """Of attn."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    @property
    def has_huge_pages(self) -> bool:
        """Whether a tensor is so large that PyTorch's switch for huge pages changes anything."""
        return self.bytes // self.n * max(self.n, self.d, self.e) >= 2 << 20

    def takes(self, route: str) -> bool:
        """Not every route is timed everywhere: one compilation takes longer than all other measurements of a case."""
        if route in ("composition", "torch.attn"):
            return True
        if self.part == "heads":
            return route == "SDPA" or (route == CAST and self.dtype not in DTYPES[:2])
        if self.part == "grid" or (self.part == "batches") != (route in BATCHED):
            return False
        return route != "torch.compile" or (self.kind in KINDS[:3] and (self.n == OVERHEAD_N or self.n >= 1024))

    def __str__(self) -> str:
        size = (
            f"B={self.batch} " * (self.batch > 0)
            + f"H={self.heads} " * (self.heads > 0)
            + f"of {self.shared} " * (self.shared > 0)
            + f"M={self.m} " * (self.m > 0)
            + f"N={self.n} D={self.d}"
            + f" E={self.e}" * (self.e != self.d)
        )
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
    ):
        for dtype, (n, d, e), kind in itertools.product(DTYPES, points, kinds):
            if dtype != "float16" or n * n * (d + e) <= LARGEST_FLOAT16:
                yield Case("grid", kind, dtype, n, d, e, threads)


def batches() -> Iterator[Case]:
    """Of float32 and bfloat16; with shared k and v, and with a gradient of attn too, at D = E = 64."""
    for dtype, (batch, m, n), d in itertools.product(DTYPES[:3:2], BATCHES, WIDTHS):
        more = (SHARED, GIVEN[1]) if d == 64 and m == n <= 1024 else ()
        for kind in (*KINDS[:2], *more):
            yield Case("batches", kind, dtype, n, d, d, m=m * (m != n), batch=batch)


def heads() -> Iterator[Case]:
    """The layers in every dtype, the others in float32 and bfloat16."""
    for dtype, (batch, m, n, h, shared, d) in itertools.product(DTYPES, HEADS):
        if dtype in DTYPES[:3:2] or (m == n <= 1024 and h == shared):
            for kind in KINDS[:2]:
                yield Case("heads", kind, dtype, n, d, d, 0, m * (m != n), batch, h, shared * (shared != h))


def other_routes() -> Iterator[Case]:
    """float32 at D = E = 64, and some of bfloat16, by every route."""
    for n in (OVERHEAD_N, 16, 256, 1024, 2048, 4096, 8192):
        for kind in KINDS[:2] if n == 8192 else KINDS:
            yield Case("routes", kind, "float32", n)
    for n, kind in itertools.product((256, 1024, 4096), KINDS[:2]):
        yield Case("routes", kind, "bfloat16", n)


def is_quick(case: Case) -> bool:
    """The cases of `--quick`: a few sizes at D = E = 64, the unusual ones in float32, and the cost of a call."""
    if case.part == "heads":
        return case.dtype == "float32" and case.n in (512, 1024) and case.d == 64
    if case.part == "batches":
        return (case.dtype, case.kind, case.d) == ("float32", KINDS[0], 64) and case.shape[-2] != 4096
    if case.part == "routes":
        return case.n == OVERHEAD_N and case.kind in KINDS[:2] or case.n == 1024 and case.kind in KINDS[:3]
    if case.threads or case.dtype != "float32":
        return case.kind in KINDS[:2] and case.d == 64 == case.e and case.n == 256 and not case.threads
    return case.n in (16, 256, 1024, 4096) if (case.d, case.e) == (64, 64) else case.n in (1, 4)
