"""The rows of `make processors`: their tests exist, and a row that does not reach what it names is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import unittest

import pytest

from checks import ROOT
from checks.processors import __main__ as processors
from checks.processors import worker
from checks.processors.rows import EXPLICIT, FOUND, KERNELS, NEVER, NUMERICS, quick


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
    usual = [name for name in names(path) if not re.search(NEVER, name)]
    for pattern in (*FOUND.get(path, ()), *NUMERICS[path]):
        # Types and other parameters end the name of a test, which the file does not show.
        begin = re.sub(r"(\\w\*)?_(\(first|b?float|complex).*$", "", pattern)
        assert any(re.search(begin, name) for name in usual), pattern


def said(tests: dict[str, str], mkl: str = "Intel(R) Architecture processors") -> subprocess.CompletedProcess[str]:
    """What a worker prints; it was ended before the tests that have no end."""
    text = f"MKL_VERBOSE oneMKL 2024.0 for Intel(R) 64 architecture {mkl}, Lnx 2GHz\n"
    text += "onednn_verbose,v1,info,cpu,isa:Intel AVX2\n"
    text += json.dumps({"capability": "AVX2", "threads": 2, "tests": list(tests)}) + "\n"
    text += "".join(json.dumps({"test": test, "ended": how}) + "\n" for test, how in tests.items() if how)
    return subprocess.CompletedProcess([], 0, text, "")


def test_a_row_is_right_only_where_it_reached_what_it_names() -> None:
    (row,) = quick()
    right = processors.outcome(row, [said({"A.test": "passed"}), said({"B.test": "skipped", "C.test": "passed"})], 3.0)
    assert right.right and right.reached == "ATen AVX2, 2 threads, MKL any processor, oneDNN Intel AVX2"
    haswell = "Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors"
    other = processors.outcome(row, [said({"A.test": "passed"}, haswell)], 3.0)
    assert not other.right and other.broken == [f"the row is of {row.reaches}, but it reached {other.reached}"]
    assert not processors.outcome(row, [said({"A.test": ""})], 3.0).right
    failed = processors.outcome(row, [said({"A.test": "AssertionError"})], 3.0)
    assert not failed.right and failed.cells()[2:6] == ["0", "1", "0", "0"]
    qemu = f"{processors.QEMU}: warning: TCG doesn't support requested feature"
    killed = processors.outcome(row, [subprocess.CompletedProcess([], 9, "", f"why\n{qemu}")], 3.0)
    assert killed.broken == ["why"]


def test_a_test_passes_fails_or_is_skipped() -> None:
    class Tests(unittest.TestCase):
        def test_right(self) -> None: ...
        def test_skipped(self) -> None:
            self.skipTest("no")

        def test_wrong(self) -> None:
            self.fail("seven")

    found = dict(worker.run([Tests(f"test_{name}") for name in ("right", "skipped", "wrong")]))
    assert "seven" in found.pop("Tests.test_wrong")
    assert found == {"Tests.test_right": "passed", "Tests.test_skipped": "skipped"}
