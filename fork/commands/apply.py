"""`fork apply`: commits the stack on a new branch of a PyTorch checkout."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fork.checkout.git import Checkout
from fork.checkout.stack_to_commits import Step, commit_steps, weave_steps
from fork.commands.options import stack
from fork.commands.show import line
from fork.errors import ForkError
from fork.series import Series
from fork.verify import soundness
from fork.weave import base_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="TREE", help="a clean git checkout of PyTorch")
    parser.add_argument("--pr", metavar="N", help="stop after this PR or commit (its name or place)")
    parser.add_argument("--branch", default="stack", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="only say what would happen")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    checkout = Checkout.open(args.tree)
    checkout.refuse_dirty()
    steps = weave_steps(checkout, series, series.find(args.pr))
    for path in (path for step in steps for path in step.texts):
        if checkout.read(path) is None and (checkout.path / path).exists():
            raise ForkError(f"{checkout.path / path} is not under git and in the way: move it")
    if left := list(soundness.marked(series, soundness.UNFINISHED)):
        print(f"note     {len(left)} lines are left to write, which `fork check --static` names, such as {left[0]}")
    commits = f"{len(steps)} commit{'' if len(steps) == 1 else 's'}"
    if args.check:
        print(plan(checkout, series, steps), end="")
        print(f"{commits} would go on branch {args.branch}; nothing was changed")
        return 0
    last = commit_steps(checkout, steps)
    # The branch first: git refuses a name before it touches a file, and `switch --create` only after.
    try:
        checkout.git("branch", "--", args.branch, last)
    except ForkError as error:
        raise ForkError(f"{error}: give another name by --branch") from error
    checkout.git("switch", "--quiet", args.branch)
    print(checkout.git("log", "--oneline", "--reverse", f"{checkout.head}..{last}"), end="")
    print(f"{commits} {'is' if len(steps) == 1 else 'are'} on branch {args.branch} of {args.tree}")
    return 0


def plan(checkout: Checkout, series: Series, steps: list[Step]) -> str:
    """Per commit and file, how many lines come and go, and where."""
    lines: list[str] = []
    before: Mapping[str, str | None] = {}
    for step in steps:
        lines += [line(pr) for pr in series.prs if pr.split and pr.commits[0] == step.commit]
        lines.append(line(step.commit))
        for path in step.commit.paths:
            actual = base_path(path, series.kind(path), checkout.read)
            old, new = (
                Counter((texts.get(actual, checkout.read(actual)) or "").splitlines()) for texts in (before, step.texts)
            )
            removed = f" -{(old - new).total()}" if old - new else ""
            added = f"+{(new - old).total()}{removed}"
            lines.append(f"   {added} {actual}: {series.where(step.commit, path)}")
        before = step.texts
    return "\n".join(lines) + "\n"
