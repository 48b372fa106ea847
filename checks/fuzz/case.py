"""One case: sizes, dtype, layouts, values, what is differentiated, threads and context; and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from operator import add
from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor

from checks.fuzz.contexts import CONTEXTS

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "flipped", "one row", "one column", "conj", "neg")
VALUES = ("normal", "small", "saturated", "infinity", "nan", "denormal", "zero")
# How often each is drawn; hypothesis shrinks to what stands first.
KINDS = ("gradients",) * 4 + ("values",) * 2 + ("double gradients", "tangents")
INCOMING = ((True, False), (False, True), (True, True))
WANTED = [flags for flags in product((True, False), repeat=3) if any(flags)]
# The kernels' blocks and the widths of vectors: sizes just below and above them take other paths.
BLOCKS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
# Above this many rows, results are compared on some rows only.
LARGE = 300
# Numbers drawn for one tensor; a larger one repeats them. A prime, so that its rows still differ.
DRAWN = 65_521
# Cases in a row with the same number of threads: a change ends threads and starts others, which takes milliseconds.
SAME_THREADS = 60


def _often(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of the strategies, each as often as its number says (`one_of` leaves out what it has twice)."""
    return st.sampled_from([strategy for times, strategy in choices for _ in range(times)]).flatmap(lambda s: s)


SMALL = st.integers(1, 9) | st.integers(0, 40)
NEAR = st.builds(add, st.sampled_from(BLOCKS[:4]) | st.sampled_from(BLOCKS), st.integers(-1, 1))
MIDDLE = _often((3, NEAR), (1, st.integers(0, LARGE)))
# hypothesis draws a range's first number often.
MANY = st.builds(add, st.sampled_from((LARGE + 1, 350, 400, 450, 512, 600, 700, 1024, 2700)), st.integers(0, 300))
LARGE_SIZES = st.tuples(MANY, st.integers(1, 80), st.integers(0, 80))
# N, D, E: mostly small; one just below or above a block; few rows of many columns; and many rows.
SIZES = _often(
    (100, st.tuples(SMALL, SMALL, SMALL)),
    *[(28, st.tuples(*[MIDDLE if i == place else SMALL for i in range(3)])) for place in range(3)],
    (14, st.tuples(st.integers(0, 20), st.integers(0, 1100), st.integers(0, 600))),
    (1, st.tuples(MIDDLE, MIDDLE, MIDDLE)),
    (18, LARGE_SIZES),
)


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
        generator = torch.Generator().manual_seed(self.seed)
        made = [self._make(generator, i, *size) for i, size in enumerate(sizes)]
        for name, place in (("k", 1), ("v", 2)):
            if name in self.same and made[place].shape == made[place - 1].shape:
                made[place] = made[place - 1]
        return made

    def _make(self, generator: torch.Generator, place: int, rows: int, columns: int) -> Tensor:
        dtype = getattr(torch, self.dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        value = self.values[place]
        scale = {"small": 1e-3, "saturated": 20.0}.get(value, 1.0)
        if dtype.is_complex:
            scale = min(scale, 0.3)  # tanh of a complex number has poles: scores stay well below the first one
        if place < 2:
            # As many terms of one sign, or of random ones.
            terms = max(self.d, 1) ** (1 if dtype.is_complex and "one column" in self.layouts[:2] else 0.5)
            scale = (scale / terms) ** 0.5

        def draw(r: int, c: int) -> Tensor:
            t = torch.randn(min(r * c, DRAWN), generator=generator, dtype=wide)
            if dtype.is_complex:
                t /= t.abs().clamp_min(1)
            t = (t * scale).to(dtype)
            _sprinkle(t, value, generator)
            return (t if r * c <= DRAWN else t.repeat(-(-r * c // DRAWN))[: r * c]).view(r, c)

        return _layout(draw, self.layouts[place], rows, columns, dtype)


def _sprinkle(t: Tensor, value: str, generator: torch.Generator) -> None:
    """Puts a few special numbers at drawn places."""
    if value in ("infinity", "nan", "denormal", "zero") and t.numel():
        special = {"infinity": float("inf"), "nan": float("nan"), "zero": 0.0}
        places = torch.randint(t.numel(), (1 + t.numel() // 16,), generator=generator)
        t[places] = special.get(value, torch.finfo(t.dtype).smallest_normal / 4)


def _layout(draw: Callable[[int, int], Tensor], kind: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    if kind == "transposed":
        return draw(columns, rows).t()
    if kind == "strided":
        return draw(2 * rows, 3 * columns)[::2, ::3]
    if kind == "offset":
        return draw(rows + 1, columns)[1:]
    if kind == "flipped":
        return draw(rows, columns).flip(0).t().contiguous().t()
    if kind == "one row":
        return draw(1, columns).expand(rows, columns)
    if kind == "one column":
        return draw(rows, 1).expand(rows, columns)
    if kind == "conj" and dtype.is_complex:
        return draw(rows, columns).conj()
    if kind == "neg":
        return torch._neg_view(draw(rows, columns))
    return draw(rows, columns)


def cases(threads: int, contexts: Sequence[str] = tuple(CONTEXTS)) -> st.SearchStrategy[Case]:
    """Cases with that number of threads, and now and then with the default's."""
    return st.builds(
        _case,
        sizes=SIZES,
        dtype=st.sampled_from(DTYPES),
        context=st.sampled_from([name for name in contexts for _ in range(CONTEXTS[name].often)]),
        kind=st.sampled_from(KINDS),
        layouts=st.just(Case.layouts) | st.tuples(*[st.sampled_from(LAYOUTS)] * 5),
        values=_often((2, st.just(Case.values)), (1, st.tuples(*[st.sampled_from(VALUES)] * 5))),
        wanted=st.just(Case.wanted) | st.sampled_from(WANTED),
        incoming=st.sampled_from(INCOMING),
        same=st.sampled_from(("", "", "qk", "kv", "qkv")),
        threads=st.sampled_from([Case.threads] + [threads] * SAME_THREADS),
        seed=st.integers(0, 2**16),
    )


def _case(sizes: tuple[int, int, int], **drawn: Any) -> Case:
    if sizes[0] > LARGE:
        drawn |= {"context": "plain", "kind": "gradients", "same": ""}
    return Case(*sizes, **drawn)
