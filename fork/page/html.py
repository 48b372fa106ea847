"""`fork show --html`: a PR, a commit, or the whole stack, as one page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fork.engine.wheel import base as bases
from fork.page import markdown
from fork.page.content import Content, content
from fork.series import MARKS, Commit, PullRequest, Series

HERE = Path(__file__).parent
# A file with more lines than this is folded: about five screens.
LONG = 200


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
