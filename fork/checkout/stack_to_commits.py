"""The stack as commits on a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fork.checkout.git import Checkout
from fork.checkout.message import messages
from fork.errors import ForkError
from fork.series import Commit, Series
from fork.weave import refuse_unwoven, weave_all
from fork.weave.file_kinds import New


@dataclass(frozen=True)
class Step:
    """One commit on a checkout: the files of its state with their text, None for one less, and its message."""

    commit: Commit
    texts: Mapping[str, str | None]
    message: str


def weave_steps(checkout: Checkout, series: Series, last: Commit) -> list[Step]:
    """Every commit up to `last` on this checkout; one error names all anchors that do not fit."""
    steps: list[Step] = []
    problems: list[str] = []
    said = [str(message) for pr in series.prs for message in messages(series, pr)]
    for commit, message in zip(series.commits[: series.commits.index(last) + 1], said):
        state = series.state(commit)
        taken = [path for path in series.of_kind(state, New) if checkout.read(path) is not None]
        if taken:
            raise ForkError(_taken(checkout, series, taken[0]))
        texts = weave_all(state, series.anchors, checkout.read, problems)
        gone = dict.fromkeys(path for path in series.gone(commit) if checkout.read(path) is not None)
        steps.append(Step(commit, {**texts, **gone}, message))
    refuse_unwoven(problems)
    return steps


def _taken(checkout: Checkout, series: Series, path: str) -> str:
    """Why a new file of the stack has no place: the checkout has the stack, or PyTorch has a file of this name."""
    files = [series.state(commit).get(path) for commit in series.commits]
    if checkout.read(path) in [file.read_text() for file in files if file]:
        return f"{checkout.path} has the stack already ({path}): check out its base"
    advice = "check out a base without the stack or, where the file is PyTorch's own, give the stack's another name"
    return f"{checkout.path} has another {path} already: {advice}"


def commit_steps(checkout: Checkout, steps: list[Step], **dates: str) -> str:
    """One commit per step, each on the one before, the first on HEAD; returns the last one's hash."""
    parent = checkout.head
    for step in steps:
        parent = checkout.commit(step.texts, step.message, parent, **dates)
    return parent
