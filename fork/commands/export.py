"""`fork export`: the stack as mailbox patches for `git am`, the same bytes every time."""

from __future__ import annotations

import argparse
import email
import email.policy
import sys
import tempfile
from pathlib import Path

from fork.checkout.git import Checkout
from fork.checkout.stack_to_commits import Step, commit_steps, lacking, weave_steps
from fork.commands.import_ import refuse_inside
from fork.commands.options import begun, stack
from fork.errors import ForkError
from fork.series import Series

# Not `.patch`, so that `git am DIR/*.patch`, which everybody types, takes the patches alone.
COVER = "0000-cover-letter.txt"
FLAGS = (
    "--zero-commit",
    "--no-signature",
    "--no-renames",
    "--full-index",
    "--binary",
    "--diff-algorithm=histogram",
    "--subject-prefix=PATCH",
    "--numbered",
    "--no-attach",
    "--no-thread",
    "--no-cover-letter",
    "--no-base",
    "--encode-email-headers",
    "--no-signoff",
    "--no-from",
    "--no-notes",
    "--no-to",
    "--no-cc",
    "--no-add-header",
    "--filename-max-length=64",
    "--suffix=.patch",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--no-color",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="TREE", help="a git checkout of PyTorch")
    parser.add_argument("dir", type=Path, nargs="?", metavar="DIR", help="where the patches go")
    parser.add_argument("--pr", metavar="N", help="stop after this PR or commit (its name or place)")
    parser.add_argument("--compare-to", type=Path, metavar="OLD", help="print a range-diff from an earlier export")


def run(args: argparse.Namespace) -> int:
    if args.dir is None and args.compare_to is None:
        raise ForkError("fork export has nothing to do: give DIR, --compare-to OLD, or both")
    series = stack(args)
    checkout = Checkout.open(args.tree)
    if args.checkout and args.checkout.resolve() == checkout.path:
        # The branch's own checkout, of which new files would become part.
        refuse_inside(args.dir or args.compare_to, checkout.path)
    checkout = begun(args, checkout)
    until = series.find(args.pr)
    steps = weave_steps(checkout, series, until)
    for note in lacking(checkout, series, until):
        print(f"note     {note}", file=sys.stderr)
    # The base's own date, so that the same stack on the same base is the same bytes.
    date = checkout.git("show", "-s", "--format=%ct +0000", checkout.head).strip()
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    last = commit_steps(checkout, steps, **dates)
    if args.compare_to is not None:
        old = _import(checkout, args.compare_to, dates)
        ranges = (f"{checkout.head}..{old}", f"{checkout.head}..{last}")
        print(checkout.git("range-diff", "--no-color", *ranges), end="")
    if args.dir is not None:
        for name in _write(checkout, series, steps, last, args.dir):
            print(args.dir / name)
    return 0


def _write(checkout: Checkout, series: Series, steps: list[Step], last: str, folder: Path) -> list[str]:
    if folder.exists() and not folder.is_dir():
        raise ForkError(f"{folder} is a file: choose a folder for the patches")
    folder.mkdir(parents=True, exist_ok=True)
    there = {file.name for file in folder.glob("[0-9][0-9][0-9][0-9]-*.patch")}
    if there and not (folder / COVER).is_file():
        raise ForkError(
            f"{folder / min(there)} was not written by `fork export`: "
            "choose an empty folder, or one from an earlier export"
        )
    with tempfile.TemporaryDirectory() as made:
        checkout.git("format-patch", *FLAGS, "-o", made, f"{checkout.head}..{last}")
        patches = {file.name: file.read_bytes() for file in sorted(Path(made).glob("*.patch"))}
    patches = {COVER: _cover(checkout, series, steps, last).encode(), **patches}
    for name, content in patches.items():
        (folder / name).write_bytes(content)
    for name in there - set(patches):
        (folder / name).unlink()
    return list(patches)


def _cover(checkout: Checkout, series: Series, steps: list[Step], last: str) -> str:
    who, date = checkout.git("show", "-s", "--format=%an <%ae>%n%aD", last).splitlines()
    here = [step.commit for step in steps]
    prs = [pr for pr in series.prs if pr.commits[0] in here]
    lines = []
    for pr in prs:
        lines.append(f"  {pr.place}. {pr.title}")
        lines += [f"     {commit.place} {commit.title}" for commit in pr.commits if pr.split and commit in here]
    titles = "\n".join(lines)
    stat = checkout.git("diff", "--stat=79", "--summary", "--no-renames", "--no-color", checkout.head, last)
    return (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        f"From: {who}\nDate: {date}\n"
        f"Subject: [PATCH 0/{len(steps)}] {prs[-1].title}\n\n"
        f"The stack, oldest first, on {checkout.head}:\n\n{titles}\n\n"
        f"Each applies, builds and passes its tests on top of those before it:\n"
        f"`git am *.patch` in this folder takes them in order.\n\n{stat}"
    )


def _import(checkout: Checkout, folder: Path, dates: dict[str, str]) -> str:
    """The commits of an earlier export, on the commit that the stack goes on; returns the last one's hash."""
    patches = sorted(folder.glob("*.patch"))
    if not patches:
        raise ForkError(f"{folder} holds no export: it has no patches")
    parent = checkout.head
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        checkout.git("read-tree", checkout.head, **index)
        for file in patches:
            try:
                checkout.git("apply", "--cached", "--unidiff-zero", str(file.resolve()), **index)
            except ForkError as error:
                raise ForkError(f"{file} does not apply to {checkout.path}: export it anew") from error
            tree = checkout.git("write-tree", **index).strip()
            message = _message(file)
            parent = checkout.git("commit-tree", tree, "-p", parent, stdin=message, **dates).strip()
    return parent


def _message(file: Path) -> str:
    letter = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
    subject = str(letter["Subject"]).split("] ", 1)[-1]
    content = letter.get_content()
    return f"{subject}\n\n{content.partition(chr(10) + '---' + chr(10))[0]}\n"
