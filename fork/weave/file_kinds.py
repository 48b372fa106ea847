"""The kinds of files in a stack: new ones, fragments with their places in PyTorch's files, and what replaces those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RELATIONS = ("after", "before", "last", "replaces")


@dataclass(frozen=True)
class Place:
    """One spot in a container of the base: `after X`, `before X`, `last`, and for marked pieces `replaces X`."""

    relation: str
    target: str = ""

    @property
    def replaces(self) -> bool:
        return self.relation == "replaces"

    def __str__(self) -> str:
        return f"{self.relation} {self.target}".rstrip()


def beside(above: Sequence[str], below: Sequence[str]) -> tuple[Place, ...]:
    """Behind the last of the one or before the first of the other, of those that have a name; else the end."""
    near = [("after", target) for target in above[-1:]] + [("before", target) for target in below[:1]]
    return tuple(Place(relation, target) for relation, target in near if target) or (Place("last"),)


@dataclass(frozen=True)
class Held:
    """A file of a state that lies in no folder of its own: what it holds, and the one that somebody edits."""

    content: bytes = field(repr=False)
    place: Path

    def read_bytes(self) -> bytes:
        return self.content

    def read_text(self) -> str:
        return self.content.decode(errors="surrogateescape")


File = Path | Held


def edited(file: File) -> Path:
    """The file that somebody edits."""
    return file.place if isinstance(file, Held) else file


@dataclass(frozen=True)
class New:
    """A file that PyTorch does not have."""


@dataclass(frozen=True)
class Whole:
    """A file that takes the place of PyTorch's, of which this is the text where a branch began."""

    start: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.start.decode(errors="surrogateescape")


@dataclass(frozen=True)
class Fragment:
    """Text that is woven into PyTorch's file, and the anchor of its pieces there.

    `places` maps a container of the base (a namespace, a dict, `file` for the file itself) to
    the places tried in turn. `container: piece` is the place of one piece whose neighbours are
    elsewhere in the container. `older_path` is the path that older releases have instead. `only_if_base_has` are
    words of the fragment, each one of a list with commas, that go only where the base's file has them too.
    """

    places: Mapping[str, tuple[Place, ...]]
    older_path: str | None = None
    only_if_base_has: tuple[str, ...] = ()

    def served(self, text: str, base: str) -> str:
        """The fragment's text without the words that only newer bases have."""
        for word in self.only_if_base_has:
            if not re.search(rf"\b{word}\b", base):
                text = re.sub(rf", {word}\b|\b{word}, ", "", text)
        return text


Kind = New | Fragment | Whole


def anchored(rules: Mapping[str, Any]) -> Fragment:
    """The kind of a file that has these rules below `anchors` in series.yaml."""
    places: dict[str, tuple[Place, ...]] = {}
    for container, spots in rules.items():
        if isinstance(spots, Mapping):
            places |= {f"{container}: {piece}": _places(where) for piece, where in spots.items()}
        elif container not in ("older_path", "only_if_base_has"):
            places[str(container)] = _places(spots)
    return Fragment(places, rules.get("older_path"), tuple(rules.get("only_if_base_has", "").split()))


def _places(spots: str | list[str]) -> tuple[Place, ...]:
    return tuple(map(_place, [spots] if isinstance(spots, str) else spots))


def _place(text: str) -> Place:
    relation, _, target = text.partition(" ")
    if relation not in RELATIONS or bool(target) != (relation != "last"):
        raise ValueError(f"{text!r} is not a place: write after X, before X, replaces X or last")
    return Place(relation, target)
