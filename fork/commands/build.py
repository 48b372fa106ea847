"""`fork build`: builds a fork and makes it the torch of this virtual environment."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from fork.commands import options
from fork.engine.pipeline import build
from fork.errors import ForkError

# Ends in .pth: Python runs its line at every start. A fork that `fork run` chose goes before the installed one.
PTH = "fork.pth"
LINE = "import os, sys; sys.path.insert(0, os.environ.get('TORCH_FORK') or {site!r})\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    fork = options.chosen(args)
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
