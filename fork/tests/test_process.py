"""Programs that the tool runs: why they failed, and that none outlives the tool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pytest import MonkeyPatch, mark, raises

from fork.digest import tool_files
from fork.engine.compile.compiler import Compiler, Failed, Unit
from fork.engine.compile.diagnostics import NamesForErrors, errors
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.process import Together, attempt, place, run
from fork.tests.helpers import flags_of, script
from fork.verify import prefix


def test_a_program_that_ends_well() -> None:
    assert run(["echo", "yes"], "never") == "yes\n"


@mark.parametrize(
    ("line", "reason"),
    [
        ("echo first >&2; echo second >&2; exit 3", "second$"),
        ("exit 3", "it ended with status 3 and no message$"),
        ("cat /proc/version > /dev/full", "the disk is full: free some space"),
        ("kill -TERM $$", r"it was ended by SIGTERM \(Terminated\)$"),
    ],
)
def test_the_reason_is_the_last_line_or_the_disk_or_a_signal(line: str, reason: str) -> None:
    with raises(ForkError, match=f"^it failed: {reason}"):
        run(["sh", "-c", line], "it failed")


def test_an_error_of_python_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for text, line in (
        ("x = 1\nif\n", 2),
        ("import re\n\nimport nothing_here\n", 3),
        ("\ndef f():\n  raise OSError\nf()", 3),
    ):
        (tmp_path / "sub/broken.py").write_text(text)
        code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import sub.broken"
        assert place(attempt([sys.executable, "-c", code]), tmp_path) == f", at sub/broken.py:{line}"
    assert place(attempt([sys.executable, "-c", "1 / 0"]), tmp_path) == ""
    assert place(attempt([sys.executable, "-c", "pass"]), tmp_path) == ""


def test_tests_that_end_without_a_summary_say_why(tmp_path: Path) -> None:
    """Or `check` has nothing to say of a process that a signal ended."""
    for line, said in (
        ("kill -KILL $$", "it was ended by SIGKILL (Killed)"),
        ("exit 3", "it ended with status 3 and no message"),
        ("echo '1 failed, 2 passed in 3s'; exit 1", "1 failed, 2 passed in 3s"),
    ):
        done = prefix._run("tests", ["sh", "-c", line], tmp_path, dict(os.environ))
        assert (done.said, done.passed) == (said, False)


COMPILER = """\
case "$*" in
*--version*) echo compiler ;;
*units/a.cpp*) echo 'units/a.cpp:1:2: error: no such name' >&2; exit 1 ;;
*) sleep 600 ;;
esac
"""


def test_an_error_is_told_at_once_and_ends_the_build(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """What compiles beside it is not waited for."""
    monkeypatch.setenv("CXX", str(script(tmp_path / "c++", COMPILER)))
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    compiler = Compiler(flags_of(bases.installed(), tmp_path), NamesForErrors({"a.cpp": "mine/a.cpp"}))
    start = time.monotonic()
    found = compiler.compile_all([Unit(f"{name}.cpp", "") for name in "bac"], patient=False)
    (failed,) = found.values()
    assert isinstance(failed, Failed) and failed.error == "mine/a.cpp:1:2: error: no such name"
    assert time.monotonic() - start < 300


def test_what_misses_the_first_signal_is_ended_too(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """As a compiler that is between its fork and its exec."""
    monkeypatch.setattr(Together, "PATIENCE", 0.1)
    group, begun = Together(), tmp_path / "begun"
    line = f"trap '' TERM; touch {begun}; while :; do sleep 1; done"
    running = threading.Thread(target=group.attempt, args=(["sh", "-c", line],), daemon=True)
    running.start()
    while not begun.is_file():
        time.sleep(0.01)
    group.stop()
    running.join(100)
    assert not running.is_alive()


def test_a_disk_that_is_full_while_compiling(tmp_path: Path) -> None:
    said = "cat: write error: No space left on device"
    with raises(ForkError, match=f"^the disk is full at {tmp_path}"):
        errors(said, NamesForErrors(), tmp_path)
    with raises(ForkError, match="^the disk is full at /scratch/ccX.s"):
        errors(f"/scratch/ccX.s: {said.rpartition(': ')[2]}", NamesForErrors(), tmp_path)


@mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_no_compiler_is_left_behind(tmp_path: Path, by: signal.Signals) -> None:
    """Nor what its driver has started."""
    told = tmp_path / "told"
    line = f"sleep 600 & echo $$ $! > {told}.part; mv {told}.part {told}; wait"
    code = f"from fork.process import Together; Together().attempt(['sh', '-c', {line!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as tool:
        while not told.is_file():
            assert tool.poll() is None
            time.sleep(0.01)
        compilers = [int(word) for word in told.read_text().split()]
        assert all(map(running, compilers))
        tool.send_signal(by)
        tool.wait()
    until = time.monotonic() + 30
    while any(map(running, compilers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(running, compilers))


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_build_depends_on_each_file_of_the_tool_that_it_runs() -> None:
    """Else a change of one rebuilds nothing; what reads a branch is part of it."""
    code = "import sys, fork.engine.pipeline, fork.checkout.branch_to_stack\n"
    code += "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'fork'), sep='\\n')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {Path(file) for file in ran} <= set(tool_files()) and len(ran) > 30
