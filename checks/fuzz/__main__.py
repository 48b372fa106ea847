"""`python -m checks.fuzz`: fuzzes the torch that is imported; prints the simplest failing program and exits with 1."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from random import Random

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from bench.arguments import duration
from checks.fuzz.case import Case, cases
from checks.fuzz.contexts import CONTEXTS
from checks.fuzz.oracle import Refused, Wrong, check
from fork.arguments import Parser, at_least, status

REFUSED = "refused by composition too"
# Cases of one seed, which hypothesis draws in one run: long ones go on from any seed, and memory stays small.
BATCH = 250
# Seconds between two lines of progress.
PROGRESS = 60
# Seconds for making a failing case simpler.
SHRINK = 20
SETTINGS = settings(
    max_examples=BATCH,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
)


def main() -> int:
    parser = Parser(prog="python -m checks.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=duration, help="stop after as many (default: 60)")
    parser.add_argument("--cases", type=at_least(1), help=f"stop after as many, in batches of {BATCH}")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the first batch; the next one follows")
    parser.add_argument("--failures", type=at_least(1), default=1, help="stop after as many batches with a wrong case")
    parser.add_argument("--context", action="append", choices=list(CONTEXTS), help="default: all")
    options = parser.parse_args()
    if not hasattr(torch, "attn"):
        raise SystemExit("checks.fuzz: this torch has no torch.attn: run it by `python -m fork run`")
    warnings.simplefilter("ignore")
    limit = options.seconds or (60 if options.cases is None else math.inf)
    batches = math.inf if options.cases is None else math.ceil(options.cases / BATCH)
    return campaign(options.seed, limit, batches, options.failures, options.context or list(CONTEXTS))


def campaign(first: int, limit: float, batches: float, failures: int, contexts: Sequence[str]) -> int:
    """Runs the batches of consecutive seeds; the exit status is 1 where any has a wrong case."""
    ran: Counter[str] = Counter()
    # One thread alone: the first call of MKL's tanh is less exact where several threads make it (pytorch#188792).
    for dtype in (torch.float32, torch.float64):
        torch.tanh(torch.ones(1, dtype=dtype))
    start = told = time.monotonic()
    batch, wrong = first, 0
    while time.monotonic() < start + limit and batch < first + batches and wrong < failures:
        failure = fault(batch, ran, contexts)
        if failure:
            wrong += 1
            print(f"seed {batch}, {torch.backends.cpu.get_cpu_capability()}: {failure}", flush=True)
        batch += 1
        if time.monotonic() > told + PROGRESS:
            told = time.monotonic()
            print(f"seeds {first} to {batch - 1}: {wrong} wrong, {told - start:.0f} s", flush=True)
    each = ", ".join(f"{name} {count}" for name, count in sorted(ran.items()))
    print(
        f"{ran.total()} cases in {time.monotonic() - start:.0f} s on {torch.backends.cpu.get_cpu_capability()}, "
        f"{wrong or 'none'} wrong (seeds {first} to {batch - 1}): {each}"
    )
    return 1 if wrong else 0


def fault(batch: int, ran: Counter[str], contexts: Sequence[str] = tuple(CONTEXTS)) -> str | None:
    """What is wrong with the cases of a batch, told of the simplest one that fails; counts the others by context."""
    failed: dict[float, str] = {}

    def test(case: Case) -> None:
        if failed and time.monotonic() > min(failed) + SHRINK:
            return
        try:
            check(case)
            ran[case.context] += not failed
        except Refused:
            ran[REFUSED] += not failed
        except Exception as error:
            kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
            failed[time.monotonic()] = f"{kind}{error}\n\n{case.program()}"
            raise

    threads = Random(f"threads {batch}")
    count = threads.choice((1, 2, threads.randint(3, 8), threads.randint(9, 32)))
    try:
        seed(batch)(SETTINGS(given(cases(count, contexts))(test)))()
    except Exception:
        if not failed:
            raise
    return failed[max(failed)] if failed else None


if __name__ == "__main__":
    sys.exit(status("checks.fuzz", main))
