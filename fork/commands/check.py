"""`fork check`: proves that the stack is sound, file by file and prefix by prefix, and names what is left to write."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from fork.checkout.git import Checkout
from fork.checkout.stack_to_commits import commit_steps, weave_steps
from fork.commands.options import begun, build_folder, stack, typed
from fork.engine.build import COMMAND
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.folders import checkouts
from fork.series import Series
from fork.verify import lint, operator_map, soundness
from fork.verify.prefix import build_and_test


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pr", metavar="N", help="build and test only up to this PR or commit (its name or place)")
    parser.add_argument("--all", action="store_true", help="also run tests that have passed with the same files")
    parser.add_argument("--static", action="store_true", help="build nothing, run no test")
    parser.add_argument(
        "--lint",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="TREE",
        help="build nothing; run the linters that a checkout of PyTorch names (default: the one of --checkout)",
    )
    parser.add_argument("--linters", metavar="CODES", help="with --lint: only these, as in RUFF,CLANGFORMAT")
    parser.add_argument("--build", type=Path, metavar="DIR", help="default: build/")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    problems = soundness.problems(series, bases.installed())
    print(f"{'files':16} {'sound' if not problems else 'not sound'}", flush=True)
    if not problems:
        print("\n".join(operator_map.report(series, series.find())), flush=True)
        for option in soundness.marked(series, soundness.OPTION):
            print(f"  option  {option} (as you like)", flush=True)
    if args.lint is not None:
        for problem in problems:  # The linters take minutes; the error at the end tells it again beside what they find.
            print(f"  fault   {problem}", flush=True)
        problems += linted(args, series)
    elif not args.static and not problems:
        before, _ = typed(args)
        folder = build_folder(args, series)
        for commit in [series.find(args.pr)] if args.pr else series.commits:
            # What repeats a failed test.
            os.environ[COMMAND] = shlex.join(["python", "-m", "fork", *before, "run", "--pr", commit.name, "--"])
            result = build_and_test(series, commit, folder, args.all)
            print(f"{commit.name:16} {result.summary()}", flush=True)
            problems += [f"{commit.name}: {run.command} failed" for run in result.runs if not run.passed]
    # Last, and without keeping anything from being tested: a stack that is being written has such lines.
    problems += [f"{left} (left to write)" for left in soundness.marked(series, soundness.UNFINISHED)]
    if problems:
        faults = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
        raise ForkError("\n  ".join([f"the stack has {faults}:", *problems]))
    return 0


def linted(args: argparse.Namespace, series: Series) -> list[str]:
    """What PyTorch's own linters find in the stack's lines, on a checkout that they leave as it is."""
    if args.lint == Path() and not args.checkout:
        raise ForkError("--lint runs the linters of a checkout of PyTorch: name one, as in `--lint ~/pytorch`")
    checkout = begun(args, Checkout.open(args.checkout if args.lint == Path() else args.lint))
    # Commits of no branch, which git drops some day.
    who = {f"GIT_{role}_{what}": "fork" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    tip = commit_steps(checkout, weave_steps(checkout, series, series.find()), **who)
    # One folder for all checkouts: PyTorch's linters take hundreds of megabytes.
    shared = args.build.absolute() if args.build else checkouts(args.root).parent
    return lint.lint(checkout, tip, shared, args.linters.split(",") if args.linters else ())
