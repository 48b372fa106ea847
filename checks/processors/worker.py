"""Runs the tests of a row that are in one file. It prints JSON: first what it will run, then how each test ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import unittest
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from checks import load

TOLD = sys.stdout


def single(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestCase):
            yield test
        else:
            yield from single(test)


def name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def chosen(path: str, never: str, patterns: Iterable[str]) -> list[unittest.TestCase]:
    """The file's tests in the order of the patterns, each once."""
    every = [
        test
        for test in single(unittest.defaultTestLoader.loadTestsFromModule(load(path)))
        if not re.search(never, name(test))
    ]
    found = {name(test): test for pattern in patterns for test in every if re.search(pattern, name(test))}
    return list(found.values())


def probe() -> None:
    """Makes MKL and oneDNN say for which processor they chose their code; this process may be killed later."""
    with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
        torch.ones(9, 9) @ torch.ones(9, 9)
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        torch.ones(9, 9).to_mkldnn()
    ctypes.CDLL(None).fflush(None)


def ended(test: unittest.TestCase) -> str:
    """passed, skipped, or the text of a failure."""
    result = unittest.TestResult()
    test.run(result)
    wrong = [text for _, text in (*result.failures, *result.errors)]
    wrong += ["an unexpected success"] * len(result.unexpectedSuccesses)
    return wrong[0] if wrong else "skipped" if result.skipped else "passed"


def run(tests: Iterable[unittest.TestCase]) -> Iterator[tuple[str, str]]:
    """How each test ended, when it has."""
    begun: set[type] = set()
    for test in tests:
        if type(test) not in begun:
            begun.add(type(test))
            test.setUpClass()
        yield name(test), ended(test)


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), file=TOLD, flush=True)


def main() -> None:
    path, never, *patterns = sys.argv[1:]
    # More than there are processors is not taken from the variable everywhere.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    probe()
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere):
        tests = chosen(path, never, patterns)
        capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
        tell({"capability": capability, "threads": threads, "tests": [name(test) for test in tests]})
        for which, how in run(tests):
            tell({"test": which, "ended": how})


if __name__ == "__main__":
    main()
