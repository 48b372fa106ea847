"""`python -m checks.mutants [WORD ...]`: each mutant of the table makes its test fail, in a copy of the project."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from checks import ROOT
from checks.mutants.mutant import Mutant, fill, mutated, project, table, with_switches
from fork.arguments import Parser, status
from fork.engine.wheel import base as bases
from fork.errors import ForkError

COPY = ROOT / "build/mutants"


def copy(mutants: Sequence[Mutant]) -> None:
    """Brings the copy of the project up to date, with every mutation behind its switch."""
    contents = project()
    for file, group in groupby(mutants, lambda mutant: mutant.file):
        here = list(group)
        text = contents[file].decode()
        if here[0].switched:
            contents[file] = with_switches(text, here).encode()
        for mutant in here:
            mutant.place(text)
    fill(COPY, contents)


def tool(*words: str | Path) -> int:
    """The status of a command of this project's tool on the copy, which installs nothing."""
    command = [sys.executable, "-m", "fork", "--root", COPY, *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_WAIT_POLICY": "passive"}).returncode


def changed_text(mutant: Mutant) -> bool:
    """Tries a mutant that has no switch; says how its test ends."""
    file, text = COPY / mutant.file, (COPY / mutant.file).read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-x", mutant.test]
    variables = os.environ | {"TORCH_FORK": str(bases.installed().site)}
    try:
        file.write_text(mutated(text, mutant))
        failing = subprocess.run(command, cwd=COPY, env=variables, capture_output=True).returncode
        file.write_text(text)
        passing = subprocess.run(command, cwd=COPY, env=variables, capture_output=True).returncode
    finally:
        file.write_text(text)
    killed = failing == 1 and passing == 0  # 1 says that a test failed, more that none ran
    found = mutant.test if killed else f"{mutant.test} ends with {failing}, and with {passing} without it"
    print(f"{'killed' if killed else 'WRONG '} {mutant.name}: {found}", flush=True)
    return killed


def run(mutants: Sequence[Mutant]) -> bool:
    """Whether every mutant is killed by its test."""
    copy(table())
    switched = [mutant for mutant in mutants if mutant.switched]
    killed = True
    if switched:
        if tool("build", "--cuda", "off"):
            raise ForkError("the copy with the switches does not build: is each `old` and `new` an expression?")
        trial = ["env", "-C", str(COPY), "python", "-m", "checks.mutants.trial", *(m.name for m in switched)]
        killed = tool("run", "--cuda", "off", "--", *trial) == 0
    return all([killed, *(changed_text(mutant) for mutant in mutants if not mutant.switched)])


def main() -> int:
    parser = Parser(prog="python -m checks.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a part of a mutant's name or file; default: all")
    words = parser.parse_args().words
    start = time.monotonic()
    chosen = [m for m in table() if not words or any(word in f"{m.file} {m.name}" for word in words)]
    if not chosen:
        raise ForkError(f"no mutant has {' or '.join(words)} in its name: see checks/mutants/table.yaml")
    killed = run(chosen)
    minutes = (time.monotonic() - start) / 60
    print(f"{'none' if killed else 'SOME'} of {len(chosen)} mutants survived its test ({minutes:.1f} minutes)")
    return 0 if killed else 1


if __name__ == "__main__":
    sys.exit(status("checks.mutants", main))
