"""Reads a stack: its PRs in order, the files each one holds, and where each fragment goes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from fork.errors import ForkError
from fork.upstream import LOADER
from fork.weave.file_kinds import File, Fragment, Kind, New, Whole, anchored, edited

KEYS = ("prs", "anchors", "wheel_suffix", "operator_tests", "strict")
NAME = re.compile(r"\w[\w-]*")  # It becomes part of paths, with a dot between a PR's and its commit's.
Words = tuple[str, ...]
COMMENT = re.compile(r"^<!--[^>]*-->\n|<!--[^>]*-->", re.MULTILINE)
MARKS = "+ a new file; ~ a file of PyTorch, or of a PR before, with changes; - a file without them again"


State = dict[str, File]


@dataclass(frozen=True)
class Commit:
    """One state of the stack: `introduces` lists its new paths, `changes` those of earlier commits that it alters.

    `place` is its number, such as 3, or 4.1 for the first of the commits of PR 4. The only commit of a PR has the PR's
    name and title, and one of several a name behind the PR's, such as `explicit.cpu`.
    """

    name: str
    title: str
    place: str
    introduces: tuple[str, ...]
    changes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return self.introduces + self.changes


@dataclass(frozen=True)
class PullRequest:
    """One PR: its number, the commits that it consists of, in order, and `split` where series.yaml lists them."""

    name: str
    title: str
    place: str
    commits: tuple[Commit, ...]

    @property
    def split(self) -> bool:
        return self.commits[0].name != self.name


@dataclass(frozen=True)
class Series:
    """A stack: the folder it lies in, its PRs in order, and the anchors of its fragments.

    `wheel_suffix` ends the version of its wheels. `operator_tests` is a test file that is not part of the stack and
    that `fork check` runs for each operator of the stack, with `-k OPERATOR`. `strict` says whether `fork check` wants
    descriptions with every section; the commits of a branch need none.
    """

    root: Path
    prs: tuple[PullRequest, ...]
    anchors: Mapping[str, Fragment | Whole]
    wheel_suffix: str = "fork"
    operator_tests: str | None = None
    strict: bool = True

    @classmethod
    def load(cls, root: Path) -> Series:
        file = root / "stack" / "series.yaml"
        if not file.is_file():
            raise ForkError(f"no stack in {root}: {file} does not exist")
        try:
            data = yaml.load(file.read_text(), Loader=LOADER)
            if not isinstance(data, dict) or "prs" not in data:
                raise ForkError(f"{file} names no PRs: write `prs:` and, for each PR, its name, title and introduces")
            _refuse_unknown(data, KEYS, "it")
            data["prs"] = tuple(_pull_request(entry, str(place)) for place, entry in enumerate(data["prs"], 1))
            data["anchors"] = {path: anchored(rules) for path, rules in (data.get("anchors") or {}).items()}
            if not data["prs"]:
                raise ValueError("prs is empty: name at least one PR")
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForkError(f"{file} is not a series: {' '.join(str(error).split())}") from error
        series = cls(root, **data)
        series._refuse_doubles(file)
        commits = [tuple(replace(one, changes=series._changes(one)) for one in pr.commits) for pr in series.prs]
        series = replace(series, prs=tuple(replace(pr, commits=found) for pr, found in zip(series.prs, commits)))
        series._refuse_other_than_text()
        return series

    @cached_property
    def commits(self) -> tuple[Commit, ...]:
        """The states of the stack, one for each commit of its PRs."""
        return tuple(commit for pr in self.prs for commit in pr.commits)

    def files(self) -> list[File]:
        """The files of all states, each once."""
        return sorted({file for commit in self.commits for file in self.state(commit).values()}, key=edited)

    def outline(self) -> Iterator[PullRequest | Commit]:
        """The commits in order, and a PR of several before its own."""
        for pr in self.prs:
            if pr.split:
                yield pr
            yield from pr.commits

    def named(self, word: str) -> PullRequest | Commit:
        """The commit, or the PR of several, of a name (`explicit.cpu`, `explicit`) or a number (4.2, 4)."""
        for one in self.outline():
            if word in (one.name, one.place):
                return one
        known = ", ".join(f"{one.place} {one.name}" for one in self.outline())
        raise ForkError(f"no PR {word!r} in {self.root / 'stack' / 'series.yaml'}: it has {known}")

    def heading(self, one: PullRequest | Commit) -> str:
        """What stands above a PR or a commit: its number and its name."""
        kind = f"Commit {one.place}" if "." in one.place else f"PR {one.place} of {len(self.prs)}"
        return f"{kind}: {one.name}"

    def find(self, word: str | Commit | None = None) -> Commit:
        """The commit that a word names, of a PR its last one; without a word the last commit of the stack."""
        found = self.commits[-1] if word is None else self.named(word) if isinstance(word, str) else word
        return found.commits[-1] if isinstance(found, PullRequest) else found

    def build_name(self, commit: Commit) -> str:
        """What a build of a state is called, which the next build of it continues: of a PR's last one as the PR."""
        return next((pr.name for pr in self.prs if pr.commits[-1] == commit), commit.name)

    @property
    def described(self) -> str:
        """What a state of it is of, as a phrase."""
        return str(self.root)

    def settings(self, commit: Commit) -> bytes:
        """What a build depends on beside the files of its state."""
        return (self.root / "stack/series.yaml").read_bytes()

    def gone(self, commit: Commit) -> frozenset[str]:
        """The files of PyTorch that a state has no longer; only a branch takes any away."""
        return frozenset()

    def kind(self, path: str) -> Kind:
        """What the stack's file of a path is beside PyTorch's."""
        return self.anchors.get(path, New())

    def of_kind(self, state: Mapping[str, File], *kinds: type[Kind]) -> State:
        """Those files of a state that are of one of these kinds."""
        return {path: file for path, file in state.items() if isinstance(self.kind(path), kinds)}

    def description_file(self, of: PullRequest | Commit) -> Path:
        kind = "PR.md" if any(of.name == pr.name for pr in self.prs) else "COMMIT.md"
        return self.root / "stack" / of.name / kind

    def said(self, of: PullRequest | Commit) -> str | None:
        """What describes a PR or commit, as it is written; None where nothing is."""
        file = self.description_file(of)
        return file.read_text() if file.is_file() else None

    def description(self, of: PullRequest | Commit) -> str:
        """The text that describes a PR, or one commit of several."""
        text = self.said(of)
        if text is None:
            raise ForkError(f"{of.name} has no description: write {self.description_file(of)}")
        # Tools of the stack find their places by comments, which no reader of a commit needs.
        return COMMENT.sub("", text).rstrip("\n") + "\n"

    def mark(self, commit: Commit, path: str) -> str:
        """As in MARKS; what the stack adds to a file of PyTorch changes that file."""
        if path in commit.introduces and isinstance(self.kind(path), New):
            return "+"
        return "~" if path in self.state(commit) else "-"

    def where(self, commit: Commit, path: str) -> str:
        """Where a file goes in upstream's tree, as a phrase."""
        if path in self.gone(commit):
            return "removed"
        if path not in self.state(commit):
            return "dropped: upstream's file is as it was"
        kind = self.kind(path)
        if not isinstance(kind, Fragment):
            return "a new file" if self.mark(commit, path) == "+" else "changed"
        spots = [
            " or ".join(map(str, places)) + ("" if container == "file" else f" in {container}")
            for container, places in kind.places.items()
        ]
        older = f" (older releases: {kind.older_path})" if kind.older_path else ""
        return "goes " + "; ".join(spots) + older

    def state(self, commit: str | Commit) -> State:
        """Upstream path -> the file that holds its content once this commit is in.

        That is the nearest `stack/<commit j>/<path>` from this commit on, else the tip. A path that a
        later commit introduces, or that an earlier one held and this one dropped, is absent.
        """
        here = self.commits.index(self.find(commit))
        found: State = {}
        for born, owner in enumerate(self.commits[: here + 1]):
            for path in owner.introduces:
                file = self._content(path, here)
                if file is not None:
                    found[path] = file
                elif not any(self._stored(path, j).is_file() for j in range(born, here)):
                    raise ForkError(
                        f"{path} of {owner.name} is missing in {self.root}: {self._like(path) or 'write it'}"
                    )
        return found

    def _like(self, path: str) -> str | None:
        """Advice for a path that is probably misspelt."""
        if (self.root / path).is_dir():
            return f"{self.root / path} is a folder, so put a file in its place"
        folder = (self.root / path).parent
        there = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        close = difflib.get_close_matches(PurePosixPath(path).name, there, n=1, cutoff=0.8)
        return f"did you mean {PurePosixPath(path).with_name(close[0])}?" if close else None

    def _stored(self, path: str, place: int) -> Path:
        return self.root / "stack" / self.commits[place].name / path

    def _content(self, path: str, here: int) -> Path | None:
        candidates = [self._stored(path, j) for j in range(here, len(self.commits))]
        return next((f for f in [*candidates, self.root / path] if f.is_file()), None)

    def _changes(self, commit: Commit) -> tuple[str, ...]:
        here = self.commits.index(commit)
        return tuple(
            path
            for earlier in self.commits[:here]
            for path in earlier.introduces
            if self._content(path, here) != self._content(path, here - 1)
        )

    def _refuse_other_than_text(self) -> None:
        described = [self.description_file(one) for one in self.outline()]
        held = [self._content(path, n) for n, commit in enumerate(self.commits) for path in commit.paths]
        for file in dict.fromkeys([*described, *filter(None, held)]):
            if file.is_file():
                content = file.read_bytes()
                try:
                    content.decode()
                except UnicodeDecodeError as error:
                    line = content.count(b"\n", 0, error.start) + 1
                    raise ForkError(f"{file}:{line} is not UTF-8: convert the file") from error

    def _refuse_doubles(self, file: Path) -> None:
        names = [*(pr.name for pr in self.prs), *(c.name for pr in self.prs if pr.split for c in pr.commits)]
        paths = [path for commit in self.commits for path in commit.introduces]
        for kind, items in (("PR", names), ("path", paths)):
            double = next((item for item in items if items.count(item) > 1), None)
            if double is not None:
                raise ForkError(f"{file} has the {kind} {double} twice: name it once")


def _pull_request(entry: Any, place: str) -> PullRequest:
    if not isinstance(entry, Mapping) or "commits" not in entry:
        commit = _commit(entry, "PR ", place)
        return PullRequest(commit.name, commit.title, place, (commit,))
    name, title = _name_and_title(entry, "PR ", ("name", "title", "commits"))
    if not isinstance(entry["commits"], list) or not entry["commits"]:
        raise ValueError(f"commits of PR {name} is not a list of commits: give each a name, title and introduces")
    parts = enumerate(entry["commits"], 1)
    commits = tuple(_commit(part, f"commit {name}.", f"{place}.{n}") for n, part in parts)
    return PullRequest(name, title, place, tuple(replace(commit, name=f"{name}.{commit.name}") for commit in commits))


def _commit(entry: Any, kind: str, place: str) -> Commit:
    optional = ("commits",) if kind == "PR " else ()
    name, title = _name_and_title(entry, kind, ("name", "title", "introduces"), optional)
    paths = entry["introduces"]
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError(f"introduces of {kind}{name} is not a list of paths")
    for path in map(PurePosixPath, paths):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{path} of {kind}{name} leads out of the stack: write it from PyTorch's top")
    return Commit(name, title, place, tuple(paths))


def _name_and_title(entry: Any, kind: str, keys: Words, optional: Words = ()) -> tuple[str, str]:
    """Those of an entry that has these keys, perhaps the optional ones, and no other."""
    called = kind.rstrip(" .")
    if not isinstance(entry, Mapping):
        raise ValueError(f"{called} has {entry!r} where an entry belongs: write {', '.join(keys)}")
    if "name" in entry:
        called = f"{kind}{entry['name']}"
    _refuse_unknown(entry, keys + optional, called)
    missing = [key for key in keys if key not in entry]
    if missing:
        raise ValueError(f"{called} has no `{missing[0]}`: write it")
    for word in (entry["name"], entry["title"]):
        if not isinstance(word, str):
            raise ValueError(f"{word!r} is not a text: put it in quotes")
    if not NAME.fullmatch(entry["name"]):
        raise ValueError(f"{called} has a name of other signs than letters, digits, `-` and `_`")
    return entry["name"], entry["title"]


def _refuse_unknown(entry: Mapping[str, Any], known: Words, called: str) -> None:
    unknown = next((key for key in entry if key not in known), None)
    if unknown is not None:
        raise ValueError(f"{called} has the unknown key `{unknown}`: it can have {', '.join(known)}")
