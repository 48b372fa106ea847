"""Gives the local functions of an object second names, so that the base's copies can jump to them.

A table, such as a Python type, has the addresses of functions that no other source sees. In the base, such a function
is known by the name of its source and its own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fork.engine.binary.objects import LOCAL, Object, local, plain
from fork.engine.compile import toolchain
from fork.engine.compile.compiler import Unit


def file_of(unit: Unit) -> str:
    """What the base's libraries call the source of a unit."""
    return unit.path.rpartition("/")[2] + (f".{unit.capability}.cpp" if unit.capability else "")


def named(made: Path, unit: Unit) -> Path:
    """The same object with a second name for each of its local functions."""
    one = Object(made)
    counts = Counter(symbol.name for symbol in one.symbols if symbol)
    sections = Counter(one.section_names)
    file = file_of(unit)
    words: list[str] = []
    for symbol in one.symbols:
        if symbol is None or symbol.binding != LOCAL or symbol.data or counts[symbol.name] != 1:
            continue
        section = one.where.get(symbol.name, "")
        # The compiler numbers lambdas and what it has split, so a name can be that of another in the base.
        numbered = plain(symbol.name) != symbol.name or "Ul" in symbol.name
        if (
            (symbol.name.startswith("_Z") or unit.path.endswith(".c"))
            and section.startswith(".text.")
            and sections[section] == 1
            and not numbered
        ):
            words += ["--add-symbol", f"{local(file, symbol.name)}={section}:{symbol.value:#x},global,function"]
    return toolchain.copied(made, words) if words else made
