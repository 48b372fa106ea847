"""`fork export`: the stack as mailbox patches for `git am`, the same bytes every time."""

from __future__ import annotations

import argparse
from pathlib import Path

from fork.checkout.git import Checkout
from fork.checkout.stack_to_commits import commit_steps, weave_steps
from fork.commands.import_ import refuse_inside
from fork.commands.options import begun, stack
from fork.errors import ForkError

# How a patch begins that is of no commit of the checkout: --zero-commit.
EXPORTED = b"From " + b"0" * 40
FLAGS = (
    "--zero-commit --no-signature --no-renames --full-index --binary --diff-algorithm=histogram --subject-prefix=PATCH "
    "--numbered --no-attach --no-thread --no-cover-letter --no-base --encode-email-headers --no-signoff --no-from "
    "--no-notes --no-to --no-cc --no-add-header --filename-max-length=64 --suffix=.patch --src-prefix=a/ "
    "--dst-prefix=b/ --unified=3 --inter-hunk-context=0 --no-color"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="TREE", help="a git checkout of PyTorch")
    parser.add_argument("dir", type=Path, metavar="DIR", help="where the patches go")
    parser.add_argument("--pr", metavar="N", help="stop after this PR or commit (its name or place)")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    checkout = Checkout.open(args.tree)
    if args.checkout and args.checkout.resolve() == checkout.path:
        # The branch's own checkout, of which new files would become part.
        refuse_inside(args.dir, checkout.path)
    checkout = begun(args, checkout)
    steps = weave_steps(checkout, series, series.find(args.pr))
    # The base's own date, so that the same stack on the same base is the same bytes.
    date = checkout.git("show", "-s", "--format=%ct +0000", checkout.head).strip()
    last = commit_steps(checkout, steps, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
    folder = args.dir.absolute()
    there = _exported(folder)
    written = checkout.git("format-patch", *FLAGS.split(), "-o", str(folder), f"{checkout.head}..{last}")
    names = {Path(line).name for line in written.splitlines()}
    for file in (file for file in there if file.name not in names):
        file.unlink()
    print(written, end="")
    return 0


def _exported(folder: Path) -> list[Path]:
    """The patches of an earlier export; raises where a folder has others."""
    if folder.exists() and not folder.is_dir():
        raise ForkError(f"{folder} is a file: choose a folder for the patches")
    there = sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.patch"))
    if others := [file for file in there if not file.read_bytes().startswith(EXPORTED)]:
        raise ForkError(
            f"{others[0]} was not written by `fork export`: choose an empty folder, or one from an earlier export"
        )
    return there
