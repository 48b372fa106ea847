"""The command line: which commands there are, and errors as one sentence with exit status 1."""

from __future__ import annotations

import argparse
import importlib
import sys
from functools import partial
from pathlib import Path

from fork import __version__
from fork.arguments import Parser, add_branch_arguments, status
from fork.commands.combinations import refuse_senseless
from fork.errors import told_plainly
from fork.folders import PACKAGE, REQUIREMENTS

COMMANDS = {
    "build": "weave, generate, compile and install a fork on the installed torch",
    "run": "run a command with a fork as its torch, building it first when it is missing or stale",
    "wheel": "pack a fork as an installable wheel",
    "show": "print the stack, or one PR of it",
    "check": "check that the stack is sound: every prefix weaves, builds and passes what it ships",
    "new": "write the first stack of an operator, from its schema",
    "apply": "commit the stack on a new branch of a PyTorch checkout",
    "import": "write a branch of a PyTorch checkout as a stack in a folder, the inverse of apply",
    "export": "write the stack as mailbox patches against a PyTorch checkout",
    "list": "list what is built, of which branch, for which torch, and how large it is",
    "clean": "remove what is built",
    "compat": "weave, build and test the stack on every release of torch that is served",
}

MODULES = {"import": "import_", "list": "list_"}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit status is its own, 1 for an error that the tool explains."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        return status("fork", partial(_run, words), "stopped; the last good build is as it was")
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "fork":
            raise
        command = " ".join(["fork", *words])
        install = f"run `{sys.executable} -m pip install -r {REQUIREMENTS}`"
        print(f"fork: `{command}` needs {error.name.partition('.')[0]}: {install}", file=sys.stderr)
        return 1


def parser_of(words: list[str]) -> Parser:
    """The parser of a command line; of the commands it knows the options of those that the line names."""
    parser = Parser(
        prog="fork",
        description="Turns a branch of PyTorch, or a stack of PRs, into a PyTorch that runs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # The other one breaks paths.
    )
    parser.words = words
    parser.add_argument("--version", action="version", version=f"fork {__version__} ({PACKAGE})")
    parser.add_argument(
        "--root", type=Path, help="the folder that holds stack/ (default: the current one, or this project's)"
    )
    parser.add_argument(
        "--checkout", type=Path, metavar="TREE", help="take the branch of a PyTorch checkout as the stack"
    )
    add_branch_arguments(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name in words:  # Importing the engine takes longer than what some commands do.
            module = importlib.import_module(f"fork.commands.{MODULES.get(name, name)}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _run(words: list[str]) -> int:
    parsed = parser_of(words).parse_args(words)
    parsed.typed = words
    refuse_senseless(parsed)
    with told_plainly(parsed.root or Path.cwd()):
        return int(parsed.run(parsed))
