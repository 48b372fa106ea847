"""`fork show --html`: a PR, a commit, or the whole stack, as one page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fork.engine.wheel import base as bases
from fork.page import markdown, rst
from fork.page.code import Row, rows
from fork.page.content import Change, Content, content
from fork.page.markdown import Text
from fork.series import MARKS, Commit, PullRequest, Series
from fork.verify.prefix import Result

HERE = Path(__file__).parent
# A file with more lines than this is folded: about five screens.
LONG = 200


@dataclass(frozen=True)
class File:
    """One file of a PR. `id` is its place on the page; `document` is there where it is a text to read."""

    id: str
    path: str
    mark: str
    where: str
    rows: Sequence[Row]
    document: Text | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def added(self) -> int:
        return sum(row.kind == "+" for row in self.rows)

    @property
    def removed(self) -> int:
        return sum(row.kind == "-" for row in self.rows)

    @property
    def open(self) -> bool:
        return self.document is not None or len(self.rows) <= LONG


@dataclass(frozen=True)
class Section:
    """One PR or commit. `files` is None where the page only tells of it in short.

    `split` says that it is a PR of several commits, `on` and `below` name the states before and after a commit.
    """

    place: str
    name: str
    title: str
    size: str
    description: Markup
    result: Result | None
    files: Sequence[File] | None
    split: bool
    on: str
    below: str

    @property
    def added(self) -> int:
        return sum(file.added for file in self.files or ())

    @property
    def removed(self) -> int:
        return sum(file.removed for file in self.files or ())

    @property
    def folders(self) -> list[tuple[str, list[File]]]:
        """The files in their order, those that stand together in a folder under its name."""
        pairs = groupby(self.files or (), key=lambda file: str(PurePosixPath(file.path).parent))
        return [(folder, list(files)) for folder, files in pairs]


def page(series: Series, one: PullRequest | Commit | None) -> str:
    """One PR or commit, with the others in short, or with None all of them, in order."""
    base = bases.installed()
    whole = (one, *one.commits) if isinstance(one, PullRequest) else (one,) if one else tuple(series.outline())
    contents = [content(series, base, other, whole=other in whole) for other in series.outline()]
    about = f"{len(series.prs)} pull requests against PyTorch; differences from torch {base.version}"
    return render(series.heading(one) if one else "The stack", about, contents)


def render(title: str, about: str, prs: Sequence[Content]) -> str:
    """A page about any PRs and commits, the oldest first."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    sections = [_section(pr, prs) for pr in prs]
    # The newest first, and a PR of several commits above them.
    picture = sorted(sections, key=lambda section: [-int(number) for number in section.place.split(".")])
    css = Markup((HERE / "page.css").read_text())
    template = environment.get_template("page.html.jinja")
    return template.render(title=title, about=about, sections=sections, picture=picture, css=css, marks=MARKS)


def _section(pr: Content, prs: Sequence[Content]) -> Section:
    names = [other.name for other in prs]
    links = {f"#{name}": f"#{name}" for name in names}
    for other in (*prs, pr):  # its own files last: they count more
        links |= _places(other)
    description = markdown.render(_with_links_to_prs(pr.description, names), f"{pr.name}/PR.md-", links).html
    files = None if pr.changes is None else [_file(pr, change, links) for change in pr.changes]
    states = ["", *(other.name for other in prs if not other.split), ""]
    here = 0 if pr.split else states.index(pr.name)
    on, below = ("", "") if pr.split else (states[here - 1], states[here + 1])
    return Section(pr.place, pr.name, pr.title, pr.size, description, pr.result, files, pr.split, on, below)


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


def _file(pr: Content, change: Change, links: Mapping[str, str]) -> File:
    id = f"{pr.name}/{change.path}"
    changed = rows(change.path, change.before, change.after)
    return File(id, change.path, change.mark, change.where, changed, _document(id, change, links))


def _document(id: str, change: Change, links: Mapping[str, str]) -> Text | None:
    """A document as it reads after the PR; a piece of one is not a text to read."""
    if not change.whole or not change.after:
        return None
    render = {".md": markdown.render, ".rst": rst.render}.get(PurePosixPath(change.path).suffix)
    folder = str(PurePosixPath(change.path).parent)
    return render(change.after, f"{id}-", links, shift=3, folder=folder) if render else None
