"""Reads a stack: its PRs in order, the files each one holds, and where each fragment goes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fork.errors import ForkError

NATIVE_FUNCTIONS = "aten/src/ATen/native/native_functions.yaml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # The one in C takes a tenth of the time.
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
    elsewhere in the container. `formerly` is the path that older releases have instead.
    """

    places: Mapping[str, tuple[Place, ...]]
    formerly: str | None = None

    @classmethod
    def of(cls, rules: Mapping[str, Any]) -> Anchor:
        """The anchor that the rules of series.yaml describe."""
        places: dict[str, tuple[Place, ...]] = {}
        for container, spots in rules.items():
            if isinstance(spots, Mapping):
                places |= {f"{container}: {piece}": _places(where) for piece, where in spots.items()}
            elif container != "formerly":
                places[str(container)] = _places(spots)
        return cls(places, rules.get("formerly"))


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
    """A stack: the folder it lies in, its PRs in order, and the anchors of its fragments.

    `wheel_suffix` ends the version of its wheels. `operator_tests` is a test file that is not part of the stack and
    that `fork check` runs for each operator of the stack, with `-k OPERATOR`. `strict` says whether `fork check` wants
    descriptions with every section, and files without a line of PyTorch's; the commits of a branch need neither.
    `tip` is what the build of the last state is called where the last PR's name may change, as a branch's does;
    `checkout` is where that branch is checked out. `needs` tells of a new file which name it uses that older releases
    lack, and in which file of PyTorch a release has it.
    """

    root: Path
    prs: tuple[PullRequest, ...]
    anchors: Mapping[str, Anchor]
    wheel_suffix: str = "fork"
    operator_tests: str | None = None
    strict: bool = True
    tip: str | None = None
    checkout: Path | None = None
    needs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> Series:
        file = root / "stack" / "series.yaml"
        if not file.is_file():
            raise ForkError(f"no stack in {root}: {file} does not exist")
        try:
            data = yaml.load(file.read_text(), Loader=LOADER)
            if not isinstance(data, dict) or "prs" not in data:
                raise ForkError(f"{file} names no PRs: write `prs:` and, for each PR, its name, title and introduces")
            prs = tuple(map(_pull_request, data["prs"]))
            anchors = {path: Anchor.of(rules) for path, rules in (data.get("anchors") or {}).items()}
            if not prs:
                raise ValueError("prs is empty: name at least one PR")
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForkError(f"{file} is not a series: {' '.join(str(error).split())}") from error
        suffix, tests = str(data.get("wheel_suffix", cls.wheel_suffix)), data.get("operator_tests")
        checkout = Path(data["checkout"]) if "checkout" in data else None
        strict, tip, needs = bool(data.get("strict", True)), data.get("tip"), data.get("needs") or {}
        series = cls(root, prs, anchors, suffix, tests, strict, tip, checkout, needs)
        series._refuse_doubles(file)
        return replace(series, prs=tuple(map(series._with_changes, prs)))

    def find(self, pr: str | PullRequest) -> PullRequest:
        """The PR of a name or of a place in the list, counted from 1."""
        if isinstance(pr, PullRequest):
            return pr
        for place, candidate in enumerate(self.prs, 1):
            if pr in (candidate.name, str(place)):
                return candidate
        known = ", ".join(f"{n} {p.name}" for n, p in enumerate(self.prs, 1))
        raise ForkError(f"no PR {pr!r} in {self.root / 'stack' / 'series.yaml'}: it has {known}")

    def build_name(self, pr: PullRequest) -> str:
        """What a build of a state is called, which the next build of it continues."""
        return self.tip if self.tip and pr == self.prs[-1] else pr.name

    def written_at(self, path: str) -> Path | None:
        """The file that somebody edits where the stack's is a whole copy of it; a fragment has lines of its own."""
        return self.checkout / path if self.checkout and path not in self.anchors else None

    def description_file(self, pr: str | PullRequest) -> Path:
        return self.root / "stack" / self.find(pr).name / "PR.md"

    def description(self, pr: str | PullRequest) -> str:
        """The text of a PR's description, which is also its commit message."""
        file = self.description_file(pr)
        if not file.is_file():
            raise ForkError(f"PR {self.find(pr).name} has no description: write {file}")
        return file.read_text().rstrip("\n") + "\n"

    def mark(self, pr: PullRequest, path: str) -> str:
        """`+` for a path that is new in this PR, `~` for one that it changes, `-` for one that it drops."""
        if path in pr.introduces:
            return "+"
        return "~" if path in self.state(pr) else "-"

    def where(self, pr: PullRequest, path: str) -> str:
        """Where a file goes in upstream's tree, as a phrase."""
        if path not in self.state(pr):
            return "dropped: upstream's file is as it was"
        anchor = self.anchors.get(path)
        if anchor is None:
            return "a new file" if path in pr.introduces else "changed"
        spots = [
            " or ".join(map(str, places)) + ("" if container == "file" else f" in {container}")
            for container, places in anchor.places.items()
        ]
        older = f" (older releases: {anchor.formerly})" if anchor.formerly else ""
        return "goes " + "; ".join(spots) + older

    def operators(self, pr: str | PullRequest) -> list[str]:
        """The names of the public operators of a state; their overloads share one."""
        native = self.state(pr).get(NATIVE_FUNCTIONS)
        entries = yaml.safe_load(native.read_text()) if native else []
        names = {re.split(r"[.(]", entry["func"])[0] for entry in entries}
        return sorted(name for name in names if not name.startswith("_"))

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
                    raise ForkError(
                        f"{path} of PR {owner.name} is missing in {self.root}: {self._like(path) or 'write it'}"
                    )
        return found

    def _like(self, path: str) -> str | None:
        """Advice for a path that is probably misspelt."""
        folder = (self.root / path).parent
        there = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        close = difflib.get_close_matches(PurePosixPath(path).name, there, n=1, cutoff=0.8)
        return f"did you mean {PurePosixPath(path).with_name(close[0])}?" if close else None

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
    missing = [key for key in ("name", "title", "introduces") if key not in entry]
    if missing:
        raise ValueError(f"PR {entry.get('name', '')} has no `{missing[0]}`: write it")
    name, title, paths = entry["name"], entry["title"], entry["introduces"]
    for word in (name, title):
        if not isinstance(word, str):
            raise ValueError(f"{word!r} is not a text: put it in quotes")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"introduces of PR {name} is not a list of paths")
    for path in map(PurePosixPath, paths):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} of PR {name} leads out of the stack: write it from PyTorch's top")
    return PullRequest(name, title, tuple(paths))


def _places(spots: str | list[str]) -> tuple[Place, ...]:
    return tuple(map(_place, [spots] if isinstance(spots, str) else spots))


def _place(text: str) -> Place:
    relation, _, target = text.partition(" ")
    if relation not in RELATIONS or bool(target) != (relation != "last"):
        raise ValueError(f"{text!r} is not a place: write after X, before X, replaces X or last")
    return Place(relation, target)
