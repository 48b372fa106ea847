"""One case: sizes, dtype, layouts, values, what is differentiated, threads and context; and how a seed draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product
from random import Random

import torch
from torch import Tensor

from checks.fuzz.contexts import CONTEXTS

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
LAYOUTS = ("contiguous", "transposed", "strided", "offset", "flipped", "one row", "one column", "conj", "neg")
VALUES = ("normal", "small", "saturated", "infinity", "nan", "denormal", "zero")
KINDS = ("values", "gradients", "double gradients", "tangents")
INCOMING = ((True, False), (False, True), (True, True))
WANTED = [flags for flags in product((True, False), repeat=3) if any(flags)]
# The kernels' blocks and the widths of vectors: sizes just below and above them take other paths.
BLOCKS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
# Above this many rows, results are compared on some rows only.
LARGE = 300
# Numbers drawn for one tensor; a larger one repeats them. A prime, so that its rows still differ.
DRAWN = 65_521
# Seeds in a row with the same number of threads: a change ends threads and starts others, which takes milliseconds.
SAME_THREADS = 64


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


def drawn(seed: int, contexts: Sequence[str] = tuple(CONTEXTS)) -> Case:
    """The case of a seed."""
    random = Random(seed)
    n, d, e = _sizes(random)
    large = n > LARGE
    context = random.choices(contexts, [CONTEXTS[name].often for name in contexts])[0]
    return Case(
        n,
        d,
        e,
        dtype=random.choice(DTYPES),
        context="plain" if large and "plain" in contexts else context,
        kind="gradients" if large else random.choices(KINDS, (2, 4, 1, 1))[0],
        layouts=tuple(random.choices(LAYOUTS if random.random() < 0.5 else LAYOUTS[:1], k=5)),
        values=tuple(random.choices(VALUES if random.random() < 0.3 else VALUES[:1], k=5)),
        wanted=random.choice(WANTED) if random.random() < 0.5 else WANTED[0],
        incoming=random.choice(INCOMING),
        same="" if large else random.choice(("", "", "qk", "kv", "qkv")),
        threads=_threads(Random(f"threads {seed // SAME_THREADS}")),
        seed=seed,
    )


def _threads(random: Random) -> int:
    return random.choice((1, 2, random.randint(3, 8), random.randint(9, 32)))


def _sizes(random: Random) -> tuple[int, int, int]:
    """N, D, E: mostly small; one just below or above a block or up to 300; few rows of many columns; and many rows."""

    def small() -> int:
        return random.randint(0, random.choice((9, 40)))

    def middle() -> int:
        near = random.choice(BLOCKS[: random.randint(3, len(BLOCKS))]) + random.randint(-1, 1)
        return random.choice((near, near, near, random.randint(0, LARGE)))

    shape = random.random()
    if shape < 0.005:
        # Mostly several hundred: the largest are 3,000.
        return round(LARGE * 10 ** random.random() ** 2) + 1, random.randint(1, 80), random.randint(0, 80)
    if shape < 0.01:
        return middle(), middle(), middle()
    if shape < 0.08:
        return random.randint(0, 20), random.randint(0, 1100), random.randint(0, 600)
    sizes = [small(), small(), small()]
    if shape < 0.5:
        sizes[random.randrange(3)] = middle()
    return sizes[0], sizes[1], sizes[2]
