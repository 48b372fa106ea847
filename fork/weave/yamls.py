"""Weaves the entries of a yaml list, each known by the name after its first key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from fork.weave.edit import Edit, Spots, above_comments
from fork.weave.file_kinds import beside

NAME = re.compile(r"^- \w+: *['\"]?([\w.]+)", re.MULTILINE)
# Comments in the first column and blank lines belong to the entry below them.
OF_THE_NEXT = re.compile(r"(?:^(?:#.*|[ \t]*)\n)*(?:^(?:#.*|[ \t]+))?\Z", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """`- func: NAME(...)` and the lines below it; `end` is where the line after it begins."""

    name: str
    start: int
    end: int


def weave(edit: Edit, fragment: str) -> None:
    """Inserts the entries of the fragment, in its order, at the anchors of `file`."""
    base, ours = _entries(edit.base), _entries(fragment)
    for entries, whose in ((base, "base"), (ours, "fragment")):
        if not entries:
            edit.problem(f"the {whose} has no entry, such as `- func: ...`")
    known = set(names(edit.base))
    for entry in ours:
        if entry.name in known:
            edit.problem(f"the base already has an entry {entry.name!r}")
    named = [(entry.name, entry) for entry in ours]
    for run, before, target in edit.placed("file", named, lambda name: [one for one in base if one.name == name]):
        block = fragment[above_comments(fragment, run[0].start, ("#",)) : run[-1].end]
        if before and target is not None:
            edit.insert(above_comments(edit.base, target.start, ("#",)), block + "\n")
        elif base:
            edit.insert((target or base[-1]).end, "\n" + block)


def _entries(text: str) -> list[Entry]:
    found = [*NAME.finditer(text)]
    ends = [*(later.start() for later in found[1:]), len(text)]
    wholes = [OF_THE_NEXT.sub("", text[one.start() : end]) for one, end in zip(found, ends)]
    return [Entry(one[1], one.start(), one.start() + len(whole)) for one, whole in zip(found, wholes)]


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The entries that the base lacks, each with the entries that stand beside it."""
    known, theirs = set(names(base)), _entries(woven)
    blocks: list[str] = []
    spots: Spots = {}
    for is_new, group in groupby(enumerate(theirs), key=lambda item: item[1].name not in known):
        run = list(group)
        if not is_new:
            continue
        first, last = run[0][0], run[-1][0]
        places = beside([entry.name for entry in theirs[:first]], [entry.name for entry in theirs[last + 1 :]])
        blocks.append(woven[above_comments(woven, theirs[first].start, ("#",)) : theirs[last].end])
        spots |= {("file", entry.name): places for _, entry in run}
    return "\n".join(blocks), spots


def by_name(text: str) -> dict[str, str]:
    """The entries of a list by the names of their operators, with their overloads."""
    return {one.name: text[one.start : one.end] for one in _entries(text)}


def names(text: str) -> list[str]:
    return [one.name for one in _entries(text)]


def operators(text: str) -> set[str]:
    """The names of the operators of a list, without their overloads."""
    return {name.partition(".")[0] for name in names(text)}


def code(entry: str) -> list[str]:
    """The lines of an entry that say anything."""
    return [line.rstrip() for line in entry.splitlines() if line.strip() and not line.lstrip().startswith("#")]
