"""Reads a stack: its PRs in order, the files each one holds, and where each fragment goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fork.errors import ForkError

RELATIONS = ("after", "before", "last")


@dataclass(frozen=True)
class Place:
    """One spot in a container of the base: `after X`, `before X` or `last`."""

    relation: str
    target: str = ""

    def __str__(self) -> str:
        return f"{self.relation} {self.target}".rstrip()


@dataclass(frozen=True)
class Anchor:
    """Where the pieces of one fragment go.

    `places` maps a container of the base (a namespace, a dict, `file` for the file itself) to
    the places tried in turn; `formerly` is the path that older releases have instead.
    """

    places: Mapping[str, tuple[Place, ...]]
    formerly: str | None = None


@dataclass(frozen=True)
class PullRequest:
    """One PR: `introduces` lists its new paths, `changes` those of earlier PRs that it alters."""

    name: str
    title: str
    introduces: tuple[str, ...]
    changes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return self.introduces + self.changes


@dataclass(frozen=True)
class Series:
    """A stack: the folder it lies in, its PRs in order, the anchors of its fragments, and its name."""

    root: Path
    prs: tuple[PullRequest, ...]
    anchors: Mapping[str, Anchor]
    name: str = "fork"

    @classmethod
    def load(cls, root: Path) -> Series:
        file = root / "stack" / "series.yaml"
        if not file.is_file():
            raise ForkError(f"no stack in {root}: {file} does not exist")
        try:
            data = yaml.safe_load(file.read_text())
            prs = tuple(map(_pull_request, data["prs"]))
            anchors = {path: _anchor(rules) for path, rules in (data.get("anchors") or {}).items()}
            if not prs:
                raise ValueError("prs is empty: name at least one PR")
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            what = " ".join(str(error).split())
            raise ForkError(f"{file} is not a series: {type(error).__name__}: {what}") from error
        name = str(data.get("name", cls.name))
        series = cls(root, prs, anchors, name)
        series._refuse_doubles(file)
        return cls(root, tuple(map(series._with_changes, prs)), anchors, name)

    def find(self, pr: str | PullRequest) -> PullRequest:
        """The PR of a name or of a place in the list, counted from 1."""
        if isinstance(pr, PullRequest):
            return pr
        for place, candidate in enumerate(self.prs, 1):
            if pr in (candidate.name, str(place)):
                return candidate
        known = ", ".join(f"{n} {p.name}" for n, p in enumerate(self.prs, 1))
        raise ForkError(f"no PR {pr!r} in {self.root / 'stack' / 'series.yaml'}: it has {known}")

    def description(self, pr: str | PullRequest) -> Path:
        """The file of a PR's description."""
        return self.root / "stack" / self.find(pr).name / "PR.md"

    def state(self, pr: str | PullRequest) -> dict[str, Path]:
        """Upstream path -> the file that holds its content once this PR is in.

        That is the nearest `stack/<PR j>/<path>` from this PR on, else the tip. A path that a
        later PR introduces, or that an earlier PR held and this one dropped, is absent.
        """
        here = self.prs.index(self.find(pr))
        found: dict[str, Path] = {}
        for born, owner in enumerate(self.prs[: here + 1]):
            for path in owner.introduces:
                file = self._content(path, here)
                if file is not None:
                    found[path] = file
                elif not any(self._stored(path, j).is_file() for j in range(born, here)):
                    raise ForkError(f"{path} of PR {owner.name} is missing in {self.root}: write it")
        return found

    def _stored(self, path: str, place: int) -> Path:
        return self.root / "stack" / self.prs[place].name / path

    def _content(self, path: str, here: int) -> Path | None:
        candidates = [self._stored(path, j) for j in range(here, len(self.prs))]
        return next((f for f in [*candidates, self.root / path] if f.is_file()), None)

    def _with_changes(self, pr: PullRequest) -> PullRequest:
        here = self.prs.index(pr)
        changed = [
            path
            for earlier in self.prs[:here]
            for path in earlier.introduces
            if self._content(path, here) != self._content(path, here - 1)
        ]
        return PullRequest(pr.name, pr.title, pr.introduces, tuple(changed))

    def _refuse_doubles(self, file: Path) -> None:
        names = [pr.name for pr in self.prs]
        paths = [path for pr in self.prs for path in pr.introduces]
        for kind, items in (("PR", names), ("path", paths)):
            double = next((item for item in items if items.count(item) > 1), None)
            if double is not None:
                raise ForkError(f"{file} has the {kind} {double} twice: name it once")


def _pull_request(entry: Mapping[str, Any]) -> PullRequest:
    name, title, paths = entry["name"], entry["title"], entry["introduces"]
    for word in (name, title):
        if not isinstance(word, str):
            raise ValueError(f"{word!r} is no text: put it in quotes")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"introduces of PR {name} is no list of paths")
    for path in map(PurePosixPath, paths):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} of PR {name} leads out of the stack: write it from PyTorch's top")
    return PullRequest(name, title, tuple(paths))


def _anchor(rules: Mapping[str, Any]) -> Anchor:
    places = {
        str(container): tuple(map(_place, [spots] if isinstance(spots, str) else spots))
        for container, spots in rules.items()
        if container != "formerly"
    }
    return Anchor(places, rules.get("formerly"))


def _place(text: str) -> Place:
    relation, _, target = text.partition(" ")
    if relation not in RELATIONS or bool(target) != (relation in ("after", "before")):
        raise ValueError(f"{text!r} is no place: write after X, before X or last")
    return Place(relation, target)
