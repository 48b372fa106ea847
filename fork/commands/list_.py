"""`fork list`: what is built, of which branch or stack, for which torch, and how large it is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fork.engine.kept import Kept, kept
from fork.errors import ForkError
from fork.folders import checkouts, root


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--build", type=Path, metavar="DIR", help="a folder of builds (default: build/ and the cache)")


def run(args: argparse.Namespace) -> int:
    rows = [("name", "torch", "MB", "of")]
    total = 0
    for one in found(args):
        size = one.size()
        total += size
        rows.append((one.name, one.torch, f"{size / 1e6:.0f}", one.of))
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    for name, torch, megabytes, of in rows[1:] and rows:
        print(f"{name:{widths[0]}}  {torch:{widths[1]}}  {megabytes:>{widths[2]}}  {of}")
    print(f"{total / 1e6:.0f} MB in all; `fork clean NAME` removes one" if rows[1:] else "nothing is built")
    return 0


def found(args: argparse.Namespace) -> Iterator[Kept]:
    """What lies in the folder of builds that the command line names, or in all that the tool uses by itself."""
    tops = [args.build.absolute()] if args.build else [checkouts(args.root).parent]
    if not args.build:
        with suppress(ForkError):  # Where no stack is, the builds of checkouts are all.
            tops.insert(0, root(args.root) / "build")
    return kept(tops)
