"""`python -m checks.fuzz`: fuzzes the torch that is imported; prints the shortest failing program and exits with 1."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from checks.fuzz.case import Case, cases
from checks.fuzz.contexts import CONTEXTS
from checks.fuzz.oracle import Wrong, check

BATCH = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, default=10**9, help="stop after about this many cases")
    parser.add_argument("--seed", type=int, default=0, help="the same cases for the same seed")
    parser.add_argument("--context", action="append", choices=list(CONTEXTS), help="default: all")
    options = parser.parse_args()
    if not hasattr(torch, "attn"):
        raise SystemExit("checks.fuzz: this torch has no torch.attn: run it by `python -m fork run`")
    warnings.simplefilter("ignore")
    ran: Counter[str] = Counter()
    start, seed = time.monotonic(), options.seed
    while time.monotonic() < start + options.seconds and ran.total() < options.cases:
        failure = batch(seed, options.context or drawn(seed), ran)
        if failure:
            print(f"seed {seed}, {torch.backends.cpu.get_cpu_capability()}: {failure}")
            return 1
        seed += 1
    took = time.monotonic() - start
    each = ", ".join(f"{name} {count}" for name, count in sorted(ran.items()))
    capability = torch.backends.cpu.get_cpu_capability()
    print(
        f"{ran.total()} cases in {took:.0f} s on {capability}, none wrong (seeds {options.seed} to {seed - 1}): {each}"
    )
    return 0


def drawn(seed: int) -> list[str]:
    """The contexts of one batch. The slow ones have every tenth for themselves."""
    return [name for name, context in CONTEXTS.items() if context.slow == (seed % 10 == 9)]


def batch(seed: int, contexts: list[str], ran: Counter[str]) -> str | None:
    """Some cases of one seed; what is wrong with the smallest that fails."""
    failures: list[str] = []

    @seeded(seed)
    @settings(
        max_examples=BATCH // 50 if CONTEXTS[contexts[0]].slow else BATCH,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(contexts))
    def run(case: Case) -> None:
        try:
            check(case)
        except Wrong as error:
            failures.append(str(error))
            raise
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}\n\n{case.program()}")
            raise
        ran[case.context] += 1

    try:
        run()
    except Exception:
        if not failures:
            raise
        return failures[-1]  # hypothesis ends with the smallest
    return None


if __name__ == "__main__":
    sys.exit(main())
