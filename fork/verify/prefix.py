"""Builds one prefix of the stack and runs the tests that it ships, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fork import process
from fork.engine import base as bases
from fork.engine.digest import digest
from fork.engine.fork import Fork, environment, python_folder
from fork.engine.pipeline import build
from fork.lock import alone
from fork.places import BROUGHT
from fork.series import NATIVE_FUNCTIONS, Commit, Series

SUMMARY = re.compile(r"^(?:=*.*\d+ (?:passed|failed|errors?)\b.*|.* agrees? with .*)$", re.MULTILINE)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Run:
    """One command of a prefix's tests: what it said last, and its seconds."""

    command: str
    said: str
    seconds: float
    passed: bool


@dataclass(frozen=True)
class Result:
    """The tests of one prefix on one release of torch."""

    commit: str
    torch: str
    runs: tuple[Run, ...]

    def summary(self) -> str:
        return "; ".join(f"{r.command}: {r.said} ({r.seconds:.0f} s)" for r in self.runs) or "no tests"


def results(series: Series, folder: Path, commit: Commit) -> Result | None:
    """What `build_and_test` found the last time, if it ran on this state."""
    file = folder / "check" / f"{commit.name}.json"
    if not file.is_file():
        return None
    data = json.loads(file.read_text())
    if data.get("files") != _content(series, commit):
        return None
    return Result(data["commit"], data["torch"], tuple(Run(**run) for run in data["runs"]))


def build_and_test(series: Series, commit: Commit, folder: Path) -> Result:
    """Builds the fork where the prefix has native functions, then runs its test files and suites."""
    with alone(folder / "check" / f"{commit.name}.lock", f"another check of {commit.name} is running"):
        return _build_and_test(series, commit, folder)


def _build_and_test(series: Series, commit: Commit, folder: Path) -> Result:
    base = bases.installed()
    state = series.state(commit)
    # A prefix that changes nothing of a wheel runs on the base, even where a fork is installed beside it. Threads that
    # wait must not spin: two processes share the cores.
    variables = {"OMP_WAIT_POLICY": "passive"} | os.environ | {"TORCH_FORK": str(base.site)}
    python = str(base.python)
    pytest = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    commands: list[tuple[str, list[str], Path]] = []
    here = folder / "check" / commit.name
    shutil.rmtree(here, ignore_errors=True)
    for path, file in state.items():
        if path in series.anchors:
            continue
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(file.read_bytes())
        if re.fullmatch(r"test/test_\w+\.py", path):
            commands.append((path, [*pytest, path], here))
        program = "\n".join(PYTHON_BLOCK.findall(file.read_text())) if path.endswith(".md") else ""
        if program:
            commands.append((f"the program in {path}", [python, "-c", program], here))
    if any(base.wheel_path(path) or path == NATIVE_FUNCTIONS for path in state):
        fork = Fork(series, commit, base, "auto", folder)
        variables |= environment(build(fork).resolve(), python_folder(fork.home, base.python) / "python")
        for name in series.operators(commit) if series.operator_tests and NATIVE_FUNCTIONS in state else []:
            command = f"{series.operator_tests} -k {name}"
            commands.append((command, [*pytest, *command.split()], tests_folder(series)))
    runs = tuple(_run(name, words, cwd, variables) for name, words, cwd in commands)
    result = Result(commit.name, base.version, runs)
    record = json.dumps(asdict(result) | {"files": _content(series, commit)}, indent=1)
    written = folder / "check" / f"{commit.name}.new"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(record)
    written.replace(written.with_suffix(".json"))
    return result


def tests_folder(series: Series) -> Path:
    """Where `operator_tests` is: in the stack's own folder, else with the tool, whose suites serve any operator."""
    return next((f for f in (series.root, BROUGHT) if (f / str(series.operator_tests)).is_file()), series.root)


def _content(series: Series, commit: Commit) -> str:
    """One name for all files of a state."""
    return digest(
        *(part for path, file in sorted(series.state(commit).items()) for part in (path.encode(), file.read_bytes()))
    )


def _run(name: str, words: list[str], cwd: Path, variables: dict[str, str]) -> Run:
    start = time.monotonic()
    done = process.attempt(words, cwd=cwd, env=variables)
    output = done.stdout + done.stderr
    said = ", ".join(match.strip("= ") for match in SUMMARY.findall(output)[-1:]) or "said nothing"
    if done.returncode:
        # Tests that a signal ends, or that cannot begin, have no last line of their own.
        said = said if SUMMARY.search(output) else process.reason(done).splitlines()[0]
        print(output[-8000:], file=sys.stderr)
    return Run(name, said, round(time.monotonic() - start, 1), done.returncode == 0)
