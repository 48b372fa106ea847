"""Small C++ programs that ask the stack's headers: compiled once for their text, they answer lines of numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from bench.machine import ROOT
from fork import process
from fork.engine.compile import toolchain

CPU = ROOT / "aten/src/ATen/native/cpu"


def ask(program: str, header: str, questions: Sequence[Sequence[object]]) -> list[list[str]]:
    """The words of the line that `program`, which includes a header of the CPU kernels, prints for each question."""
    lines = "\n".join(" ".join(map(str, question)) for question in questions)
    built = _built(program, (CPU / header).read_text())
    command = f"echo '{lines}' | timeout 100 {built}"
    said = process.run(["/bin/sh", "-c", command], f"the program of {header} does not run")
    return [line.split() for line in said.splitlines()]


@cache
def _built(program: str, header: str) -> Path:
    made_of = f"{header}{program}{torch.__version__}{torch.__file__}"
    made = ROOT / f"build/programs/{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        source, part = made.with_suffix(".cpp"), made.with_suffix(".part")
        source.write_text(program)
        base = Path(torch.__file__).parent
        includes = [f"-I{ROOT / 'aten/src'}", "-isystem", str(base / "include")]
        libraries = [f"-L{base / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{base / 'lib'}"]
        command = [str(toolchain.cxx()), "-std=c++20", "-fopenmp", *includes, str(source), *libraries, "-o", str(part)]
        process.run(command, f"{source.name} does not compile")
        part.replace(made)
    return made
