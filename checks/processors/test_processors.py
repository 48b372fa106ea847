"""The rows of `make processors`: their tests exist, and a row that does not reach what it names is wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import unittest
from typing import Any

import pytest

from bench.documents import fill
from checks import ROOT
from checks.processors import EXPLICIT, FOUND, KERNELS, NEVER, NUMERICS, Row, quick, rows, worker
from checks.processors import __main__ as processors


def names(path: str) -> list[str]:
    """Class.function of every test of a file; parameters stand behind the function's name."""
    found, name = [], ""
    for line in (ROOT / path).read_text().splitlines():
        if begins := re.match(r"class (\w+)", line):
            name = begins[1]
        if test := re.match(r"    def (test_\w+)", line):
            found.append(f"{name}.{test[1]}")
    return found


@pytest.mark.parametrize("path", [EXPLICIT, KERNELS])
def test_what_is_selected_is_there(path: str) -> None:
    every = [name for name in names(path) if not NEVER.search(name)]
    for pattern in (*FOUND.get(path, ()), *NUMERICS[path]):
        # Types and other parameters end the name of a test, which the file does not show.
        begin = re.sub(r"(\\w\*)?_(\(first|float|complex).*$", "", pattern)
        assert any(re.search(begin, name) for name in every), pattern


def test_every_row_has_numbers_and_time_for_them() -> None:
    every = rows()
    assert len({row.name for row in every}) == len(every)
    assert sum(row.seconds * len(row.tests) for row in every) / 2 < 25 * 60
    assert max(row.seconds for row in quick()) < 3 * 60


def said(tests: dict[str, str], mkl: str = "Intel(R) Architecture processors") -> subprocess.CompletedProcess[str]:
    told = json.dumps({"capability": "AVX2", "threads": 2, "tests": tests})
    lines = f"{told}\nMKL_VERBOSE oneMKL 2024.0 for Intel(R) 64 architecture {mkl}, Lnx 2GHz\n"
    return subprocess.CompletedProcess([], 0, lines + "onednn_verbose,v1,info,cpu,isa:Intel AVX2\n", "")


def test_a_row_is_right_only_where_it_reached_what_it_names() -> None:
    row, _ = quick()
    right = processors.outcome(row, [said({"A.test": "passed"}), said({"B.test": "skipped", "C.test": "passed"})], 3.0)
    assert right.right and right.reached == "ATen AVX2, 2 threads, MKL any processor, oneDNN Intel AVX2"
    haswell = "Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors"
    other = processors.outcome(row, [said({"A.test": "passed"}, haswell)], 3.0)
    assert not other.right and other.broken == [f"the row is of {row.reaches}, but it reached {other.reached}"]
    assert not processors.outcome(row, [said({"A.test": "left out"})], 3.0).right
    failed = processors.outcome(row, [said({"A.test": "AssertionError"})], 3.0)
    assert not failed.right and failed.cells()[2:6] == ["0", "1", "0", "0"]
    qemu = f"{processors.QEMU}: warning: TCG doesn't support requested feature"
    killed = processors.outcome(row, [subprocess.CompletedProcess([], 9, "", f"why\n{qemu}")], 3.0)
    assert killed.broken == ["why"]


def test_a_test_fails_is_skipped_or_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise worker.TimeIsUp

    class Tests(unittest.TestCase):
        def test_right(self) -> None: ...
        def test_skipped(self) -> None:
            self.skipTest("no")

        def test_wrong(self) -> None:
            self.fail("seven")

        def test_long(self) -> None:
            time.sleep(30)

        def test_late(self) -> None: ...

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        found = worker.run([Tests(f"test_{name}") for name in ("right", "skipped", "wrong", "long", "late")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "seven" in found.pop("Tests.test_wrong")
    assert list(found.values()) == ["passed", "skipped", "left out", "left out"]


def test_the_document_names_what_was_left_out() -> None:
    row = Row("OMP_NUM_THREADS=5", "5 threads")
    tests = {"T.test_strides_float32": "passed", "T.test_strides_float64": "left out", "T.test_b": "left out"}
    text = processors.document([processors.outcome(row, [said(tests)], 9.0)], quick(), "Here.")
    assert "| `OMP_NUM_THREADS=5` | ATen AVX2, 2 threads, " in text and "| 1 | 0 | 0 | 2 | 9 s |" in text
    assert "* `OMP_NUM_THREADS=5`, left out for time: test_b (1 of 1), test_strides (1 of 2)." in text
    assert "* `qemu -cpu EPYC-Milan` was left out, because qemu-x86_64 was not found." in text
    guide = processors.GUIDE.read_text()
    assert text in fill(guide, {processors.KEY: text}, "guide")
