"""Tells which lines of a branch no compiler reads: those below an `#if` that does not hold in the wheel's build."""

from __future__ import annotations

from dataclasses import replace

from fork.cpp.difference import hunks
from fork.cpp.scan import scan, spliced
from fork.engine.compile.compiler import Compiler
from fork.tree import HEADERS

MARK = "#pragma fork_reads"


def lines_not_compiled(compiler: Compiler, path: str, before: str, after: str) -> list[tuple[int, str]]:
    """The first line of each change that is not read, and the directive that leaves it out."""
    there = scan(after)
    places: list[tuple[int, int, str]] = []
    for _, _, c, d in hunks(before.splitlines(), after.splitlines()):
        # What is removed stood behind the line before.
        lines = [n for n in range(c, d) if there.bare[slice(*there.lines[n : n + 2])].strip()] or [c - 1] * (c == d > 0)
        for n in lines[:1]:
            if conditions := there.conditions(there.lines[n]):
                innermost = conditions[-1]
                places.append((n + 1, innermost.end, there.said(innermost.start, innermost.end)))
    if not places:
        return []
    marks = sorted((at, at, f"{MARK} {number};\n") for number, (_, at, _) in enumerate(places))
    units = compiler.units(path, spliced(after, marks))
    if path.endswith(HEADERS):  # sources for the GPU may read it too
        units += [replace(unit, words=(*unit.words, *compiler.of_gpu)) for unit in units]
    said = [compiler.preprocessed(unit) for unit in units]
    if not all(said):
        return []
    return [
        (line, directive)
        for number, (line, _, directive) in enumerate(places)
        if not any(f"{MARK} {number};" in one for one in said)
    ]
