"""Prints the coefficients of the two vectorised tanh in AttnTile.h: Remez exchanges in high precision."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import mpmath as mp  # type: ignore[import-untyped]  # it comes with torch

Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    """A polynomial of `terms` coefficients close to `target` on [low, high], where errors count times `weight`."""

    name: str
    target: Function
    weight: Function
    low: mp.mpf
    high: mp.mpf
    terms: int


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


def remez(fit: Fit, rounds: int = 8, grid: int = 2000) -> tuple[list[mp.mpf], mp.mpf]:
    """Returns the coefficients, lowest power first, and the largest weighted error."""
    count = fit.terms + 1
    middle, half = (fit.high + fit.low) / 2, (fit.high - fit.low) / 2
    points = [middle - half * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]
    candidates = [middle - half * mp.cos(mp.pi * (i + mp.mpf("0.5")) / grid) for i in range(grid)]
    targets = [fit.target(x) for x in candidates]
    weights = [fit.weight(x) for x in candidates]
    coefficients: list[mp.mpf] = []
    worst = mp.mpf(0)
    for _ in range(rounds):
        rows = [[x**p for p in range(fit.terms)] + [(-1) ** i / fit.weight(x)] for i, x in enumerate(points)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([fit.target(x) for x in points]))
        coefficients = [solution[p] for p in range(fit.terms)]
        errors = [
            (mp.polyval(coefficients[::-1], x) - f) * w for x, f, w in zip(candidates, targets, weights, strict=True)
        ]
        extrema = alternating(candidates, errors, count)
        worst = max(abs(error) for error in errors)
        if len(extrema) < count:
            break
        points = [x for x, _ in extrema]
    return coefficients, worst


def fits(bits: int) -> list[Fit]:
    """exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2, and tanh(x) = x + x s Q(s), s = x^2, for |x| <= 1."""
    half_ln2 = mp.log(2) / 2 * mp.mpf("1.001")
    limit = mp.mpf(1)

    def exp_tail(r: mp.mpf) -> mp.mpf:
        return (mp.expm1(r) - r) / r**2

    def tanh_tail(s: mp.mpf) -> mp.mpf:
        x = mp.sqrt(s)
        return (mp.tanh(x) - x) / (x * s)

    def tanh_weight(s: mp.mpf) -> mp.mpf:
        return s * mp.sqrt(s) / mp.tanh(mp.sqrt(s)) if s else mp.mpf(10) ** -30

    exp_terms, tanh_terms = (5, 8) if bits == 24 else (11, 17)
    tiny = mp.mpf(10) ** -12
    return [
        Fit("exp", exp_tail, lambda r: (r**2 + tiny) / mp.exp(r), -half_ln2, half_ln2, exp_terms),
        Fit("tanh", tanh_tail, tanh_weight, tiny, limit**2, tanh_terms),
    ]


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


def show(coefficients: Iterable[mp.mpf], digits: int) -> None:
    for value in coefficients:
        print(f"    {mp.nstr(value, digits, min_fixed=1, max_fixed=0)},")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    mp.mp.dps = 60
    for bits in (24, 53):
        for fit in fits(bits):
            coefficients, worst = remez(fit)
            print(f"{bits} bits, {fit.name}: relative error 2^{mp.nstr(mp.log(worst, 2), 4)}")
            show(coefficients, 9 if bits == 24 else 17)
    coefficients, worst = short_tanh()
    print(f"16 bits, short tanh, numerator and denominator after 1: relative error 2^{mp.nstr(mp.log(worst, 2), 4)}")
    show(coefficients, 9)


if __name__ == "__main__":
    main()
