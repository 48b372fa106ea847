"""`fork run`: runs a command with a fork as its torch."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from fork.commands import options
from fork.engine.pipeline import build, environment, python_folder
from fork.errors import ForkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ForkError("no command was given: write it after `--`, as in `fork run -- python script.py`")
    fork = options.chosen(args)
    site = build(fork) if fork.stale() else fork.site
    # Resolved, so that a build that finishes meanwhile does not change what the command imports.
    variables = environment(site.resolve(), python_folder(fork.home, fork.base.python) / "python")
    program = shutil.which(words[0], path=variables["PATH"])
    if program is None:
        raise ForkError(f"{words[0]} was not found")
    sys.stdout.flush()
    os.execve(program, words, variables)
