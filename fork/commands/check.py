"""`fork check`: proves that the stack is sound, file by file and prefix by prefix, and names what is left to write."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from fork.commands.options import stack
from fork.engine import base as bases
from fork.errors import ForkError
from fork.series import Commit, Series
from fork.verify import operator_map, soundness
from fork.verify.prefix import Result, build_and_test


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pr", metavar="N", help="build and test only up to this PR or commit (its name or place)")
    parser.add_argument("--static", action="store_true", help="build nothing, run no test")
    parser.add_argument("--build", type=Path, metavar="DIR", help="default: build/")


def run(
    args: argparse.Namespace,
    prefix: Callable[[Series, Commit, Path], Result] = build_and_test,
) -> int:
    series = stack(args)
    problems = soundness.problems(series, bases.installed())
    print(f"{'files':16} {'sound' if not problems else 'not sound'}", flush=True)
    if not problems:
        print("\n".join(operator_map.report(series, series.find())), flush=True)
    if not args.static and not problems:
        for commit in [series.find(args.pr)] if args.pr else series.commits:
            result = prefix(series, commit, (args.build or series.root / "build").absolute())
            print(f"{commit.name:16} {result.summary()}", flush=True)
            problems += [f"{commit.name}: {run.command} failed" for run in result.runs if not run.passed]
    # Last, and without keeping anything from being tested: a stack that is being written has such lines.
    problems += [f"{left} (left to write)" for left in soundness.unfinished(series)]
    if problems:
        faults = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
        raise ForkError("\n  ".join([f"the stack has {faults}:", *problems]))
    return 0
