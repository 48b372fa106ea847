"""Fills generated figures and tables into documents, at markers that Markdown does not show.

A block stands between two lines, `<!--key-->` and `<!--/-->`. In a sentence the markers cling to the words around, as
in `takes<!--key--> 3 ms<!--/-->.`, since a line that begins with a comment would end the paragraph; the paragraph is
wrapped again. `fork` leaves the markers out of a PR's message.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fork.errors import ForkError

WIDTH = 120
END = "<!--/-->"
MARKER = re.compile(r"<!--(?P<key>[a-z][^\s>]*)-->(?P<old>.*?)(?P<end><!--/-->|(?=<!--[a-z])|\Z)", re.DOTALL)
PARAGRAPH = re.compile(r"(?:^(?!\n|<!--|[|#`]).+\n)+", re.MULTILINE)
BULLET = re.compile(r"^(?=[*-] |\d+\. )", re.MULTILINE)


def fill(text: str, values: Mapping[str, str], document: str, whole: bool = False) -> str:
    """The document with the value of each key at its markers; `whole` says that no other key may stand there.

    A value of several lines, or of none, is a block. Raises ForkError for a marker that cannot be filled.
    """
    keys = [found["key"] for found in MARKER.finditer(text)]
    if not whole and (missing := [key for key in values if key not in keys]):
        raise ForkError(f"{document} has no place for {missing[0]!r}: write <!--{missing[0]}--> and {END} there")
    if whole and (unknown := [key for key in keys if key not in values]):
        raise ForkError(f"{document} asks for {unknown[0]!r}, which nobody measures: use one of {', '.join(values)}")

    def filled(found: re.Match[str]) -> str:
        key, old = found["key"], found["old"]
        if not found["end"]:
            raise ForkError(f"{document}: {END} does not follow <!--{key}-->")
        if old.startswith("\n"):
            new = f"\n{values[key].strip(chr(10))}\n" if key in values else old
        else:
            if found.start() == 0 or text[found.start() - 1].isspace():
                raise ForkError(f"{document}: <!--{key}--> has to follow a word, without a space between")
            new = f" {values[key].strip()}" if key in values else old
        return f"<!--{key}-->{new}{END}"

    return PARAGRAPH.sub(_wrapped_again, MARKER.sub(filled, text))


def _wrapped_again(found: re.Match[str]) -> str:
    """A paragraph or a list's items; those that have a marker inside are wrapped."""
    return "".join(_wrapped_item(item) if "<!--" in item else item for item in BULLET.split(found[0]))


def _wrapped_item(item: str) -> str:
    indent = "  " if item.startswith(("* ", "- ")) else " " * (len(item) - len(item.lstrip()))
    first = "" if item.startswith(("* ", "- ")) else indent
    return wrapped(" ".join(item.split()), first, indent)


def outside_markers(text: str) -> str:
    """What was written by hand."""
    return MARKER.sub("", text)


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """The text in lines of at most 120 characters."""
    return (
        textwrap.fill(
            text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
        )
        + "\n"
    )


def lines(record: Mapping[str, Any]) -> str:
    """A record as JSON with one of its `results` a line, so that a difference shows what was measured again."""
    head = json.dumps({key: value for key, value in record.items() if key != "results"})
    return f'{head[:-1]}, "results": [\n' + ",\n".join(map(json.dumps, record["results"])) + "\n]}\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))
