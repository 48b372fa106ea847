"""One case: sizes, dtype, layouts, values, what is differentiated, threads and context; and how hypothesis draws it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from hypothesis import strategies as st
from torch import Tensor

from checks.fuzz.contexts import CONTEXTS

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "flipped", "one row", "one column", "conj", "neg")
VALUES = ("normal", "small", "saturated", "infinity", "nan", "denormal", "zero")
KINDS = ("values", "gradients", "double gradients", "tangents")
# The kernels' blocks and the widths of vectors: sizes just below and above them take other paths.
BLOCKS = (8, 16, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Case:
    """All that is drawn; `layouts` and `values` are those of q, k, v, grad_output, grad_attn."""

    n: int
    d: int
    e: int
    dtype: str = "float32"
    context: str = "plain"
    kind: str = "gradients"
    layouts: tuple[str, ...] = ("contiguous",) * 5
    values: tuple[str, ...] = ("normal",) * 5
    wanted: tuple[bool, ...] = (True, True, True)
    """Which of q, k, v require a gradient."""
    incoming: tuple[bool, ...] = (True, False)
    """Whether output and attn have a gradient that comes in."""
    same: str = ""
    """Names of inputs that are one tensor: "qk", "kv" or "qkv"."""
    threads: int = 2
    seed: int = 0

    def program(self) -> str:
        """A program that runs the case again; what has its default is left out."""
        default = Case(0, 0, 0)
        words = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name in "nde"]
        words += [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in "nde" and getattr(self, f.name) != getattr(default, f.name)
        ]
        return (
            "from checks.fuzz.case import Case\nfrom checks.fuzz.oracle import check\n\n"
            f"check(Case({', '.join(words)}))\n"
        )

    def inputs(self) -> list[Tensor]:
        """q (n, d), k (n, d), v (n, e), grad_output (n, e), grad_attn (n, n)."""
        sizes = ((self.n, self.d), (self.n, self.d), (self.n, self.e), (self.n, self.e), (self.n, self.n))
        made = [self._make(i, *size) for i, size in enumerate(sizes)]
        for name, place in (("k", 1), ("v", 2)):
            if name in self.same and made[place].shape == made[place - 1].shape:
                made[place] = made[place - 1]
        return made

    def _make(self, place: int, rows: int, columns: int) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {place}".encode()))
        dtype = getattr(torch, self.dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        kind, value = self.layouts[place], self.values[place]

        def draw(r: int, c: int) -> Tensor:
            scale = {"small": 1e-3, "saturated": 20.0}.get(value, 1.0)
            t = torch.randn(r, c, generator=generator, dtype=wide)
            if dtype.is_complex:  # tanh of a complex number has poles: scores stay well below the first one
                t, scale = t / t.abs().clamp_min(1), min(scale, 0.3)
            if place < 2:
                t = t * (scale / max(self.d, 1) ** 0.5) ** 0.5
            return _sprinkle(t.to(dtype), value, generator)

        return _layout(draw, kind, rows, columns, dtype)


def _sprinkle(t: Tensor, value: str, generator: torch.Generator) -> Tensor:
    """A few special numbers at drawn places."""
    if value not in ("infinity", "nan", "denormal", "zero") or not t.numel():
        return t
    real = torch.finfo(t.dtype)
    special = {"infinity": float("inf"), "nan": float("nan"), "denormal": real.smallest_normal / 4, "zero": 0.0}[value]
    places = torch.randint(t.numel(), (1 + t.numel() // 16,), generator=generator)
    t.view(-1)[places] = special
    return t


def _layout(draw: object, kind: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    assert callable(draw)
    t: Tensor
    if kind == "transposed":
        t = draw(columns, rows).t()
    elif kind == "strided":
        t = draw(2 * rows, 3 * columns)[::2, ::3]
    elif kind == "offset":
        t = draw(rows + 1, columns)[1:]
    elif kind == "flipped":
        t = draw(rows, columns).flip(0).t().contiguous().t()
    elif kind == "one row":
        t = draw(1, columns).expand(rows, columns)
    elif kind == "one column":
        t = draw(rows, 1).expand(rows, columns)
    elif kind == "conj" and dtype.is_complex:
        t = draw(rows, columns).conj()
    elif kind == "neg":
        t = torch._neg_view(draw(rows, columns))
    else:
        t = draw(rows, columns)
    return t


def _sizes() -> st.SearchStrategy[tuple[int, int, int]]:
    """N, D, E: small, just below and above the blocks, anything up to 300, and few rows of many columns."""
    near = st.builds(lambda block, off: block + off, st.sampled_from(BLOCKS), st.integers(-1, 1))
    size = st.one_of(st.integers(0, 9), st.integers(0, 40), near, st.integers(0, 300))
    wide = st.integers(250, 400)
    return st.one_of(*[st.tuples(size, size, size)] * 4, st.tuples(st.integers(0, 20), wide, wide))


def cases(contexts: Sequence[str] = tuple(CONTEXTS)) -> st.SearchStrategy[Case]:
    """Cases for hypothesis, which shrinks one that fails towards the first entry of each list."""
    layouts, values = (st.tuples(*[st.sampled_from(names)] * 5) for names in (LAYOUTS, VALUES))
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any)
    plain_values = st.just(("normal",) * 5)
    return st.builds(
        lambda sizes, **others: Case(*sizes, **others),
        sizes=_sizes(),
        dtype=st.sampled_from(DTYPES),
        context=st.sampled_from(list(contexts)),
        kind=st.sampled_from(KINDS),
        layouts=st.one_of(st.just(("contiguous",) * 5), layouts),
        values=st.one_of(plain_values, plain_values, values),
        wanted=st.one_of(st.just((True, True, True)), flags),
        incoming=st.sampled_from(((True, False), (False, True), (True, True))),
        same=st.sampled_from(("", "", "qk", "kv", "qkv")),
        threads=st.integers(1, 8),
        seed=st.integers(0, 99),
    )
