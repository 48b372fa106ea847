"""`fork build`: builds a fork and makes it the torch of this virtual environment."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from fork import base as bases
from fork.build import Fork, build
from fork.errors import ForkError
from fork.series import Series

# The tool's own, whatever stack --root names.
REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
# Ends in .pth: Python runs its line at every start. A fork that `fork run` chose goes before the installed one.
PTH = "fork.pth"
LINE = "import os, sys; sys.path.insert(0, os.environ.get('TORCH_FORK') or {site!r})\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose a fork; `run`, `wheel` and `compat` share them."""
    parser.add_argument("--pr", metavar="N", help="the state of the stack: a PR's name or place (default: the last)")
    parser.add_argument("--torch", metavar="VERSION", help="a release to build on (default: the installed torch)")
    parser.add_argument("--cuda", choices=("auto", "on", "off"), default="auto", help="compile the CUDA kernels")
    parser.add_argument("--build", type=Path, metavar="DIR", help="where builds are kept (default: build/)")


def chosen(args: argparse.Namespace) -> Fork:
    """The fork that the options name."""
    root: Path = args.root.resolve()
    series = Series.load(root)
    folder: Path = (args.build or root / "build").absolute()
    pr = series.find(args.pr) if args.pr else series.prs[-1]
    base = bases.obtain(args.torch, args.cuda, folder / "bases", REQUIREMENTS) if args.torch else bases.installed()
    return Fork(series, pr, base, args.cuda, folder)


def run(args: argparse.Namespace) -> int:
    fork = chosen(args)
    site = build(fork)
    if not args.torch:
        print(install(site), flush=True)
    return 0


def install(site: Path) -> str:
    """Makes this virtual environment import the fork; says what it did."""
    if sys.prefix == sys.base_prefix:
        return (
            f"use      `python -m fork run -- COMMAND`, or put {site} first in PYTHONPATH (no virtual environment here)"
        )
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = Path(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )
    line = LINE.format(site=str(site))
    try:
        if not (folder / PTH).is_file() or (folder / PTH).read_text() != line:
            (folder / PTH).write_text(line)
    except OSError as error:
        raise ForkError(f"{folder / PTH} cannot be written ({error.strerror}): use `fork run` instead") from error
    return f"use      {sys.executable} imports it; `rm {folder / PTH}` brings back the base"
