"""Weaves pieces whose spacing no rule gives: word for word, beside or in the place of lines of the base.

In the fragment each piece stands between two comments, `piece 1` and `end of piece`; what is
outside of them stays behind. The target of its anchor is one line or several in a row, without
their indentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fork.cpp.difference import Hunk, hunks
from fork.weave.edit import Edit, Spots, line_starts
from fork.weave.file_kinds import Place, beside

MARK = re.compile(r"^[ \t]*(?:#|//|\.\.|<!--) piece (\d+)(?: -->)?\n(.*?)^[^\n]* end of piece(?: -->)?$", re.M | re.S)
SIGNS = {".md": "<!-- {} -->", ".rst": ".. {}", **dict.fromkeys((".h", ".cpp", ".cu", ".cuh", ".js", ".ts"), "// {}")}


def weave(edit: Edit, fragment: str) -> None:
    stripped = [line.strip() for line in edit.base.splitlines()]
    starts = line_starts(edit.base)

    def spans(target: str) -> list[tuple[int, int]]:
        return [(starts[n], starts[n + target.count("\n") + 1]) for n in found(stripped, target.split("\n"))]

    for piece in MARK.finditer(fragment):
        chosen = edit.choose(f"piece {piece[1]}", spans)
        if chosen is None:
            continue
        place, span = chosen
        start, end = span or (len(edit.base), len(edit.base))
        at = start if place.replaces or place.relation == "before" else end
        edit.insert(at, piece[2], until=end if place.replaces else at)


def unweave(base: str, woven: str, number: Callable[[tuple[Place, ...]], int], sign: str) -> tuple[str, Spots]:
    """The pieces that turn the base into the woven text; `number` names them by their places."""
    old, new = base.splitlines(keepends=True), woven.splitlines(keepends=True)
    stripped = [line.strip() for line in old]
    places: Spots = {}
    blocks = []
    for a, b, c, d in told_apart(stripped, hunks(old, new)):
        where = spot(stripped, (a, b, c, d))
        name = f"piece {number(where)}"
        places[name, ""] = where
        blocks.append(f"{sign.format(name)}\n{''.join(new[c:d])}{sign.format('end of piece')}\n")
    return "\n".join(blocks), places


def spot(lines: Sequence[str], hunk: Hunk) -> tuple[Place, ...]:
    """The places of a piece: of those lines that it changes, else behind and before as few lines as stand once."""
    a, b, _, _ = hunk
    if a < b:
        return (Place("replaces", "\n".join(lines[a:b])),)
    above = (lines[n:a] for n in range(a - 1, -1, -1) if lines[n])
    below = (lines[a:n] for n in range(a + 1, len(lines) + 1) if lines[n - 1])
    once = [next(("\n".join(run) for run in runs if len(found(lines, run)) == 1), "") for runs in (above, below)]
    return beside(once[:1], once[1:])


def told_apart(lines: Sequence[str], changes: list[Hunk]) -> list[Hunk]:
    """The changes, those that replace lines widened until these lines stand nowhere else."""
    apart: list[Hunk] = []
    rest = list(changes)
    while rest:
        a, b, c, d = rest.pop(0)
        while a < b and len(found(lines, lines[a:b])) > 1:
            if a > (apart[-1][1] if apart else 0):
                a, c = a - 1, c - 1
            elif b < (rest[0][0] if rest else len(lines)):
                b, d = b + 1, d + 1
            elif rest:
                _, b, _, d = rest.pop(0)
            else:
                break
        apart.append((a, b, c, d))
    return apart


def found(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where these lines stand in a row."""
    return [n for n, line in enumerate(lines) if line == wanted[0] and lines[n : n + len(wanted)] == list(wanted)]
