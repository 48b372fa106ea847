"""`fork run`: runs a command with a fork as its torch."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from fork.commands import options
from fork.digest import digest
from fork.engine.build import COMMAND, Build, environment, python_folder
from fork.engine.pipeline import make
from fork.errors import ForkError, NothingToBuild
from fork.folders import checkouts

# What a shell gives for such a command.
NOT_EXECUTABLE, NOT_FOUND = 126, 127
# A new kernel may end its process: Python then says by which signal, and where.
CRASHES = {"PYTHONFAULTHANDLER": "1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise ForkError("no command was given: write it after `--`, as in `fork run -- python script.py`")
    build: Build | None = None
    try:
        build = options.chosen(args)
        base = build.base
    except NothingToBuild as nothing:
        base = options.base_of(args)
        print(f"note     {nothing}; so this is torch {base.version} itself", file=sys.stderr, flush=True)
    # Without a fork in a folder of the interpreter's, since two commands may run with two.
    home = build.home if build else checkouts(args.root).parent / "stock" / digest(str(base.python).encode())
    folder = python_folder(home, base.python)
    # Before a build that takes minutes.
    program = shutil.which(words[0], path=environment(folder, folder / "python")["PATH"])
    if program is None:
        found = Path(words[0]).exists()
        print(f"fork: {words[0]} {'cannot be executed' if found else 'was not found'}", file=sys.stderr)
        return NOT_EXECUTABLE if found else NOT_FOUND
    site = base.site if build is None else make(build) if build.stale() else build.site
    sys.stdout.flush()
    before = args.typed[: len(args.typed) - len(args.words)]
    variables = CRASHES | environment(site, folder / "python", build.sanitize if build else ())
    variables[COMMAND] = shlex.join(["python", "-m", "fork", *before, "--"])
    try:
        os.execve(program, words, variables)
    except OSError as error:
        print(f"fork: {program} cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
