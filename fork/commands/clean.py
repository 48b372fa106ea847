"""`fork clean`: removes what is built, by the names that `fork list` prints, or all of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fork.commands.list_ import found
from fork.errors import ForkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="what `fork list` prints")
    parser.add_argument("--all", action="store_true", help="everything that `fork list` prints")
    parser.add_argument("--build", type=Path, metavar="DIR", help="a folder of builds (default: build/ and the cache)")


def run(args: argparse.Namespace) -> int:
    known = {one.name: one for one in found(args)}
    if bool(args.names) == args.all:
        raise ForkError("name what is to go, as `fork list` prints it, or give --all alone")
    if unknown := [name for name in args.names if name not in known]:
        raise ForkError(f"nothing is called {unknown[0]}: `fork list` prints {', '.join(known) or 'nothing'}")
    freed = 0
    for name in known if args.all else dict.fromkeys(args.names):
        size = known[name].size()
        known[name].remove()
        freed += size
        print(f"removed  {known[name].folder} ({size / 1e6:.0f} MB)", flush=True)
    print(f"freed    {freed / 1e6:.0f} MB; an environment whose fork is gone imports the torch that pip installed")
    return 0
