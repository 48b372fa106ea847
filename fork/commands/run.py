"""`fork run`: runs a command with a fork as its torch."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from fork.commands import options
from fork.engine.fork import COMMAND, environment, python_folder
from fork.engine.pipeline import build
from fork.errors import ForkError

# What a shell gives for such a command.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
# A new kernel may end its process: Python then says by which signal, and where.
CRASHES = {"PYTHONFAULTHANDLER": "1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    options.add_sanitize(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ForkError("no command was given: write it after `--`, as in `fork run -- python script.py`")
    fork = options.chosen(args)
    folder = python_folder(fork.home, fork.base.python)
    # Before a build that takes minutes.
    program = shutil.which(words[0], path=environment(folder, folder / "python")["PATH"])
    if program is None:
        found = Path(words[0]).exists()
        print(f"fork: {words[0]} {'cannot be executed' if found else 'was not found'}", file=sys.stderr)
        return NOT_EXECUTABLE if found else NOT_FOUND
    site = build(fork) if fork.stale() else fork.site
    sys.stdout.flush()
    before = args.typed[: len(args.typed) - len(args.words)]
    # Resolved, so that a build that finishes meanwhile does not change what the command imports.
    variables = CRASHES | environment(site.resolve(), folder / "python", fork.sanitize)
    variables[COMMAND] = shlex.join(["python", "-m", "fork", *before, "--"])
    try:
        os.execve(program, words, variables)
    except OSError as error:
        print(f"fork: {program} cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
