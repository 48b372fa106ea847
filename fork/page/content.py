"""What a review page shows: PRs with their descriptions, results and files, each file before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fork.engine.base import Base
from fork.series import PullRequest, Series
from fork.verify.prefix import Result, results
from fork.weave import weave


@dataclass(frozen=True)
class Change:
    """One file of a PR. `mark` is + for a new path, ~ for a changed one, - for a dropped one; `where` is a phrase.

    `whole` is false where the texts are only what the stack adds to a file that is not here.
    """

    path: str
    mark: str
    where: str
    before: str
    after: str
    whole: bool = True


@dataclass(frozen=True)
class Content:
    """One PR. `changes` is None where the page only tells of it in short."""

    name: str
    title: str
    description: str
    size: str
    result: Result | None = None
    changes: Sequence[Change] | None = None


def content(series: Series, base: Base, pr: PullRequest, whole: bool) -> Content:
    """A PR of a series; its files as they are once woven into this base."""
    _, _, description = series.description(pr).partition("\n")
    changed = sum(series.mark(pr, path) == "~" for path in pr.changes)
    counts = {"new": len(pr.introduces), "changed": changed, "dropped": len(pr.changes) - changed}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no"
    size = f"{words} {'file' if len(pr.paths) == 1 else 'files'}"
    if not whole:
        return Content(pr.name, pr.title, description, size)
    result = results(series, series.root / "build", pr)
    changes = [_change(series, base, pr, path) for path in pr.paths]
    return Content(pr.name, pr.title, description, size, result, changes)


def _change(series: Series, base: Base, pr: PullRequest, path: str) -> Change:
    place = series.prs.index(pr)
    earlier = series.state(series.prs[place - 1]).get(path) if place else None
    now = series.state(pr).get(path)
    anchor = series.anchors.get(path)
    shipped = base.read(path) if anchor else None
    where = series.where(pr, path)
    if anchor and shipped is None:
        where += "; torch's wheel has no such file, so only the added lines are shown"

    def side(file: Path | None) -> str:
        if file is None:
            return shipped or ""
        text = file.read_text()
        return weave(path, shipped, text, anchor) if anchor and shipped is not None else text

    return Change(path, series.mark(pr, path), where, side(earlier), side(now), not anchor or shipped is not None)
