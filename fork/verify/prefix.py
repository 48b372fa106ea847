"""Builds one prefix of the stack and runs the tests that it ships, in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fork import process
from fork.buildable import refuse_unbuildable
from fork.checkout.operators import operators
from fork.digest import digest
from fork.engine.build import Build, environment, python_folder
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.engine.wheel import disk
from fork.engine.wheel.base import Base
from fork.errors import NothingToBuild
from fork.folders import BROUGHT
from fork.lock import alone
from fork.series import Commit, Series
from fork.verify import memory_of_tests as passing
from fork.weave.file_kinds import New

SUMMARY = re.compile(r"^(?:=*.*\d+ (?:passed|failed|errors?)\b.*|.* agrees? with .*)$", re.MULTILINE)
# What the tests of an operator run with.
SUITES = ("conftest.py", "suites/*.py")
# A test's name, its command, the folder that it runs in, and one name for all that it reads.
Test = tuple[str, list[str], Path, str]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Run:
    """One command of a prefix's tests: what it said last, and its seconds."""

    command: str
    said: str
    seconds: float
    passed: bool
    as_in: str = ""  # the commit in which it passed, where it did not run again

    def told(self) -> str:
        when = f"{self.seconds:.0f} s" if not self.as_in else f"as in {self.as_in}"
        return f"{self.command}: {self.said} ({when})"


@dataclass(frozen=True)
class Result:
    """The tests of one prefix on one release of torch."""

    torch: str
    runs: tuple[Run, ...]

    def summary(self) -> str:
        return "; ".join(run.told() for run in self.runs) or "no tests"


def results(series: Series, folder: Path, commit: Commit) -> Result | None:
    """What `build_and_test` found the last time, if it ran on this state."""
    file = folder / "check" / f"{commit.name}.json"
    if not file.is_file():
        return None
    data = json.loads(file.read_text())
    if data.get("files") != passing.contents(series.state(commit)).decode():
        return None
    return Result(data["torch"], tuple(Run(**run) for run in data["runs"]))


def build_and_test(series: Series, commit: Commit, folder: Path, everything: bool = False) -> Result:
    """Builds the fork where the prefix has anything that a wheel holds, then runs its test files and suites.

    One that passed, here or in another prefix, runs again where something that it reads is another, or all do.
    """
    with alone(folder / "check" / f"{commit.name}.lock", f"another check of {commit.name} is running"):
        base, state = bases.installed(), series.state(commit)
        # A prefix that changes nothing of a wheel runs on the base, even where a fork is installed beside it. Two
        # processes share the cores, and threads that wait must not spin. Tests about threads choose their number.
        threads = str(max(1, (os.cpu_count() or 1) // 2))
        variables = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": threads}
        variables |= os.environ | {"TORCH_FORK": str(base.site)}
        site = None
        with suppress(NothingToBuild):
            refuse_unbuildable(series, commit)
            build = Build(series, commit, base, "auto", folder)
            site = make(build).resolve()
            variables |= environment(site, python_folder(build.home, base.python) / "python")
        memory = folder / "check/passed.json"
        passed = json.loads(memory.read_text()) if memory.is_file() else {}
        runs = []
        for name, words, where, reads in _tests(series, commit, base, site, folder / "check" / commit.name):
            if reads in passed and not everything:
                runs.append(Run(name, passed[reads]["said"], 0, True, passed[reads]["commit"]))
                continue
            runs.append(_run(name, words, where, variables))
            if runs[-1].passed:
                passed[reads] = {"commit": commit.name, "said": runs[-1].said}
                disk.write(memory.parent, memory.name, json.dumps(passed, indent=1))
        result = Result(base.version, tuple(runs))
        record = json.dumps(asdict(result) | {"files": passing.contents(state).decode()}, indent=1)
        disk.write(folder / "check", f"{commit.name}.json", record)
        return result


def _tests(series: Series, commit: Commit, base: Base, site: Path | None, here: Path) -> Iterator[Test]:
    """The tests of a prefix, in a folder with its files, and the suites of its operators."""
    state, python = series.state(commit), str(base.python)
    pytest = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    machine, built = passing.machine(base), passing.built(site, base, state) if site else b""
    shutil.rmtree(here, ignore_errors=True)
    new = series.of_kind(state, New)
    for path, file in new.items():
        disk.write(here, path, file.read_bytes())
    for path, file in new.items():
        text, words = file.read_text(), [*pytest, path]
        if path.endswith(".md"):
            text = "\n".join(PYTHON_BLOCK.findall(text))
            words = [python, "-c", text]
        elif not re.fullmatch(r"test/(\w+/)*test_\w+\.py", path):
            continue
        if text:
            beside = passing.contents(passing.beside(series, state, text))
            called = built if passing.calls(series, state, text) else b""
            reads = digest(machine, repr(words[1:]).encode(), text.encode(), beside, called)
            yield f"the program in {path}" if path.endswith(".md") else path, words, here, reads
    for name in operators(series, commit) if series.operator_tests and site else []:
        command = f"{series.operator_tests} -k {name}"
        folder = tests_folder(series)
        files = [file for pattern in (str(series.operator_tests), *SUITES) for file in folder.glob(pattern)]
        suites = {str(file.relative_to(folder)): file for file in files}
        reads = digest(machine, command.encode(), passing.contents(suites), built)
        yield command, [*pytest, *command.split()], folder, reads


def tests_folder(series: Series) -> Path:
    """Where `operator_tests` is: in the stack's own folder, else with the tool, whose suites serve any operator."""
    return next((f for f in (series.root, BROUGHT) if (f / str(series.operator_tests)).is_file()), series.root)


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
