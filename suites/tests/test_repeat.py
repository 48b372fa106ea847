"""The line that PyTorch prints to repeat a failed test of test/test_ops.py is one that runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]

# A test that fails, because its body is replaced before PyTorch makes one for each operator of it.
PROGRAM = """
import os, runpy, sys
from suites.fake import TestTags
def test_tags(self, device, dtype, op):
    raise AssertionError("planted")
test_tags.__dict__.update(TestTags.test_tags.__dict__)
TestTags.test_tags = test_tags
sys.argv = ["test/test_ops.py", "TestTagsCPU.test_tags_mm_cpu_float32"]
runpy.run_path(os.path.abspath(sys.argv[0]), run_name="__main__")
"""


def failing(**variables: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    # With CI set, run_tests writes a report, for which a bare machine lacks the package.
    left_out = ("CI", "TORCH_FORK_COMMAND")
    every = {name: value for name, value in os.environ.items() if name not in left_out} | variables
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, cwd=ROOT, env=every, capture_output=True, text=True), every


def test_under_fork_run_the_line_begins_with_its_command(tmp_path: Path) -> None:
    """From any folder: the name of the file is whole, and PyTorch's own variables stand before the command."""
    failed, _ = failing(TORCH_FORK_COMMAND="python -m fork --root '/my stack' run --", PYTORCH_TEST_WITH_SLOW="1")
    line = (
        f"python -m fork --root '/my stack' run -- python {ROOT}/test/test_ops.py TestTagsCPU.test_tags_mm_cpu_float32"
    )
    assert re.search(rf"^ +(\w+=\S+ )*{re.escape(line)}$", failed.stderr, re.MULTILINE), failed.stderr[-2000:]


def test_a_failed_tests_own_line_names_a_file_that_runs_it() -> None:
    failed, variables = failing()
    line = re.search(r"python (\S+) (TestTagsCPU\.test_tags_mm_cpu_float32)$", failed.stderr, re.MULTILINE)
    assert failed.returncode and line is not None, failed.stderr[-2000:]
    assert line[1] == "test/test_ops.py"
    command = [sys.executable, line[1], line[2]]
    again = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert again.returncode == 0 and "Ran 1 test" in again.stderr, again.stderr[-2000:]
