"""`fork show`: prints the stack, or one PR or commit of it with every file and the place where it goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from fork.commands.options import stack
from fork.series import MARKS, Commit, PullRequest, Series


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pr", nargs="?", help="a PR or a commit, by name or place")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    if args.html is not None:
        from fork.page.html import page

        args.html.write_text(page(series, series.named(args.pr) if args.pr else None))
        print(f"wrote {args.html}")
    elif args.pr:
        print(whole(series, series.named(args.pr)), end="")
    else:
        print(overview(series), end="")
    return 0


def overview(series: Series) -> str:
    """The commits in order, each with its files and what it does to each."""
    lines = []
    for one in series.outline():
        lines.append(line(one))
        if isinstance(one, Commit):
            lines += [f"   {series.mark(one, path)} {path}" for path in one.paths]
    return "\n".join([*lines, MARKS]) + "\n"


def line(one: PullRequest | Commit) -> str:
    return f"{one.place}  {one.name}: {one.title}"


def whole(series: Series, one: PullRequest | Commit) -> str:
    """A description, then the content of each file of a commit under a line that says where, or all commits of a PR."""
    parts = [f"{series.heading(one)}\n", series.description(one)]
    if isinstance(one, PullRequest):
        return "\n".join([*parts, *(whole(series, commit) for commit in one.commits)])
    state = series.state(one)
    for path in one.paths:
        parts.append(f"{'-' * 79}\n{series.mark(one, path)} {path}\n  {series.where(one, path)}\n")
        if path in state:
            parts.append(state[path].read_bytes().decode(errors="replace"))
    return "\n".join(parts)
