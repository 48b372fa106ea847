"""`python -m checks.fuzz`: fuzzes the torch that is imported; prints the shortest failing program and exits with 1."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence

import torch

from checks.fuzz.case import Case, drawn
from checks.fuzz.contexts import CONTEXTS
from checks.fuzz.oracle import Refused, Wrong, check
from checks.fuzz.shrink import shrunk

REFUSED = "refused by composition too"
# Seconds between two lines of progress.
PROGRESS = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, default=None, help="stop after as many (default: 60 seconds)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next case has the next one")
    parser.add_argument("--failures", type=int, default=1, help="stop after as many wrong cases")
    parser.add_argument("--context", action="append", choices=list(CONTEXTS), help="default: all")
    options = parser.parse_args()
    if not hasattr(torch, "attn"):
        raise SystemExit("checks.fuzz: this torch has no torch.attn: run it by `python -m fork run`")
    warnings.simplefilter("ignore")
    seconds = 60.0 if options.cases is None and options.seconds == float("inf") else options.seconds
    return campaign(options.seed, seconds, options.cases, options.failures, options.context or list(CONTEXTS))


def campaign(first: int, seconds: float, cases: int | None, failures: int, contexts: Sequence[str]) -> int:
    """Runs the cases of consecutive seeds; the exit status is 1 where any is wrong."""
    ran: Counter[str] = Counter()
    # One thread alone: the first call of MKL's tanh is less exact where several threads make it (pytorch#188792).
    for dtype in (torch.float32, torch.float64):
        torch.tanh(torch.ones(1, dtype=dtype))
    start = told = time.monotonic()
    seed, wrong = first, 0
    while time.monotonic() < start + seconds and (cases is None or seed < first + cases) and wrong < failures:
        failure = fault(drawn(seed, contexts), ran)
        if failure:
            wrong += 1
            print(f"seed {seed}, {torch.backends.cpu.get_cpu_capability()}: {failure}", flush=True)
        seed += 1
        if time.monotonic() > told + PROGRESS:
            told = time.monotonic()
            print(f"seeds {first} to {seed - 1}: {wrong} wrong, {told - start:.0f} s", flush=True)
    each = ", ".join(f"{name} {count}" for name, count in sorted(ran.items()))
    print(
        f"{seed - first} cases in {time.monotonic() - start:.0f} s on {torch.backends.cpu.get_cpu_capability()}, "
        f"{wrong or 'none'} wrong (seeds {first} to {seed - 1}): {each}"
    )
    return 1 if wrong else 0


def fault(case: Case, ran: Counter[str]) -> str | None:
    """What is wrong with a case, told of the simplest one that fails; counts the case by its context."""
    try:
        check(case)
        ran[case.context] += 1
    except Refused:
        ran[REFUSED] += 1
    except Exception as error:
        simplest = shrunk(case, lambda simpler: said(simpler) is not None)
        return said(simplest) or f"only once: {_told(error, case)}"
    return None


def said(case: Case) -> str | None:
    """What is wrong with a case."""
    try:
        check(case)
    except Refused:
        return None
    except Exception as error:
        return _told(error, case)
    return None


def _told(error: Exception, case: Case) -> str:
    return str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}\n\n{case.program()}"


if __name__ == "__main__":
    sys.exit(main())
