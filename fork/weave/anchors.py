"""Where the pieces of a fragment go in a file of PyTorch, as series.yaml says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RELATIONS = ("after", "before", "last", "replaces")


@dataclass(frozen=True)
class Place:
    """One spot in a container of the base: `after X`, `before X`, `last`, and for marked pieces `replaces X`."""

    relation: str
    target: str = ""

    def __str__(self) -> str:
        return f"{self.relation} {self.target}".rstrip()


@dataclass(frozen=True)
class Anchor:
    """Where the pieces of one fragment go.

    `places` maps a container of the base (a namespace, a dict, `file` for the file itself) to
    the places tried in turn. `container: piece` is the place of one piece whose neighbours are
    elsewhere in the container. `formerly` is the path that older releases have instead. `newer` are
    words of the fragment, each one of a list with commas, that go only where the base's file has them too.
    """

    places: Mapping[str, tuple[Place, ...]]
    formerly: str | None = None
    newer: tuple[str, ...] = ()

    @property
    def whole(self) -> str | None:
        """Where the stack's file takes the place of PyTorch's, the digest of the text that it replaces."""
        first = self.places.get("file", (Place("last"),))[0]
        return first.target if first.relation == "replaces" else None

    @classmethod
    def of(cls, rules: Mapping[str, Any]) -> Anchor:
        """The anchor that the rules of series.yaml describe."""
        places: dict[str, tuple[Place, ...]] = {}
        for container, spots in rules.items():
            if isinstance(spots, Mapping):
                places |= {f"{container}: {piece}": _places(where) for piece, where in spots.items()}
            elif container not in ("formerly", "newer"):
                places[str(container)] = _places(spots)
        return cls(places, rules.get("formerly"), tuple(rules.get("newer", "").split()))

    def served(self, fragment: str, base: str) -> str:
        """The fragment without the words that only newer bases have."""
        for word in self.newer:
            if not re.search(rf"\b{word}\b", base):
                fragment = re.sub(rf", {word}\b|\b{word}, ", "", fragment)
        return fragment


def _places(spots: str | list[str]) -> tuple[Place, ...]:
    return tuple(map(_place, [spots] if isinstance(spots, str) else spots))


def _place(text: str) -> Place:
    relation, _, target = text.partition(" ")
    if relation not in RELATIONS or bool(target) != (relation != "last"):
        raise ValueError(f"{text!r} is not a place: write after X, before X, replaces X or last")
    return Place(relation, target)
