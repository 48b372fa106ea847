"""`python -m checks.processors [ROW ...]`: the numerics of PR 4 on emulated processors and under other settings.

Every row of the table is one processor or setting. The tests of a file run in one process, as long as the row may take.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import commit, processor
from checks import ROOT
from checks.built import built
from checks.processors.rows import NEVER, NUMERICS, Row, quick, rows
from fork import process
from fork.arguments import Parser, status
from fork.engine.build import environment

QEMU = "qemu-x86_64"
MKL = {"Intel(R) Architecture processors": "any processor"}


@dataclass
class Outcome:
    """How the tests of a row ended, and what was wrong with the row itself."""

    row: Row
    reached: str = ""
    tests: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def named(self, end: str) -> list[str]:
        return sorted(name for name, how in self.tests.items() if how == end)

    @property
    def failed(self) -> dict[str, str]:
        return {name: how for name, how in self.tests.items() if how not in ("passed", "skipped", "left out")}

    @property
    def right(self) -> bool:
        return not self.failed and not self.broken and bool(self.named("passed"))

    def cells(self) -> list[str]:
        counts = (len(self.named("passed")), len(self.failed), len(self.named("skipped")), len(self.named("left out")))
        return [f"`{self.row.name}`", self.reached, *map(str, counts), f"{self.seconds:.0f} s"]


def start(row: Row, path: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the worker printed until it ended, or until its time was up, which is no failure."""
    command = [sys.executable, "-m", "checks.processors.worker", path, NEVER, *row.tests[path]]
    variables = {**variables, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **row.variables}
    with subprocess.Popen(
        [QEMU, "-cpu", row.emulated, *command] if row.emulated else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=variables,
        start_new_session=True,
        preexec_fn=process.die_with_parent,
    ) as worker:
        try:
            output, errors = worker.communicate(timeout=row.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            return subprocess.CompletedProcess(command, 0, *worker.communicate())
    return subprocess.CompletedProcess(command, worker.returncode, output, errors)


def outcome(row: Row, files: Sequence[subprocess.CompletedProcess[str]], seconds: float) -> Outcome:
    """Joins the files of a row, and asks whether they reached what it names."""
    found = Outcome(row, seconds=seconds)
    for file in files:
        if file.returncode:
            found.broken.append(process.reason(without_warnings(file)))
            continue
        told = [json.loads(line) for line in re.findall(r'^{"(?:capability|test)".*}$', file.stdout, re.MULTILINE)]
        tests = {line["test"]: line["ended"] for line in told[1:]}
        if "passed" not in tests.values():
            found.broken.append(f"no test of a file passed within {row.seconds} s: is the machine busy?")
        for line in told[:1]:
            found.tests |= dict.fromkeys(line["tests"], "left out") | tests
            found.reached = reached(line, file.stdout)
        if row.reaches not in found.reached:
            found.broken.append(f"the row is of {row.reaches}, but it reached {found.reached}")
    return found


def without_warnings(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Without what qemu says of every instruction that it leaves out."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith(f"{QEMU}: warning: ")]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "\n".join(lines))


def reached(told: dict[str, object], output: str) -> str:
    """ATen's capability, the threads, and for which instructions MKL and oneDNN say that they run."""
    said = [f"ATen {told['capability']}", f"{told['threads']} threads"]
    if mkl := re.search(r"^MKL_VERBOSE .* architecture (.*?),", output, re.MULTILINE):
        name = re.search(r"\(Intel\(R\) (.*?)\)", mkl[1])
        said.append(f"MKL {name[1] if name else MKL.get(mkl[1], mkl[1])}")
    if onednn := re.search(r"^onednn_verbose.*,cpu,isa:(.*)$", output, re.MULTILINE):
        said.append(f"oneDNN {onednn[1]}")
    return ", ".join(said)


def run(chosen: Sequence[Row], at_once: int) -> list[Outcome]:
    """The outcomes of the rows; `at_once` of their files run at the same time."""
    site = built()
    variables = environment(site.resolve(), Path(sys.executable))

    def timed(row: Row, path: str) -> tuple[subprocess.CompletedProcess[str], float]:
        began = time.monotonic()
        return start(row, path, variables), time.monotonic() - began

    outcomes = []
    print(
        "| where | what torch, MKL and oneDNN say | passed | failed | skipped | left out | time |\n"
        + "| --- " * 7
        + "|"
    )
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [[pool.submit(timed, row, path) for path in row.tests] for row in chosen]
        for row, files in zip(chosen, waiting):
            ended = [file.result() for file in files]
            outcomes.append(outcome(row, [done for done, _ in ended], max(seconds for _, seconds in ended)))
            print("| " + " | ".join(outcomes[-1].cells()) + " |", flush=True)
            for name, how in outcomes[-1].failed.items():
                print(f"{name}:\n{how}", flush=True)
            if names := outcomes[-1].named("left out"):
                print(f"{row.name}, left out for time: {left_out(names, outcomes[-1].tests)}", flush=True)
            for sentence in outcomes[-1].broken:
                print(f"{row.name}: {sentence}", flush=True)
    return outcomes


def left_out(names: Iterable[str], of: Iterable[str]) -> str:
    """Tests by the functions that define them, with how many of each one's cases."""
    written = {name for path in NUMERICS for name in re.findall(r"def (test_\w+)\(", (ROOT / path).read_text())}

    def function(name: str) -> str:
        test = name.partition(".")[2]
        return max((known for known in written if test.startswith(known)), key=len, default=test)

    total = Counter(map(function, of))
    return ", ".join(f"{name} ({count} of {total[name]})" for name, count in Counter(map(function, names)).items())


def lacks(row: Row) -> str:
    """What this machine lacks for a row, if anything."""
    if not row.emulated:
        return ""
    if platform.machine() != "x86_64":
        return "an x86-64 processor"
    return "" if shutil.which(QEMU) else QEMU


def main() -> int:
    parser = Parser(prog="python -m checks.processors", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a part of a row's name, such as qemu or OMP")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    parser.add_argument("--quick", action="store_true", help="the part that `make test-all` runs")
    options = parser.parse_args()
    every = quick() if options.quick else rows()
    chosen = [row for row in every if not options.rows or any(word in row.name for word in options.rows)]
    if unknown := [word for word in options.rows if not any(word in row.name for row in every)]:
        parser.error(f"no row has {unknown[0]!r} in its name: `--list` prints them")
    if options.list:
        print("\n".join(row.name for row in chosen))
        return 0
    absent = {row.name: what for row in chosen if (what := lacks(row))}
    for name, what in absent.items():
        print(f"Not tested: {name}: this was not found: {what}. See guide/reliability.md.", flush=True)
    began = time.monotonic()
    outcomes = run([row for row in chosen if row.name not in absent], min(2, os.cpu_count() or 1))
    minutes = (time.monotonic() - began) / 60
    wrong = [o.row.name for o in outcomes if not o.right]
    where = f"{processor()}, {os.cpu_count()} processors, commit {commit()}"
    how = f"wrong: {', '.join(wrong)}" if wrong else "none wrong"
    print(f"{len(outcomes)} rows in {minutes:.1f} minutes on {where}: {how}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(status("checks.processors", main))
