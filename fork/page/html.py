"""`fork show --html`: a PR, a commit, or the whole stack, as one page that needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fork.engine.wheel import base as bases
from fork.page import markdown
from fork.page.code import Row, rows
from fork.series import MARKS, Commit, PullRequest, Series
from fork.verify.prefix import Result, results
from fork.weave import weave
from fork.weave.file_kinds import File, Fragment, New, Whole

HERE = Path(__file__).parent
# A file with more lines than this is folded: about five screens.
LONG = 200


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


def page(series: Series, one: PullRequest | Commit | None) -> str:
    """One PR or commit, with the others in short, or with None all of them, in order."""
    base = bases.installed()
    whole = (one, *one.commits) if isinstance(one, PullRequest) else (one,) if one else tuple(series.outline())
    contents = [_content(series, base, other, whole=other in whole) for other in series.outline()]
    about = f"{len(series.prs)} pull requests against PyTorch; differences from torch {base.version}"
    return render(series.heading(one) if one else "The stack", about, contents)


def _content(series: Series, base: bases.Base, one: PullRequest | Commit, whole: bool) -> Content:
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


def _change(series: Series, base: bases.Base, commit: Commit, path: str) -> Change:
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


def render(title: str, about: str, prs: Sequence[Content]) -> str:
    """A page about any PRs and commits, the oldest first."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    names = [pr.name for pr in prs]
    texts, documents = {}, {}
    for pr in prs:
        links = {f"#{name}": f"#{name}" for name in names}
        for other in (*prs, pr):  # its own files last: they count more
            links |= _places(other)
        described = _with_links_to_prs(pr.description, names)
        texts[pr.name] = markdown.render(described, f"{pr.name}/PR.md-", links).html
        for change in pr.changes or ():
            # A document as it reads after the PR; a piece of one is not a text to read.
            if change.whole and change.after and change.path.endswith(".md"):
                id, folder = f"{pr.name}/{change.path}", str(PurePosixPath(change.path).parent)
                documents[id] = markdown.render(change.after, f"{id}-", links, shift=3, folder=folder)
    states = ["", *(pr.name for pr in prs if not pr.split), ""]
    return environment.get_template("page.html.jinja").render(
        title=title,
        about=about,
        prs=prs,
        texts=texts,
        documents=documents,
        # The states before and after each one, and the picture: the newest first, a PR of several commits above them.
        beside={here: (on, below) for on, here, below in zip(states, states[1:], states[2:])},
        picture=sorted(prs, key=lambda pr: [-int(number) for number in pr.place.split(".")]),
        css=Markup((HERE / "page.css").read_text()),
        marks=MARKS,
        long=LONG,
    )


def _places(pr: Content) -> dict[str, str]:
    """Path of each file, and name where only one file has it -> its place on the page."""
    paths = [change.path for change in pr.changes or ()]
    names = [PurePosixPath(path).name for path in paths]
    short = {name: path for name, path in zip(names, paths) if names.count(name) == 1}
    return {name: f"#{pr.name}/{path}" for name, path in [*short.items(), *zip(paths, paths)]}


def _with_links_to_prs(text: str, names: Sequence[str]) -> str:
    """In the list of the stack, whose lines are `* NAME` or `* **NAME** (this PR)`, each name leads to its PR."""
    known = "|".join(map(re.escape, names))
    return re.sub(rf"^\* (\*\*)?({known})(\*\*)?(?= \(this PR\)$|$)", r"* \1[\2](#\2)\3", text, flags=re.MULTILINE)
