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

from fork.cpp.difference import Hunk, hunks

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


def language(name: str) -> Lexer:
    """The lexer of a language as a Markdown fence names it; plain text where there is none."""
    try:
        return get_lexer_by_name(name, stripnl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False)


def _lexer(path: str) -> Lexer:
    if path.endswith(".h"):  # Pygments takes it for C
        return language("cpp")
    try:
        return get_lexer_for_filename(path, stripnl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False)


def rows(path: str, before: str, after: str) -> list[Row]:
    """What changes between two texts, with a little context; each group of changes begins with a gap."""
    one, two = _lines(before), _lines(after)
    groups: list[list[Hunk]] = []
    for hunk in hunks(one, two):
        if groups and hunk[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    lexer = _lexer(path)
    # What comes after the last change need not be read.
    new = coloured(lexer, "\n".join(two[: groups[-1][-1][3] + CONTEXT] if groups else []))
    # A stack adds; what it removes is rare.
    removes = any(a < b for group in groups for a, b, _, _ in group)
    old = coloured(lexer, "\n".join(one[: groups[-1][-1][1]] if removes else []))
    found: list[Row] = []
    for group in groups:
        i, j, end = max(group[0][0] - CONTEXT, 0), max(group[0][2] - CONTEXT, 0), min(group[-1][1] + CONTEXT, len(one))
        if one:
            found.append(Row("@", 0, 0, escape(_heading(two, j))))
        for a, b, c, d in (*group, (end, end, 0, 0)):
            found += [Row(" ", i + n + 1, j + n + 1, new[j + n]) for n in range(a - i)]
            found += [Row("-", n + 1, 0, old[n]) for n in range(a, b)]
            found += [Row("+", 0, n + 1, new[n]) for n in range(c, d)]
            i, j = b, d
    return found


def _lines(text: str) -> list[str]:
    """As Pygments and editors count them: a form feed ends no line."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _heading(lines: Sequence[str], start: int) -> str:
    """The line number where a group begins, and the function or class around it, as git guesses it."""
    around = next((line for line in reversed(lines[:start]) if re.match(r"[A-Za-z_$]", line)), "")
    return f"line {start + 1}" + (f": {around.rstrip()}" if around else "")
