"""Command lines of all programs here: what is wrong is told in one sentence, and the exit status is 1."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from fork.errors import ForkError


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line as the tool says everything else."""

    def error(self, message: str) -> NoReturn:
        _, unknown, words = message.partition("unrecognized arguments: ")
        known = [word for word in words.split() if word.partition("=")[0] in self._option_string_actions]
        if unknown and known:
            raise ForkError(f"{message}: write {known[0]} before the command")
        command = " COMMAND" if unknown and self._subparsers else ""
        raise ForkError(f"{message}: see `{self.prog}{command} --help`")


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, not below `least`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value

    return number


def duration(text: str) -> float:
    """The type of an option that is a time."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def status(program: str, main: Callable[[], int | None], stopped: str = "stopped") -> int:
    """The exit status of a program: what `main` returns, or 1 for an error that is told in one sentence."""
    try:
        return main() or 0
    except BrokenPipeError:
        # Who read the output has seen enough; what Python would flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ForkError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: {stopped}", file=sys.stderr)
        return 130
