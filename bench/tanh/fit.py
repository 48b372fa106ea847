"""Prints the polynomial coefficients of the vectorised tanh in AttnTile.h: a Remez exchange in high precision."""

from __future__ import annotations

import argparse
from collections.abc import Callable
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
        extrema: list[tuple[mp.mpf, mp.mpf]] = []
        for x, error in zip(candidates, errors, strict=True):
            if extrema and (extrema[-1][1] > 0) == (error > 0):
                if abs(error) > abs(extrema[-1][1]):
                    extrema[-1] = (x, error)
            else:
                extrema.append((x, error))
        worst = max(abs(error) for _, error in extrema)
        while len(extrema) > count:
            extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    mp.mp.dps = 60
    for bits in (24, 53):
        for fit in fits(bits):
            coefficients, worst = remez(fit)
            print(f"{bits} bits, {fit.name}: relative error 2^{mp.nstr(mp.log(worst, 2), 4)}")
            for value in coefficients:
                print(f"    {mp.nstr(value, 9 if bits == 24 else 17, min_fixed=1, max_fixed=0)},")


if __name__ == "__main__":
    main()
