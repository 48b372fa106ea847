"""Which functions the change of a C++ header declares otherwise, where it changes nothing but such declarations."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fork.cpp.difference import hunks
from fork.cpp.scan import SCOPE, code_of, scan

INSIDE = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
PIECE = re.compile(rf"(?:{INSIDE}|[^(){{}};])*[{{}};]")
HEAD = re.compile(r"(?:[\w:]+[\s&*]+)+(\w+)\s*$")
# What has a definition beside it, or is no function, and what the language calls without its name.
NO_FUNCTION = re.compile(
    r"\b(?:template|inline|static|constexpr|struct|class|union|enum|using|typedef|friend|operator)\b"
)
MACRO = re.compile(r"[A-Z][A-Z0-9_]+|__\w+")


@dataclass(frozen=True)
class Redeclared:
    """The functions whose declarations differ, each with its line; or `other`: what else does, and its line."""

    names: dict[str, int]
    other: tuple[str, int] | None


def redeclared(before: str, after: str) -> Redeclared:
    """`before` and `after` are texts of one header."""
    old, new = _pieces(before), _pieces(after)
    names: dict[str, int] = {}
    for a, b, c, d in hunks([text for text, _, _ in old], [text for text, _, _ in new]):
        after_them = new[min(c, len(new) - 1)][1] if new else 1
        gone = [(text, after_them, outer) for text, _, outer in old[a:b]]
        for text, line, outer in [*new[c:d], *gone]:
            name = _function(text) if outer else ""
            if not name:
                return Redeclared({}, (text, line))
            names.setdefault(name, line)
    return Redeclared(names, None)


def _pieces(text: str) -> list[tuple[str, int, bool]]:
    """The directives, declarations and heads of braces in their order: each with its line, and whether it stands in
    namespaces alone."""
    there = scan(text)
    found = [(one.start, one.end, False) for one in there.directives]
    end = 0
    for piece in PIECE.finditer(there.bare):
        start = end + len(there.bare[end : piece.end()]) - len(there.bare[end : piece.end()].lstrip())
        end = piece.end()
        found.append((start, end, all(SCOPE.fullmatch(head) for head in there.heads(start))))
    if there.bare[end:].strip():
        found.append((end, len(text), False))
    return [(there.said(start, end), there.number(start), outer) for start, end, outer in sorted(found)]


def _function(piece: str) -> str:
    """The function that a piece declares, and does not define; nothing for any other piece."""
    code = code_of(piece)
    while (less := re.sub(r"<[^<>]*>", "", code)) != code:
        code = less
    head, _, rest = code.partition("(")
    found = HEAD.fullmatch(head)
    if not found or not rest.replace(" ", "").endswith(");") or NO_FUNCTION.search(head) or MACRO.fullmatch(found[1]):
        return ""
    return found[1]
