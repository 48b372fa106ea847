"""One case: sizes, dtype, layouts, values, what is differentiated, threads and context; and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import prod
from operator import add
from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor

from checks.fuzz.contexts import CONTEXTS

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "flipped", "one row", "one column", "conj", "neg")
# Of leading dimensions: behind the rows, as a layer of heads has them; in another order; and one matrix for all.
LEADING_LAYOUTS = ("behind", "permuted", "one matrix")
VALUES = ("normal", "small", "saturated", "infinity", "nan", "denormal", "zero")
# How often each is drawn; hypothesis shrinks to what stands first.
KINDS = ("gradients",) * 4 + ("values",) * 2 + ("double gradients", "tangents")
INCOMING = ((True, False), (False, True), (True, True))
WANTED = [flags for flags in product((True, False), repeat=3) if any(flags)]
# The kernels' blocks and the widths of vectors: sizes just below and above them take other paths.
BLOCKS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
# Above this many rows of q or of k, results are compared on some rows only.
LARGE = 300
# Large matrices, at most.
FEW = 4
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
# M; None is N.
ROWS = _often((4, st.none()), (2, SMALL), (2, MIDDLE))
SIDE = st.sampled_from((2, 1, 3, 0, 5))
# Half of the cases have leading dimensions; seven matrices are none, or more, for each of any number of threads.
LEADING = _often(
    (6, st.just(())),
    (3, st.tuples(SIDE)),
    (2, st.tuples(SIDE, SIDE)),
    (1, st.tuples(SIDE, SIDE, SIDE)),
    (1, st.just((7,))),
)


@dataclass(frozen=True)
class Case:
    """All that is drawn; `layouts` and `values` are those of q, k, v, grad_output, grad_attn."""

    m: int
    n: int
    d: int
    e: int
    leading: tuple[int, ...] = ()
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
        default = Case(-1, -1, -1, -1)
        words = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(default, f.name)
        ]
        return (
            "from checks.fuzz.case import Case\nfrom checks.fuzz.oracle import check\n\n"
            f"check(Case({', '.join(words)}))\n"
        )

    def inputs(self) -> list[Tensor]:
        """q (*, m, d), k (*, n, d), v (*, n, e), grad_output (*, m, e), grad_attn (*, m, n)."""
        sizes = ((self.m, self.d), (self.n, self.d), (self.n, self.e), (self.m, self.e), (self.m, self.n))
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

        def draw(*shape: int) -> Tensor:
            size = prod(shape)
            t = torch.randn(min(size, DRAWN), generator=generator, dtype=wide)
            if dtype.is_complex:
                t /= t.abs().clamp_min(1)
            t = (t * scale).to(dtype)
            _sprinkle(t, value, generator)
            return (t if size <= DRAWN else t.repeat(-(-size // DRAWN))[:size]).view(shape)

        return _layout(draw, self.layouts[place], self.leading, rows, columns, dtype)


def _sprinkle(t: Tensor, value: str, generator: torch.Generator) -> None:
    """Puts a few special numbers at drawn places."""
    if value in ("infinity", "nan", "denormal", "zero") and t.numel():
        special = {"infinity": float("inf"), "nan": float("nan"), "zero": 0.0}
        places = torch.randint(t.numel(), (1 + t.numel() // 16,), generator=generator)
        t[places] = special.get(value, torch.finfo(t.dtype).smallest_normal / 4)


def _layout(
    draw: Callable[..., Tensor], kind: str, leading: tuple[int, ...], rows: int, columns: int, dtype: torch.dtype
) -> Tensor:
    shape = (*leading, rows, columns)
    if kind == "transposed":
        return draw(*leading, columns, rows).mT
    if kind == "strided":
        return draw(*leading, 2 * rows, 3 * columns)[..., ::2, ::3]
    if kind == "offset":
        return draw(*leading, rows + 1, columns)[..., 1:, :]
    if kind == "flipped":
        return draw(*shape).flip(-2).mT.contiguous().mT
    if kind == "one row":
        return draw(*leading, 1, columns).expand(shape)
    if kind == "one column":
        return draw(*leading, rows, 1).expand(shape)
    if kind == "conj" and dtype.is_complex:
        return draw(*shape).conj()
    if kind == "neg":
        return torch._neg_view(draw(*shape))
    if kind == "behind":
        return draw(rows, *leading, columns).movedim(0, -2)
    if kind == "permuted":
        return draw(*reversed(leading), rows, columns).permute(*reversed(range(len(leading))), -2, -1)
    if kind == "one matrix":
        return draw(*(1 for _ in leading), rows, columns).expand(shape)
    return draw(*shape)


def cases(threads: int, contexts: Sequence[str] = tuple(CONTEXTS)) -> st.SearchStrategy[Case]:
    """Cases with that number of threads, and now and then with the default's."""
    return st.builds(
        _case,
        sizes=SIZES,
        rows=ROWS,
        swapped=st.booleans(),
        leading=LEADING,
        dtype=st.sampled_from(DTYPES),
        context=st.sampled_from([name for name in contexts for _ in range(CONTEXTS[name].often)]),
        kind=st.sampled_from(KINDS),
        layouts=st.just(Case.layouts) | st.tuples(*[st.sampled_from(LAYOUTS + LEADING_LAYOUTS)] * 5),
        values=_often((2, st.just(Case.values)), (1, st.tuples(*[st.sampled_from(VALUES)] * 5))),
        wanted=st.just(Case.wanted) | st.sampled_from(WANTED),
        incoming=st.sampled_from(INCOMING),
        same=st.sampled_from(("", "", "qk", "kv", "qkv")),
        threads=st.sampled_from([Case.threads] + [threads] * SAME_THREADS),
        seed=st.integers(0, 2**16),
    )


def _case(sizes: tuple[int, int, int], rows: int | None, swapped: bool, leading: tuple[int, ...], **drawn: Any) -> Case:
    n, d, e = sizes
    m = n if rows is None else rows
    if max(m, n) > LARGE:
        drawn |= {"context": "plain", "kind": "gradients", "same": ""}
        leading = leading if prod(leading) <= FEW else ()
    return Case(*((n, m) if swapped else (m, n)), d, e, leading, **drawn)
