"""Makes the base's own copy of a function jump to the fork's, so that whoever reaches it runs the branch's text.

Exported or hidden, called directly or by a pointer: no caller has to be compiled. The base's files stay as they are,
since a process that writes to its copy of their code has that copy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fork.engine.binary.libraries import LATE, Held, Place
from fork.engine.binary.objects import LOCALS, Object, plain
from fork.engine.compile import toolchain

NEAR = 5  # bytes of a jump over at most 2 GiB


def can_jump(one: Object, name: str, held: Held) -> bool:
    """Whether every copy that the base has of a function of this object has room, and no other function's name."""
    places = held.places.get(name)
    if name.startswith(LOCALS) and len(places or ()) != 1:
        return False  # of two files of one name
    return bool(places) and not one.defined[name].data and all(_has_room(one, name, place) for place in places or ())


def _has_room(one: Object, name: str, place: Place) -> bool:
    # Where the compiler folded equal functions, the branch may have made them unlike.
    same = (plain(twin) == plain(name) or one.places.get(twin) == one.places[name] for twin in place.twins)
    return place.room >= NEAR and place.library not in LATE and all(same)


def jumping(places: Mapping[str, set[Place]], work: Path) -> Path:
    """An object that makes the base's copies of these functions jump, when the library that has it is loaded."""
    copies = [(name, place) for name in places for place in places[name]]
    copies.sort(key=lambda copy: (copy[1].library, copy[1].offset, copy[0]))
    known = {name: n for n, name in enumerate(dict.fromkeys(name for name, _ in copies))}
    declared = "".join(f'extern "C" const char fork_new_{n}[] asm("{name}");\n' for name, n in known.items())
    rows = "".join(f'    {{"{place.library}", {place.offset}ul, fork_new_{known[name]}}},\n' for name, place in copies)
    text = f"{declared}const Copy fork_copies[] = {{\n{rows}}};\nconst size_t fork_copy_count = {len(copies)};\n"
    return toolchain.glued(work, "jumps", text)
