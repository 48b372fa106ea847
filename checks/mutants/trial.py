"""`python -m checks.mutants.trial [NAME ...]`, with the build of all mutants as its torch: runs each one's test.

Every test runs in a child of this process, which has imported torch and the tests already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
import unittest
from collections.abc import Sequence
from pathlib import Path

import torch

from checks import load
from checks.mutants.mutant import Mutant, table
from fork.arguments import status
from fork.errors import ForkError

LIMIT = 300
"""Seconds that one test may take: a mutant that makes it wait for ever is not found by it."""
PASSED, FAILED, NOT_RUN, SKIPPED = 0, 1, 2, 3


def run(test: str) -> int:
    path, _, name = test.partition("::")
    suite = unittest.defaultTestLoader.loadTestsFromName(name.replace("::", "."), sys.modules[Path(path).stem])
    result = unittest.TestResult()
    suite.run(result)
    if not result.wasSuccessful():
        return FAILED
    return SKIPPED if result.skipped else PASSED if result.testsRun else NOT_RUN


def start(test: str, mutant: Mutant | None) -> int:
    """The process that runs a test with a mutant."""
    child = os.fork()
    if child:
        return child
    if mutant:
        os.environ[mutant.switch] = "1"
        if mutant.at_import:
            importlib.reload(importlib.import_module(mutant.file.removesuffix(".py").replace("/", ".")))
    torch.set_num_threads(2)
    signal.alarm(LIMIT)
    status = NOT_RUN
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        try:
            status = run(test)
        finally:
            os._exit(status)


def wrong(trial: tuple[str, Mutant | None], status: int) -> str | None:
    """What is wrong with how a trial ended, if anything is."""
    test, mutant = trial
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) == signal.SIGALRM
        # Any other signal is a crash, which is found as well as a wrong number is.
        return f"{test} takes more than {LIMIT} s" if late else None if mutant else f"{test} crashes without a mutant"
    code = os.WEXITSTATUS(status)
    if code == NOT_RUN:
        return f"{test} does not run"
    if mutant:
        return f"it survives {test}" if code == PASSED else None
    return f"{test} fails without a mutant" if code else None


def main(names: Sequence[str], at_once: int) -> int:
    mutants = [m for m in table() if m.switched and (not names or m.name in names)]
    if unknown := set(names) - {m.name for m in mutants}:
        raise ForkError(f"no mutant with a switch is called {min(unknown)!r}: see checks/mutants/table.yaml")
    for lacking in [m for m in mutants if m.needs and not getattr(torch.cpu, f"_is_{m.needs}_supported")()]:
        print(f"left   {lacking.name}: this processor has no {lacking.needs}", flush=True)
        mutants.remove(lacking)
    for path in sorted({mutant.test.partition("::")[0] for mutant in mutants}):
        load(path)
    trials: list[tuple[str, Mutant | None]] = [(test, None) for test in sorted({m.test for m in mutants})]
    trials += [(mutant.test, mutant) for mutant in mutants]
    running: dict[int, tuple[tuple[str, Mutant | None], float]] = {}
    faults = 0
    while trials or running:
        while trials and len(running) < at_once:
            test, mutant = trials.pop(0)
            running[start(test, mutant)] = (test, mutant), time.monotonic()
        child, status = os.wait()
        trial, began = running.pop(child)
        fault = wrong(trial, status)
        name = trial[1].name if trial[1] else "no mutant"
        if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) == SKIPPED:
            if trial[1]:
                print(f"left   {name}: {trial[0]} skips itself on this processor", flush=True)
            continue
        if fault or trial[1]:
            print(f"{'WRONG ' if fault else 'killed'} {name}: {fault or trial[0]} ({time.monotonic() - began:.0f} s)")
            sys.stdout.flush()
        faults += fault is not None
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(status("checks.mutants.trial", lambda: main(sys.argv[1:], os.cpu_count() or 1)))
