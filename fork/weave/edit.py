"""What a weaver fills: insertions into one base, and the anchors that were not found once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TypeVar

from fork.weave.file_kinds import Place

S = TypeVar("S")
T = TypeVar("T")

# What an inverse finds: the places that would serve for each piece of a container.
Spots = dict[tuple[str, str], tuple[Place, ...]]


@dataclass
class Edit:
    """Inserts, so that every byte of the base stays, in its order; only a marked piece may replace lines."""

    path: str
    base: str
    places: Mapping[str, tuple[Place, ...]]
    insertions: list[tuple[int, int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def insert(self, at: int, text: str, until: int = -1) -> None:
        """Puts a text there, or in the place of what the base has from there `until`."""
        self.insertions.append((at, max(at, until), text))

    def problem(self, what: str) -> None:
        self.problems.append(f"{self.path}: {what}")

    def has(self, container: str) -> bool:
        """Whether a container, or a piece of it, has an anchor."""
        return any(key == container or key.startswith(f"{container}: ") for key in self.places)

    def placed(
        self, container: str, pieces: Sequence[tuple[str, S]], find: Callable[[str], Sequence[T]]
    ) -> Iterator[tuple[list[S], bool, T | None]]:
        """The pieces that go to one place together, whether before what stands there, and this: see `choose`."""
        keyed: list[tuple[str, S]] = []
        for name, piece in pieces:
            own = f"{container}: {name}"
            keyed.append((own if own in self.places else container, piece))
        self.used |= {key for key, _ in keyed}
        for _, run in groupby(keyed, key=lambda one: self.places.get(one[0])):
            keys, together = zip(*run)
            if chosen := self.choose(keys[0], find):
                yield list(together), chosen[0].relation == "before", chosen[1]

    def choose(self, container: str, find: Callable[[str], Sequence[T]]) -> tuple[Place, T | None] | None:
        """The first place of a container that the base has, with what stands there.

        `last` names nothing, so it comes with None. A place found more than once,
        or none found at all, is a problem, and the answer is None.
        """
        places = self.places.get(container)
        self.used.add(container)
        if places is None:
            self.problem(f"{container!r} has no anchor")
            return None
        missed: list[tuple[str, int]] = []
        for place in places:
            hits = find(place.target) if place.target else [None]
            if len(hits) == 1:
                return place, hits[0]
            missed.append((f"'{place}'".replace("\n", " | "), len(hits)))
        twice = next((one for one in missed if one[1]), None)
        names, count = twice or (" or ".join(name for name, _ in missed), 0)
        nearest = None if twice else self._nearest(places[-1].target, find)
        advice = f" (did you mean {nearest!r}?)" if nearest else ""
        self.problem(f"anchor {names} in {container!r} found {count} times{advice}")
        return None

    def _nearest(self, target: str, find: Callable[[str], Sequence[T]]) -> str | None:
        """The name in the base that is most like `target` and would be found once."""
        if "\n" in target:
            return None
        names = {*re.findall(r"[\w.]+", self.base), *map(str.strip, self.base.splitlines())}
        close = difflib.get_close_matches(target, names, n=20)
        return next((name for name in close if len(find(name)) == 1), None)

    def result(self) -> str:
        """The base with the insertions; those at one spot keep the order they were made in."""
        text, end = [], 0
        for start, stop, addition in sorted(self.insertions, key=lambda insertion: insertion[0]):
            text += [self.base[end:start], addition]
            end = stop
        return "".join([*text, self.base[end:]])


def line_starts(text: str) -> list[int]:
    """Where each line begins, and where the text ends."""
    return [*accumulate(map(len, text.splitlines(keepends=True)), initial=0)]


def line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def next_line(text: str, at: int) -> int:
    """Where the line after the one that holds `at` begins."""
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def above_comments(text: str, at: int, marks: tuple[str, ...]) -> int:
    """The start of the line of `at`, or of the comment lines that stand directly above it."""
    start = line_start(text, at)
    while start:
        previous = line_start(text, start - 1)
        if not text[previous:start].lstrip().startswith(marks):
            break
        start = previous
    return start
