"""Reads what a compiler or a linker says: each error once, by the file that somebody edits, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fork import process
from fork.errors import ForkError

MISSED = re.compile(r"was not declared in|has not been declared|is not a member of|undeclared identifier")
REMEDY = "; of PyTorch's file only this fragment is compiled: put your function into a new file, with what it calls"
# at::sigmoid without its header, as GCC and as clang say it.
OPERATOR = re.compile(r"['‘](\w+)['’] is not a member of ['‘]at['’]|no member named '(\w+)' in namespace 'at'")
# Where a linker found what refers to a name: in which of an object's many sections.
SECTION = re.compile(r":\(\.[^()]*\)(?=: undefined reference)")
MISSING = re.compile(r"undefined reference to .at::native::(\w+)")
UNKNOWN = re.compile(r"undefined reference to [`'‘](.+)['’]")
NOWHERE = "which neither the branch nor the installed torch defines: define it, or rebase the branch onto the release"
DOUBLE = re.compile(r"multiple definition of [`'‘](.+?)['’]")
# How nvcc's front end tells an error.
NVCC = re.compile(r"^(\S.*)\((\d+)\): (?:catastrophic )?error[^:\n]*:", re.MULTILINE)
# The line of the source that a compiler shows below an error, and the line that points into it.
QUOTED = re.compile(r" +\d* \| ")
# Where the compiler reads a unit, below the path that it has in PyTorch.
UNIT = re.compile(r"^units(?:\.\w+)?/")
ERROR = re.compile(r":\d+: .*\berror\b.*:|undefined reference|multiple definition|:\d+: .*\berror:")


@dataclass(frozen=True)
class Said:
    """One error, and the lines of the source below it."""

    error: str
    quoted: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamesForErrors:
    """By which names errors are told: of a file that the compiler read, the one that somebody edits; and, by kernel,
    the line of the list of operators that names it. `fragments` are compiled without the rest of their file."""

    files: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    fragments: frozenset[str] = frozenset()


def errors(said: str, names: NamesForErrors, folder: Path) -> list[Said]:
    """The errors among these words of a program that ran in a folder, in their order, each once."""
    if process.DISK_FULL in said:
        place = re.search(rf"(/[^:\n]*): {process.DISK_FULL}", said)  # a compiler's temporary file lies elsewhere
        raise ForkError(f"the disk is full at {place[1] if place else folder}: free some space and try again")
    found: dict[str, tuple[str, ...]] = {}
    for error, quoted in _read(NVCC.sub(r"\1:\2: error:", said)):
        found.setdefault(_told(error, names, folder), quoted)
    return [Said(error, quoted) for error, quoted in found.items()]


def _read(said: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    lines = said.splitlines()
    for n, line in enumerate(lines):
        if ERROR.search(line) and not QUOTED.match(line):
            end = next((m for m in range(n + 1, len(lines)) if not QUOTED.match(lines[m])), len(lines))
            yield line.strip(), tuple(lines[n + 1 : end])


def _told(error: str, names: NamesForErrors, folder: Path) -> str:
    """The same error, by the name of the file that somebody edits, with a remedy where one is known."""
    place, colon, rest = SECTION.sub("", error).partition(":")
    place = UNIT.sub("", place.removeprefix(f"{folder}/"))
    missed = MISSING.search(rest)
    if missed and missed[1] in names.kernels:
        return f"{names.kernels[missed[1]]} names at::native::{missed[1]}, which no source defines"
    if double := DOUBLE.search(error):
        return f"more than one object defines `{double[1]}`: a source of kernels is compiled for each instruction set"
    edited = names.files.get(place, place)
    if unknown := UNKNOWN.search(rest):
        return f"{edited} uses `{unknown[1]}`, {NOWHERE}"
    remedy = REMEDY if place in names.fragments and MISSED.search(rest) else ""
    if found := OPERATOR.search(rest):
        header = f"#include <ATen/ops/{found[1] or found[2]}.h>"
        remedy = f"; PyTorch has no such operator, or the file lacks its `{header}`"
    return edited + colon + rest + remedy
