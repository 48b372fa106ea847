"""`fork import`: a branch of a PyTorch checkout as a stack in a folder, the inverse of `fork apply`."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
from pathlib import Path

from fork import folders
from fork.arguments import add_branch_arguments
from fork.checkout import branch, branch_to_stack
from fork.checkout.git import Checkout
from fork.digest import digest
from fork.errors import ForkError
from fork.lock import alone
from fork.verify.soundness import STACK

# PyTorch's OpInfo suites, which the tool brings for any operator.
OPERATOR_TESTS = "test/test_ops.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="CHECKOUT", help="a git checkout of PyTorch with a branch of yours")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty folder for the stack")
    add_branch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ForkError(f"{folder} is not empty: give a new folder")
    refuse_inside(folder, args.tree)
    writing = _read(args, args.tree, {})
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and then into it in one rename: a stack that is there is whole.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".importing-") as made:
        branch_to_stack.write(Path(made) / "stack-of-it", writing.files)
        (Path(made) / "stack-of-it").replace(folder)
    print(f"{folder} holds the stack: `python -m fork --root {shlex.quote(str(folder))} build` builds it")
    return 0


def refuse_inside(folder: Path, tree: Path) -> None:
    """Files that git does not know are part of a branch, so what is made of the branch must lie elsewhere."""
    if folder.resolve().is_relative_to(tree.resolve()):
        raise ForkError(f"{folder} lies in {tree} and would become part of its branch: choose a folder outside")


def stack_of_checkout(args: argparse.Namespace) -> Path:
    """The folder of the stack that `--checkout` names, brought up to the branch as it is now."""
    path: Path = args.checkout.resolve()
    # Builds that go elsewhere leave nothing here.
    build = getattr(args, "build", None)
    top = build.absolute() / "checkouts" if build else folders.checkouts(args.root)
    home = top / f"{path.name}-{digest(str(path).encode())[:6]}"
    with alone(home.with_suffix(".lock"), f"another command reads {path}"):
        file = home / branch_to_stack.KEPT / "unwoven.json"
        memory = branch_to_stack.remembered(file)
        writing = _read(args, args.checkout, memory, whole=True)
        home.mkdir(parents=True, exist_ok=True)
        branch_to_stack.write(home, writing.files)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(memory))
    return home


def _read(
    args: argparse.Namespace, tree: Path, memory: branch_to_stack.Memory, whole: bool = False
) -> branch_to_stack.Writing:
    checkout = Checkout.open(tree)
    begun = branch.start(checkout, getattr(args, "since", None))
    found = branch.states(checkout, begun, line=not whole)
    own = checkout.git("rev-parse", "--abbrev-ref", "HEAD").strip()
    words = re.sub(r"[^a-z0-9]+", ".", own.lower()).strip(".")
    suffix = words if own != "HEAD" and words else "fork"
    settings: dict[str, str | bool] = {"wheel_suffix": suffix, "operator_tests": OPERATOR_TESTS}
    if whole:
        settings |= {"tip": "branch", "checkout": str(tree.resolve()), "since": begun.commit, "branch": own}
    if not all(STACK in pr.description for pr in branch.pull_requests(found)):
        settings["strict"] = False
    writing = branch_to_stack.stack_files(checkout, begun, found, memory, settings, whole)
    print(f"stack    {branch.summary(found, own, begun)}", file=sys.stderr, flush=True)
    if not getattr(args, "added_only", False):
        branch_to_stack.refuse_left_out(writing.left_out, checkout)
    for line in (*writing.told, *writing.left_out):
        print(f"left out {line}", file=sys.stderr, flush=True)
    return writing
