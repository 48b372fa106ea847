"""PR 4's tests: those of its table of parity are there, and a PyTorch without distributed has all but DTensor's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks import ROOT
from checks.built import built
from checks.stack.parity import FILES, PARITY
from fork.engine.fork import environment

WITHOUT_DISTRIBUTED = f"""
import runpy, sys, unittest, torch
torch.distributed.is_available = lambda: False
sys.modules["torch.distributed.tensor"] = None
names = runpy.run_path({str(FILES[0])!r}, run_name="tests")
for name, cls in names.items():
    if name.startswith("Test") and cls.__module__ == "tests":
        tests = unittest.defaultTestLoader.getTestCaseNames(cls)
        print(name, len(tests) > 0, getattr(cls, "__unittest_skip__", False))
"""


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    return environment(built(), Path(sys.executable))


def run(program: str, variables: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_row_has_tests(variables: dict[str, str]) -> None:
    program = "from checks.stack.parity import rows\nfor _, row, tests in rows(): print(tests.countTestCases(), row)"
    lines = run(program, variables)
    assert len(lines) == sum(map(len, PARITY.values()))
    assert not [line for line in lines if line.startswith("0 ")]


def test_the_description_has_every_row() -> None:
    text = (ROOT / "stack/explicit.generic/COMMIT.md").read_text()
    found = re.findall(r"^\| (dtype|layout|transform|subsystem) \| (.*?) \|", text, re.MULTILINE)
    assert found == [(kind, row) for kind, rows in PARITY.items() for row in rows]


def test_without_distributed(variables: dict[str, str]) -> None:
    lines = run(WITHOUT_DISTRIBUTED, variables)
    assert "TestGradients True False" in lines
    assert not [line for line in lines if not line.endswith(" True False")]
