"""Code as lines of HTML, coloured by Pygments, and what changed between two texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.style import Style
from pygments.token import Comment, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

from fork.cpp.difference import hunks

CONTEXT = 4


class Colours(Style):
    """Those that page.css has, light and dark."""

    styles = {
        Comment: "italic var(--note)",
        Comment.Preproc: "noitalic var(--word)",
        Comment.PreprocFile: "noitalic var(--text)",
        **dict.fromkeys((Keyword, Operator.Word), "var(--word)"),
        String: "var(--text)",
        Number: "var(--count)",
        **dict.fromkeys((Name.Function, Name.Class, Name.Decorator, Name.Tag), "var(--name)"),
    }


# Without classes, since most tokens have no colour, and a class for each would make a page three times as large.
FORMATTER = HtmlFormatter(nowrap=True, noclasses=True, style=Colours)


@dataclass(frozen=True)
class Row:
    """A line of a diff. `kind` is a space, + or -, or @ for a gap; `old` and `new` are line numbers, or 0."""

    kind: str
    old: int
    new: int
    code: Markup


def coloured(lexer: Lexer, text: str) -> list[Markup]:
    """The lines of a text as HTML, each with elements of its own."""
    return list(map(Markup, highlight(text, lexer, FORMATTER).split("\n")))


def lexer_of(path: str = "", language: str = "") -> Lexer:
    """That of a file, or of a language as a Markdown fence names it; plain text's where there is none."""
    if path.endswith(".h"):  # Pygments takes it for C
        language = "cpp"
    try:
        return get_lexer_by_name(language, stripnl=False) if language else get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False)


def rows(path: str, before: str, after: str) -> list[Row]:
    """What changes between two texts, with a little context; each group of changes begins with a gap."""
    one, two = _lines(before), _lines(after)
    changes = hunks(one, two)
    if not changes:
        return []
    # What comes after the last change need not be read, nor the old text where nothing is removed.
    _, old_end, _, new_end = changes[-1]
    new = coloured(lexer_of(path), "\n".join(two[: new_end + CONTEXT]))
    old = coloured(lexer_of(path), "\n".join(one[:old_end])) if any(a < b for a, b, _, _ in changes) else []
    found: list[Row] = []
    shown = 0  # how far the rows have come in the old text
    for n, (a, b, c, d) in enumerate(changes):
        next_change = changes[n + 1][0] if changes[n + 1 :] else len(one)
        start, end = max(a - CONTEXT, shown), min(b + CONTEXT, next_change)
        if one and (start > shown or not found):
            found.append(Row("@", 0, 0, escape(_heading(two, start + c - a))))
        found += [Row(" ", i + 1, i + c - a + 1, new[i + c - a]) for i in range(start, a)]
        found += [Row("-", i + 1, 0, old[i]) for i in range(a, b)]
        found += [Row("+", 0, i + 1, new[i]) for i in range(c, d)]
        found += [Row(" ", i + 1, i + d - b + 1, new[i + d - b]) for i in range(b, end)]
        shown = end
    return found


def _lines(text: str) -> list[str]:
    """As Pygments and editors count them: a form feed ends no line."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _heading(lines: Sequence[str], start: int) -> str:
    """The line number where a group begins, and the function or class around it, as git guesses it."""
    around = next((line for line in reversed(lines[:start]) if re.match(r"[A-Za-z_$]", line)), "")
    return f"line {start + 1}" + (f": {around.rstrip()}" if around else "")
