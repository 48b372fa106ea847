"""The options that choose a fork, which several commands share."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fork.arguments import at_least
from fork.buildable import refuse_names, refuse_unbuildable
from fork.checkout import branch, whole_branch
from fork.checkout.git import Checkout
from fork.digest import digest
from fork.engine.build import Build
from fork.engine.compile import sanitizers
from fork.engine.wheel import base as bases
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.folders import PACKAGE, checkouts, meant, root
from fork.series import Series

# Of the options before a command, those that a word follows.
FOLDERS = (["--root"], ["--checkout"], ["--since"])


def add_arguments(parser: argparse.ArgumentParser, sanitize: bool = True) -> None:
    """Adds the options that choose a fork, and perhaps the one that builds it for finding faults."""
    parser.add_argument(
        "--pr", metavar="N", help="the state after a PR or commit, by name or place (default: the last)"
    )
    parser.add_argument("--torch", metavar="VERSION", help="a release to build on (default: the installed torch)")
    parser.add_argument("--cuda", choices=("auto", "on", "off"), default="auto", help="compile the CUDA kernels")
    parser.add_argument(
        "--many",
        type=at_least(1),
        metavar="N",
        help=f"compile up to N of PyTorch's sources and operators (default: {Build.most_sources})",
    )
    parser.add_argument("--build", type=Path, metavar="DIR", help="where builds are kept (default: build/)")
    if sanitize:
        says = "instrument what is added or changed: address,undefined or thread (GCC)"
        parser.add_argument("--sanitize", metavar="NAMES", help=says)


def stack(args: argparse.Namespace) -> Series:
    """The stack that the command line names; every command takes it from here."""
    if not getattr(args, "checkout", None):
        return Series.load(root(args.root))
    path: Path = args.checkout.resolve()
    # Builds that go elsewhere leave nothing here.
    folder = getattr(args, "build", None)
    top = folder.absolute() / "checkouts" if folder else checkouts(args.root)
    home = top / f"{path.name}-{digest(str(path).encode())[:6]}"
    added_only = getattr(args, "added_only", False)
    found = whole_branch.read(args.checkout, getattr(args, "since", None), home, added_only)
    print(f"stack    {found.summary}", file=sys.stderr, flush=True)
    for line in found.left_out:
        print(f"left out {line}", file=sys.stderr, flush=True)
    return found


def typed(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The words of the command line before the command and behind it."""
    words: list[str] = args.typed
    # A folder that an option names may be called as the command is.
    at = next(n for n, word in enumerate(words) if word == args.command and words[n - 1 : n] not in FOLDERS)
    return words[:at], words[at + 1 :]


def begun(args: argparse.Namespace, checkout: Checkout) -> Checkout:
    """The checkout that a stack goes on: of the branch's own checkout, the commit that the branch left."""
    if not args.checkout or args.checkout.resolve() != checkout.path:
        return checkout
    return replace(checkout, head=branch.start(checkout, getattr(args, "since", None)).commit)


def build_folder(args: argparse.Namespace, series: Series, name: str = "build") -> Path:
    """Where builds are kept: the folder that --build names, which is made before anything takes long."""
    folder: Path = (args.build or series.root / name).absolute()
    refuse_names(folder, series.root, PACKAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForkError(f"{folder} cannot be made ({error.strerror}): choose a folder of yours by --build") from error
    return folder


def chosen(args: argparse.Namespace) -> Build:
    """The fork that the options name."""
    words = getattr(args, "sanitize", None)
    sanitize = sanitizers.named(words) if words is not None else ()
    cuda = "off" if sanitize else args.cuda
    series = stack(args)
    if not args.root and not args.checkout and (way := meant()):
        print(f"note     this is the stack of {series.root}: {way}", file=sys.stderr, flush=True)
    folder = build_folder(args, series)
    commit = series.find(args.pr)
    refuse_unbuildable(series, commit)  # before a release is fetched
    return Build(series, commit, base_of(args), cuda, folder, sanitize, args.many or Build.most_sources)


def base_of(args: argparse.Namespace) -> Base:
    """The release that --torch names, or the installed torch."""
    # Whatever stack or folder is chosen: a release takes gigabytes.
    shared = checkouts(args.root).parent / "bases"
    return bases.obtain(args.torch, args.cuda, shared) if args.torch else bases.installed()
