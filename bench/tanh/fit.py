"""Prints the coefficients of short_tanh in AttnTile.h: Remez exchanges in high precision."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mpmath as mp  # type: ignore[import-untyped]  # it comes with torch

from fork.arguments import Parser, status


def alternating(points: list[mp.mpf], errors: list[mp.mpf], count: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """At most `count` points, with their errors, where errors of alternating sign are largest."""
    extrema: list[tuple[mp.mpf, mp.mpf]] = []
    for x, error in zip(points, errors, strict=True):
        if extrema and (extrema[-1][1] > 0) == (error > 0):
            if abs(error) > abs(extrema[-1][1]):
                extrema[-1] = (x, error)
        else:
            extrema.append((x, error))
    while len(extrema) > count:
        extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
    return extrema


def short_tanh(limit: int = 5, top: int = 3, bottom: int = 3, rounds: int = 8) -> tuple[list[mp.mpf], mp.mpf]:
    """P and then Q of tanh(x) = x P(s) / (1 + s Q(s)), s = x^2, for |x| <= limit, and the largest relative error."""
    count = top + bottom + 1

    def target(s: mp.mpf) -> mp.mpf:
        return mp.tanh(mp.sqrt(s)) / mp.sqrt(s)

    def parts(x: Sequence[mp.mpf], s: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
        return mp.polyval(list(x[:top])[::-1], s), 1 + s * mp.polyval(list(x[top : count - 1])[::-1], s)

    candidates = [(limit * (i + mp.mpf("0.5")) / 2000) ** 2 for i in range(2000)]
    targets = [target(s) for s in candidates]
    points = [(limit * (1 - mp.cos(mp.pi * (i + mp.mpf("0.5")) / count)) / 2) ** 2 for i in range(count)]
    # The start leaves out the product of the error and Q, so that the equations are linear.
    rows = [
        [s**p for p in range(top)] + [-target(s) * s ** (p + 1) for p in range(bottom)] + [-((-1) ** i) * target(s)]
        for i, s in enumerate(points)
    ]
    x = list(mp.lu_solve(mp.matrix(rows), mp.matrix([target(s) for s in points])))
    worst = mp.mpf(0)
    for _ in range(rounds):

        def equations(*x: mp.mpf, points: Sequence[mp.mpf] = tuple(points)) -> list[mp.mpf]:
            both = [(*parts(x, s), target(s) * (1 + (-1) ** i * x[-1])) for i, s in enumerate(points)]
            return [p - q * wanted for p, q, wanted in both]

        x = list(mp.findroot(equations, x, tol=mp.mpf(10) ** -40, verify=False))
        fractions = [parts(x, s) for s in candidates]
        errors = [p / q / f - 1 for (p, q), f in zip(fractions, targets, strict=True)]
        extrema = alternating(candidates, errors, count)
        worst = max(abs(error) for error in errors)
        points, x[-1] = [s for s, _ in extrema], extrema[0][1]
    return x[:-1], worst


def main() -> None:
    Parser(prog="python -m bench.tanh.fit", description=__doc__).parse_args()
    mp.mp.dps = 60
    coefficients, worst = short_tanh()
    print(f"numerator, and denominator after 1: relative error 2^{mp.nstr(mp.log(worst, 2), 4)}")
    for value in coefficients:
        print(f"    {mp.nstr(value, 9, min_fixed=1, max_fixed=0)},")


if __name__ == "__main__":
    sys.exit(status("bench.tanh.fit", main))
