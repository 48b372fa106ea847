"""Command lines of all programs here: what is wrong is told in one sentence, and the exit status is 1."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from fork.errors import ForkError


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line, whose words a program with commands puts here, as the tool says all."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        found = (action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
        commands: Mapping[str, argparse.ArgumentParser] = next(found, {})
        at, command = next(((n, word) for n, word in enumerate(self.words) if word in commands), (0, ""))
        for name in (word.partition("=")[0] for word in self.words[:at]):
            if name not in self._option_string_actions and name in commands[command]._option_string_actions:
                raise ForkError(f"{name} is an option of {command}: write it behind the command")
        _, unknown, words = message.partition("unrecognized arguments: ")
        known = [word for word in words.split() if word.partition("=")[0] in self._option_string_actions]
        if unknown and known:
            raise ForkError(f"{message}: write {known[0]} before the command")
        if like := self._like(message, words.split(), commands):
            raise ForkError(f"{message.partition(' (choose from')[0]}: did you mean {like}?")
        command = " COMMAND" if unknown and commands else ""
        raise ForkError(f"{message}: see `{self.prog}{command} --help`")

    def _like(
        self, message: str, unknown: Sequence[str], commands: Mapping[str, argparse.ArgumentParser]
    ) -> str | None:
        """What there is of nearly the same spelling as a word that is none of the choices, or no option."""
        options = [name for parser in (self, *commands.values()) for name in parser._option_string_actions]
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            unknown, options = [choice[1]], re.findall(r"[\w-]+", choice[2])
        close = (difflib.get_close_matches(word.partition("=")[0], options, n=1) for word in unknown)
        return next((found[0] for found in close if found), None)


def add_branch_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that can stand before the command and, of `import`, behind it."""
    parser.add_argument(
        "--since",
        metavar="REV",
        default=argparse.SUPPRESS,
        help="where the branch begins (default: where it left a release tag or the main branch)",
    )
    parser.add_argument(
        "--added-only",
        action="store_true",
        default=argparse.SUPPRESS,
        help="leave out what a stack cannot have, such as changed lines of a C++ source",
    )


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, not below `least`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return number


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
