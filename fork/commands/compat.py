"""`fork compat`: the stack on every release of torch that is served, one release on disk at a time."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from pathlib import Path

from fork import process
from fork.buildable import refuse_unbuildable
from fork.checkout.operators import operators
from fork.commands.options import build_folder, stack
from fork.engine.build import Build, environment
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.series import Commit, Series
from fork.verify.prefix import tests_folder

CORE = "TestCommon or TestCompositeCompliance or TestBwdGradients or TestFwdGradients or TestMeta"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("releases", nargs="*", metavar="VERSION", help="default: every release served")
    parser.add_argument("--pr", metavar="N", help="a PR or commit, by name or place (default: the last)")
    parser.add_argument("--keep", action="store_true", help="keep each release's files under the build folder")
    parser.add_argument("--build", type=Path, metavar="DIR", help="where builds are kept (default: build/compat)")


def run(args: argparse.Namespace) -> int:
    series = stack(args)
    commit = series.find(args.pr)
    if not operators(series, commit):
        raise ForkError(f"{commit.name} has no public operator: there is nothing to test on another release")
    if not series.operator_tests:
        raise ForkError(f"{series.root / 'stack/series.yaml'} names no tests: write `operator_tests: test/test_ops.py`")
    folder = build_folder(args, series, "build/compat")
    tried = []
    for release in args.releases or released():
        tried.append(_try(series, commit, release, folder, args.keep))
        print(tried[-1][0], flush=True)
    print("\n| torch | state | build | core tests |\n| --- | --- | --- | --- |")
    print("\n".join(row for row, _ in tried))
    return 0 if all(passed for _, passed in tried) else 1


def released() -> list[str]:
    """The releases of torch that pip finds, oldest served first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    said = process.run(command, "pip found no release of torch")
    line = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
    if line is None:
        raise ForkError("pip found no release of torch: is there a network?")
    found = sorted(map(bases.release, line[1].split(", ")))
    return [str(v) for v in found if v >= bases.release(bases.OLDEST) and not v.is_prerelease]


def _try(series: Series, commit: Commit, release: str, folder: Path, keep: bool) -> tuple[str, bool]:
    """What one release says of the state, as a row of the table, and whether its tests passed."""
    made: list[Path] = []
    try:
        release = bases.full(release)
        base = bases.obtain(release, "off", folder / "bases")
        refuse_unbuildable(series, commit)
        build = Build(series, commit, base, "off", folder)
        made += [folder / "bases" / release, build.home]
        start = time.monotonic()
        site = make(build)
        took = f"{time.monotonic() - start:.0f} s"
        chosen = f"({' or '.join(operators(series, commit))}) and ({CORE})"
        command = [str(base.python), *["-m", "pytest", "-q", "-n", "2"], str(series.operator_tests), "-k", chosen]
        result = process.attempt(command, cwd=tests_folder(series), env=environment(site, base.python))
    except ForkError as error:
        return f"| {release} | {commit.name} | failed: {error} |  |", False
    finally:
        for left in made if not keep else ():
            shutil.rmtree(left, ignore_errors=True)
    log = folder / f"{release}.log"
    log.write_text(result.stdout + result.stderr)
    said = re.findall(r"(\d+ (?:passed|failed|error)\w*)", (result.stdout.strip().splitlines() or [""])[-1])
    if result.returncode:
        print(f"log      {log}", flush=True)
    return f"| {release} | {commit.name} | {took} | {', '.join(said) or 'none ran'} |", result.returncode == 0
