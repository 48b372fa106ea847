"""Options that mean nothing without another, or beside another: one table, asked before a command starts."""

from __future__ import annotations

import argparse

from fork.errors import ForkError

# Without the second, the first means nothing; `import` names a checkout itself.
NEEDS = {"--since": "--checkout", "--added-only": "--checkout", "--many": "--checkout", "--linters": "--lint"}
# Beside the second, the first means nothing, because of this.
EXCLUSIVE_OPTIONS = {
    ("--static", "--lint"): "--lint builds nothing as it is",
    ("--all", "--static"): "--static runs no test",
    ("--all", "--lint"): "--lint runs no test",
    ("--pr", "--static"): "--static is about all states",
    ("--pr", "--lint"): "--lint is about the last state",
    ("--build", "--static"): "--static builds nothing",
    ("--install", "--torch"): "--install is for a fork of this environment's own torch",
    ("--install", "--plan"): "--plan installs nothing",
    ("--install", "--sanitize"): "--install is for a fork without sanitizers, which `fork run --sanitize` runs",
    ("--sanitize", "--cuda on"): "--sanitize is for the CPU",
}
# The commands that take nothing from an option of all commands, and what names it instead.
NAMED_OTHERWISE = {
    ("import", "--checkout"): "CHECKOUT names the branch",
    ("import", "--root"): "FOLDER names the stack",
    ("new", "--checkout"): "FOLDER names the stack",
    ("new", "--root"): "FOLDER names the stack",
    ("list", "--checkout"): "all that is built is listed",
    ("clean", "--checkout"): "NAME says what is to go",
}


def refuse_senseless(args: argparse.Namespace) -> None:
    """Raises where an option of a command line means nothing; what was asked for would not happen."""
    for (command, option), why in NAMED_OTHERWISE.items():
        if args.command == command and _given(args, option):
            raise ForkError(f"{why}: leave out {option}")
    for option, other in NEEDS.items():
        if _given(args, option) and not (_given(args, other) or (args.command == "import" and other == "--checkout")):
            raise ForkError(f"{option} means nothing without {other}: add {other}, or leave it out")
    for (option, other), why in EXCLUSIVE_OPTIONS.items():
        if _given(args, option) and _given(args, other):
            raise ForkError(f"{why}: leave out {option if other in ('--static', '--lint') else other}")


def _given(args: argparse.Namespace, option: str) -> bool:
    name, _, value = option.removeprefix("--").partition(" ")
    found = getattr(args, name.replace("-", "_"), None)
    return found == value if value else found is not None and found is not False
