"""Runs the tests of a row that are in one file, and prints how each one ended as JSON, then what MKL and oneDNN say."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
import unittest
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from checks.processors import NEVER

TOLD = sys.stdout


class TimeIsUp(KeyboardInterrupt):
    """Ends a test: unittest takes every other exception as a failure of the test."""


def load(path: str) -> unittest.TestSuite:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[Path(path).stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def single(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestCase):
            yield test
        else:
            yield from single(test)


def name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def chosen(path: str, patterns: Iterable[str]) -> list[unittest.TestCase]:
    """The file's tests in the order of the patterns, each once."""
    every = [test for test in single(load(path)) if not NEVER.search(name(test))]
    found = {name(test): test for pattern in patterns for test in every if re.search(pattern, name(test))}
    return list(found.values())


def probe() -> None:
    """Makes MKL and oneDNN say, at the end of this process, for which processor they chose their code."""
    with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
        torch.ones(9, 9) @ torch.ones(9, 9)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        torch.ones(9, 9).to_mkldnn()


def ended(test: unittest.TestCase) -> str:
    """passed, skipped, or the text of a failure."""
    result = unittest.TestResult()
    test.run(result)
    wrong = [text for _, text in (*result.failures, *result.errors)]
    wrong += ["an unexpected success"] * len(result.unexpectedSuccesses)
    return wrong[0] if wrong else "skipped" if result.skipped else "passed"


def run(tests: Iterable[unittest.TestCase]) -> dict[str, str]:
    """How each test ended; one that has no time to begin or to end is left out."""

    found = {}
    waiting = iter(tests)
    begun: set[type] = set()
    with contextlib.suppress(TimeIsUp):
        for test in waiting:
            found[name(test)] = "left out"
            if type(test) not in begun:
                begun.add(type(test))
                test.setUpClass()
            found[name(test)] = ended(test)
    return found | {name(test): "left out" for test in waiting}


def stop(*_: object) -> None:
    raise TimeIsUp


def main() -> None:
    path, until, *patterns = sys.argv[1:]
    # More than there are processors is not taken from the variable everywhere.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    signal.signal(signal.SIGALRM, stop)
    # The import of torch, which takes long where it is emulated, counts.
    signal.setitimer(signal.ITIMER_REAL, max(float(until) - time.time(), 0.001))
    found: dict[str, str] = {}
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(TimeIsUp):
        found = run(chosen(path, patterns))
    signal.setitimer(signal.ITIMER_REAL, 0)
    told = {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(), "tests": found}
    print(json.dumps(told), file=TOLD, flush=True)
    probe()


if __name__ == "__main__":
    main()
