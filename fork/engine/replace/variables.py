"""Lets compiled sources use the base's own variables and tables, where the base hides them.

A variable of a header exists once in a process: if the fork had its own beside the base's, what one writes the other
would not read. The sources reach such a variable by a table (GOT), and there its address is put.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from fork.engine.binary.libraries import Place
from fork.engine.compile import toolchain

# The loader leaves the table of a library so linked as it can be written to.
WRITABLE = "-Wl,-z,norelro"


def sharing(places: Mapping[str, Place], work: Path) -> Path:
    """An object that leads the library that has it to these variables of the base."""
    rows = "".join(
        f'    {{"{name}", "{place.library}", {place.offset}ul}},\n' for name, place in sorted(places.items())
    )
    text = f"const Variable fork_variables[] = {{\n{rows}}};\nconst size_t fork_variable_count = {len(places)};\n"
    return toolchain.glued(work, "variables", text)


def weakened(file: Path, names: Collection[str]) -> Path:
    """The same object, for whose use of these names the linker asks no definition."""
    return toolchain.copied(file, [word for name in sorted(names) for word in ("--weaken-symbol", name)])
