"""`fork show`: prints the stack, or one PR of it with every file and the place where it goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from fork.commands.options import stack
from fork.errors import ForkError
from fork.series import PullRequest, Series


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pr", nargs="?", help="a PR's name, or its place in the series")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    if args.html is not None:
        from fork.page.html import page

        try:
            args.html.write_text(page(series, series.find(args.pr) if args.pr else None))
        except OSError as error:
            raise ForkError(f"{args.html} cannot be written: {error.strerror}") from error
        print(f"wrote {args.html}")
    elif args.pr:
        print(pull_request(series, series.find(args.pr)), end="")
    else:
        print(overview(series), end="")
    return 0


def overview(series: Series) -> str:
    """The PRs in order, each with its files: `+` new in it, `~` changed, `-` dropped."""
    lines = []
    for place, pr in enumerate(series.prs, 1):
        lines.append(f"{place}  {pr.name}: {pr.title}")
        lines += [f"   {series.mark(pr, path)} {path}" for path in pr.paths]
    return "\n".join(lines) + "\n"


def pull_request(series: Series, pr: PullRequest) -> str:
    """The description of a PR, then the content of each of its files under a line that says where."""
    place = series.prs.index(pr) + 1
    parts = [f"PR {place} of {len(series.prs)}: {pr.name}\n", series.description(pr)]
    state = series.state(pr)
    for path in pr.paths:
        parts.append(f"{'-' * 79}\n{series.mark(pr, path)} {path}\n  {series.where(pr, path)}\n")
        if path in state:
            parts.append(state[path].read_text())
    return "\n".join(parts)
