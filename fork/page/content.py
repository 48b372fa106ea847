"""What a review page shows: PRs and commits with descriptions, results and files, each file before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePosixPath

from fork.engine.wheel.base import Base
from fork.page.code import Row, rows
from fork.series import Commit, PullRequest, Series
from fork.verify.prefix import Result, results
from fork.weave import weave
from fork.weave.file_kinds import File, Fragment, New, Whole


@dataclass(frozen=True)
class Change:
    """One file of a PR. `mark` is one of MARKS; `where` is a phrase.

    `whole` is false where the texts are only what the stack adds to a file that is not here.
    """

    path: str
    mark: str
    where: str
    before: str
    after: str
    whole: bool = True

    @cached_property
    def rows(self) -> list[Row]:
        return rows(self.path, self.before, self.after)


@dataclass(frozen=True)
class Content:
    """One PR or commit. `changes` is None where the page only tells of it in short.

    `split` says that it is a PR of several commits, which have the files.
    """

    place: str
    name: str
    title: str
    description: str
    size: str
    result: Result | None = None
    changes: Sequence[Change] | None = None
    split: bool = False

    @property
    def rows(self) -> list[Row]:
        return [row for change in self.changes or () for row in change.rows]

    @property
    def folders(self) -> list[tuple[str, list[Change]]]:
        """The changes in their order, those that stand together in a folder under its name."""
        pairs = groupby(self.changes or (), key=lambda change: str(PurePosixPath(change.path).parent))
        return [(folder, list(changes)) for folder, changes in pairs]


def content(series: Series, base: Base, one: PullRequest | Commit, whole: bool) -> Content:
    """A PR or commit of a series; its files as they are once woven into this base."""
    _, _, description = series.description(one).partition("\n")
    if isinstance(one, PullRequest):
        size = f"{len(one.commits)} commit{'s' if one.commits[1:] else ''}"
        return Content(one.place, one.name, one.title, description, size, None, [] if whole else None, split=True)
    marks = Counter(series.mark(one, path) for path in one.paths)
    words = {"+": "new", "~": "changed", "-": "dropped"}
    counts = ", ".join(f"{marks[mark]} {word}" for mark, word in words.items() if marks[mark]) or "no"
    size = f"{counts} {'file' if len(one.paths) == 1 else 'files'}"
    result = results(series, series.root / "build", one) if whole else None
    changes = [_change(series, base, one, path) for path in one.paths] if whole else None
    return Content(one.place, one.name, one.title, description, size, result, changes)


def _change(series: Series, base: Base, commit: Commit, path: str) -> Change:
    place = series.commits.index(commit)
    earlier = series.state(series.commits[place - 1]).get(path) if place else None
    now = series.state(commit).get(path)
    kind = series.kind(path)
    shipped = kind.start.decode(errors="replace") if isinstance(kind, Whole) else base.read(path)
    where, whole = series.where(commit, path), isinstance(kind, New) or shipped is not None
    gone = path in series.gone(commit)
    if not whole:
        where += "; torch's wheel has no such file, so only the added lines are shown"

    def side(file: File | None) -> str:
        if file is None:
            return shipped or ""
        text = file.read_bytes().decode(errors="replace")
        return weave(path, shipped, text, kind) if isinstance(kind, Fragment) and shipped is not None else text

    return Change(path, series.mark(commit, path), where, side(earlier), "" if gone else side(now), whole)
