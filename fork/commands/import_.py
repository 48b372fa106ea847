"""`fork import`: a branch of a PyTorch checkout as a stack in a folder, the inverse of `fork apply`."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from fork.arguments import add_branch_arguments
from fork.checkout.branch_to_stack import stack_files
from fork.checkout.whole_branch import refuse_left_out
from fork.engine.wheel import disk
from fork.errors import ForkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="CHECKOUT", help="a git checkout of PyTorch with a branch of yours")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty folder for the stack")
    add_branch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ForkError(f"{folder} is not empty: give a new folder")
    refuse_inside(folder, args.tree)
    taken, writing = stack_files(args.tree, getattr(args, "since", None), folder)
    print(f"stack    {taken.summary}", file=sys.stderr, flush=True)
    if not getattr(args, "added_only", False):
        refuse_left_out(writing.left_out, taken.checkout, "stack")
    for line in writing.left_out:
        print(f"left out {line}", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and then into it in one rename: a stack that is there is whole.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".importing-") as made:
        for path, text in writing.files.items():
            disk.write(Path(made) / "stack-of-it", path, text)
        (Path(made) / "stack-of-it").replace(folder)
    print(f"{folder} holds the stack: `python -m fork --root {shlex.quote(str(folder))} build` builds it")
    return 0


def refuse_inside(folder: Path, tree: Path) -> None:
    """Files that git does not know are part of a branch, so what is made of the branch must lie elsewhere."""
    if folder.resolve().is_relative_to(tree.resolve()):
        raise ForkError(f"{folder} lies in {tree} and would become part of its branch: choose a folder outside")
