"""Leads a fork's libraries to what the base hides of what they use, and the base's copies of functions to the fork's.

A function or variable of the base's exists once in a process: if the fork had its own beside it, what one writes the
other would not read. Code calls such a function by a jump to its place in the base's library, and reaches a variable
by a table (GOT), where its address is put. A function that takes the place of the base's is jumped to, by whoever
reaches the base's own copy. The base's files stay as they are, since a process that writes to its copy of their code
has that copy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fork.engine.binary.libraries import Libraries
from fork.engine.binary.objects import Object, is_other
from fork.engine.compile import toolchain
from fork.engine.compile.compiler import Unit
from fork.engine.compile.flags import HIDING
from fork.engine.replace.search import Replacements

# The loader leaves the table of a library so linked as it can be written to.
WRITABLE = "-Wl,-z,norelro"


def led(
    replaced: Replacements, libraries: Libraries, groups: Sequence[Sequence[Object]]
) -> Iterator[tuple[list[Path], list[Unit]]]:
    """The files of each library's objects, libtorch.so's and torch._C's, and what leads them, to be compiled."""
    own = _defined(one for group in groups for one in group) - replaced.shared
    core = _defined(replaced.objects)
    for python, group in zip((False, True), groups):
        wanted = {name for one in group for name in (*one.undefined, *one.defined)} - own
        held = libraries.held((), wanted)
        names = sorted(name for name in wanted if not is_other(name))
        places = {name: place for name in names if (place := held.hides(name, python))}
        functions, variables = ({n: one for n, one in places.items() if one.data == data} for data in (False, True))
        jumping = _defined(replaced.python) - core if python else core
        copies = sorted((library, at, name) for name, library, at in replaced.jumps if name in jumping)
        lists = {
            "hidden": [f'{{"{place.library}", {place.offset}ul, nullptr}}' for place in functions.values()],
            "variables": [f'{{"{place.library}", {place.offset}ul, "{name}"}}' for name, place in variables.items()],
            "copies": [f'{{"{library}", {at}ul, fork_new_{n}}}' for n, (library, at, _) in enumerate(copies)],
        }
        text = [f'extern "C" const char fork_new_{n}[] asm("{name}");' for n, (_, _, name) in enumerate(copies)]
        text += [f'LEAD("{name}", {n})' for n, name in enumerate(functions)]
        text += [f"char* fork_places[{len(functions) + 1}];", "namespace {"]
        text += [f"std::vector<Place> {name}() {{ return {{{', '.join(rows)}}}; }}" for name, rows in lists.items()]
        # Each library of a fork has its own: the dynamic linker must not lead one's to the other's.
        whole = "\n".join([(toolchain.GLUE / "base.cpp").read_text(), *text, "}\n"])
        unit = Unit(f"glue/base_of_{'module' if python else 'torch'}.cpp", whole, own=True, words=(HIDING,))
        files = [_weakened(one, variables.keys() & one.undefined) for one in group]
        yield files, [unit] if any(lists.values()) else []


def _defined(objects: Iterable[Object]) -> set[str]:
    return {name for one in objects for name in one.defined}


def _weakened(one: Object, names: Iterable[str]) -> Path:
    """The same object, for whose use of these names the linker asks no definition."""
    words = [word for name in sorted(names) for word in ("--weaken-symbol", name)]
    return toolchain.copied(one.file, words) if words else one.file
