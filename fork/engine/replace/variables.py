"""Lets compiled sources use the base's own variables and tables, where the base hides them.

A variable of a header exists once in a process: if the fork had its own beside the base's, what one writes the other
would not read. The sources reach such a variable by a table (GOT), and there its address is put.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from fork import process
from fork.digest import digest
from fork.engine.binary.callers import Place
from fork.engine.compile import toolchain


def sharing(places: Mapping[str, Place], work: Path) -> Path:
    """An object that leads the library that has it to these variables of the base."""
    rows = "".join(
        f'    {{"{name}", "{place.library}", {place.offset}ul}},\n' for name, place in sorted(places.items())
    )
    text = f"const Variable fork_variables[] = {{\n{rows}}};\nconst size_t fork_variable_count = {len(places)};\n"
    return toolchain.glued(work, "variables", text)


def weakened(file: Path, names: Collection[str], work: Path) -> Path:
    """The same object, for whose use of these names the linker asks no definition."""
    words = [word for name in sorted(names) for word in ("--weaken-symbol", name)]
    made = work / f"weak-{digest(file.read_bytes(), ' '.join(words).encode())}.o"
    if not made.is_file():
        part = made.with_suffix(".part.o")
        process.run([toolchain.which("objcopy"), *words, file, part], f"{file.name} cannot be copied")
        part.replace(made)
    return made
