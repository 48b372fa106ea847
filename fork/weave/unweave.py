"""Finds the fragment and the anchor that turn a file of the base into a branch's, and proves it by weaving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

import yaml

from fork.cpp.difference import hunks
from fork.errors import ForkError
from fork.tree import HEADERS, KERNEL, SOURCES
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import cpp_inverse, lines, pieces, python_inverse, weave, yamls
from fork.weave.edit import Spots
from fork.weave.file_kinds import Fragment, Place

# What PyTorch's own libraries are made of: a wheel has their machine code, so only whole additions can join it.
OF_ITS_OWN = (*SOURCES, KERNEL, ".mm")
COMPILED = (*OF_ITS_OWN, *HEADERS, ".metal")
LISTS = (NATIVE_FUNCTIONS, "tools/autograd/derivatives.yaml")

Inverse = Callable[[str, str], tuple[str, Spots] | None]
INVERSES: Mapping[str, Inverse] = {
    ".yaml": yamls.unweave,
    ".py": python_inverse.unweave,
    ".bzl": python_inverse.unweave,
    **dict.fromkeys((".h", ".cpp", ".cu", ".cuh"), cpp_inverse.unweave),
}


def unweave(path: str, base: str, states: Sequence[str]) -> tuple[list[str], Fragment] | None:
    """A fragment for each state of a file, and one anchor for all; None where only other lines would give them.

    First by the structure of the file, then by its lines; whatever is found has been woven back.
    """
    if path.endswith(COMPILED) and any(reasons(path, base, state) for state in states):
        return None
    by_structure = INVERSES.get(PurePosixPath(path).suffix, lines.unweave)
    for inverse in (by_structure, _by_lines(path)):
        found = [inverse(base, state) for state in states]
        fragments = [result[0] for result in found if result is not None]
        spots = _merged([result[1] for result in found if result is not None])
        if len(fragments) < len(states) or spots is None:
            continue
        anchor = _proven(path, base, list(zip(fragments, states)), spots)
        if anchor is not None:
            return fragments, anchor
    return None


def _by_lines(path: str) -> Inverse:
    numbers: dict[tuple[Place, ...], int] = {}

    def number(places: tuple[Place, ...]) -> int:
        return numbers.setdefault(places, len(numbers) + 1)

    suffix = PurePosixPath(path).suffix
    if path in LISTS:
        return lambda base, woven: _whole_entries(pieces.unweave(base, woven, number, "# {}"))
    if suffix in (".cpp", ".cu", ".cuh", ".h"):
        return lambda base, woven: cpp_inverse.by_lines(base, woven, number)
    return lambda base, woven: pieces.unweave(base, woven, number, pieces.SIGNS.get(suffix, "# {}"))


def _whole_entries(found: tuple[str, Spots]) -> tuple[str, Spots] | None:
    """A list's fragment is read by PyTorch's generators too, so it has to be a list itself."""
    held = all(_is_list(piece[2]) for piece in pieces.MARK.finditer(found[0]))
    replaces = any(place.replaces for places in found[1].values() for place in places)
    return found if held and not replaces else None


def _is_list(text: str) -> bool:
    try:
        return isinstance(yaml.safe_load(text), list | None)
    except yaml.YAMLError:
        return False


def _merged(found: Sequence[Spots]) -> Spots | None:
    """The places of all states; None where they want one piece at two of them."""
    merged: Spots = {}
    for spots in found:
        for key, places in spots.items():
            here = tuple(place for place in merged.get(key, places) if place in places)
            if not here:
                return None
            merged[key] = here
    return merged


def _proven(path: str, base: str, states: list[tuple[str, str]], spots: Spots) -> Fragment | None:
    """The anchor with all places that give every state, byte for byte."""

    def gives(n: int) -> bool:
        anchor = Fragment(_shared({key: (places[n],) for key, places in spots.items()}))
        try:
            return all(weave(path, base, fragment, anchor) == state for fragment, state in states)
        except ForkError:
            return False

    fits = [n for n in (0, -1) if gives(n)]
    chosen = {key: tuple(dict.fromkeys(places[n] for n in fits)) for key, places in spots.items()}
    return Fragment(_shared(chosen)) if fits else None


def _shared(spots: Spots) -> dict[str, tuple[Place, ...]]:
    """The anchor's places: one for a container whose pieces all go to one spot, else one for each piece."""
    containers: dict[str, set[tuple[Place, ...]]] = {}
    for (container, _), places in spots.items():
        containers.setdefault(container, set()).add(places)
    return {
        container if len(containers[container]) == 1 else f"{container}: {piece}": places
        for (container, piece), places in spots.items()
    }


def reasons(path: str, base: str, woven: str) -> list[tuple[int, str]]:
    """Why `unweave` found nothing: lines of the branch, each with what it does; none where all could be told."""
    if path.endswith(COMPILED):
        return cpp_inverse.changes(base, woven, path.endswith(OF_ITS_OWN)).others
    old, new = base.splitlines(), woven.splitlines()
    found = hunks(old, new)
    changed = [(min(c + 1, len(new)), f"changes or removes `{old[a].strip()}`") for a, b, c, _ in found if a < b]
    inside = [(c, new[c]) for _, _, c, d in found if not _is_list("\n".join(new[c:d]))]
    return changed or [(c + 1, f"adds `{line.strip()}` to an entry") for c, line in inside]


def additions(path: str, base: str, woven: str) -> str:
    """The base with what a branch added to it, as far as a wheel can take that, and nothing that the branch changed."""
    if path in LISTS:
        found = yamls.unweave(base, woven)
        if found is None or not found[1]:
            return base
        first = {key: places[:1] for key, places in found[1].items()}
        return weave(path, base, found[0], Fragment(_shared(first)))
    gains = cpp_inverse.changes(base, woven, path.endswith(OF_ITS_OWN)).gains if path.endswith(COMPILED) else []
    for gain in reversed(gains):
        base = base[: gain.at] + gain.text + base[gain.at :]
    return base
