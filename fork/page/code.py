"""Code as lines of HTML, coloured by Pygments, and what changed between two texts."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import groupby

from markupsafe import Markup
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType, is_token_subtype
from pygments.util import ClassNotFound

CONTEXT = 4
# The page's classes of colours. The first kind that contains a token's kind gives its class.
COLOURS = (
    (Comment.PreprocFile, "s"),
    (Comment.Preproc, "w"),
    (Comment, "c"),
    (Keyword, "w"),
    (Operator.Word, "w"),
    (String, "s"),
    (Number, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "f"),
    (Name.Tag, "f"),
)


@dataclass(frozen=True)
class Row:
    """A line of a diff. `kind` is a space, + or -, or @ for a gap; `old` and `new` are line numbers, 0 for none."""

    kind: str
    old: int
    new: int
    code: Markup


def coloured(lexer: Lexer, text: str) -> list[Markup]:
    """The lines of a text as HTML. A token of several lines is closed and opened again at each end of line."""
    lines = [""]
    for name, tokens in groupby(lexer.get_tokens(text), key=lambda token: _colour(token[0])):
        for n, part in enumerate("".join(words for _, words in tokens).split("\n")):
            if n:
                lines.append("")
            if part:
                part = escape(part, quote=False)
                lines[-1] += f'<span class="{name}">{part}</span>' if name else part
    return [Markup(line) for line in lines]


@cache
def _colour(kind: _TokenType) -> str:
    return next((name for colour, name in COLOURS if is_token_subtype(kind, colour)), "")


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
    groups = _groups(one, two)
    lexer = _lexer(path)
    # What comes after the last change need not be read.
    new = coloured(lexer, "\n".join(two[: groups[-1][-1][4]] if groups else []))
    # A stack adds; what it removes is rare.
    removes = any(tag in ("replace", "delete") for group in groups for tag, *_ in group)
    old = coloured(lexer, "\n".join(one[: groups[-1][-1][2]] if removes else []))
    found = []
    for group in groups:
        if one:
            found.append(Row("@", group[0][1], group[0][3], Markup(escape(_heading(two, group[0][3])))))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                found += [Row(" ", i1 + n + 1, j1 + n + 1, new[j1 + n]) for n in range(j2 - j1)]
            else:
                found += [Row("-", i + 1, 0, old[i]) for i in range(i1, i2)]
                found += [Row("+", 0, j + 1, new[j]) for j in range(j1, j2)]
    return found


def _lines(text: str) -> list[str]:
    """As Pygments and editors count them: a form feed ends no line."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _groups(one: list[str], two: list[str]) -> list[list[tuple[str, int, int, int, int]]]:
    """difflib's grouped opcodes. It sees only what lies between the first and the last difference."""
    head = len(os.path.commonprefix([one, two]))
    rest = [one[head:][::-1], two[head:][::-1]]
    tail = len(os.path.commonprefix(rest))
    start, tail = max(head - CONTEXT, 0), max(tail - CONTEXT, 0)
    old, new = one[start : len(one) - tail], two[start : len(two) - tail]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(old) > 2000)
    return [
        [(tag, i1 + start, i2 + start, j1 + start, j2 + start) for tag, i1, i2, j1, j2 in group]
        for group in matcher.get_grouped_opcodes(CONTEXT)
        if any(tag != "equal" for tag, *_ in group)
    ]


def _heading(lines: Sequence[str], start: int) -> str:
    """The line number where a group begins, and the function or class around it, as git guesses it."""
    around = next((line for line in reversed(lines[:start]) if re.match(r"[A-Za-z_$]", line)), "")
    return f"line {start + 1}" + (f": {around.rstrip()}" if around else "")
