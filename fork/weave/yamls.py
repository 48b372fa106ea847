"""Weaves the entries of a yaml list, each known by the name after its first key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from fork.weave.edit import Edit, Spots, above_comments, line_start, next_line
from fork.weave.kinds import Place

SCHEMA = re.compile(r"^- \w+: *['\"]?(.+?)['\"]? *$", re.MULTILINE)
ENTRY = re.compile(r"^- \w+: *([\w.]+)", re.MULTILINE)
DISPATCH = re.compile(r"^  dispatch:.*\n(?:    .*\n)*", re.MULTILINE)


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
    names = {entry.name for entry in base}
    for entry in ours:
        if entry.name in names:
            edit.problem(f"the base already has an entry {entry.name!r}")
    for key, run in edit.runs("file", [(entry.name, entry) for entry in ours]):
        chosen = edit.choose(key, lambda name: [entry for entry in base if entry.name == name])
        if chosen is None or edit.problems:
            continue
        place, target = chosen
        block = fragment[above_comments(fragment, run[0].start, ("#",)) : run[-1].end]
        if place.relation == "before" and target is not None:
            edit.insert(above_comments(edit.base, target.start, ("#",)), block + "\n")
        else:
            edit.insert((target or base[-1]).end, "\n" + block)


def _entries(text: str) -> list[Entry]:
    starts = [match.start() for match in ENTRY.finditer(text)]
    ends = [*starts[1:], len(text)][: len(starts)]
    return [
        Entry(match[1], match.start(), _end(text, match.start(), end))
        for match, end in zip(ENTRY.finditer(text), ends, strict=True)
    ]


def _end(text: str, start: int, limit: int) -> int:
    """Comments in the first column and blank lines belong to the entry below them."""
    while limit > next_line(text, start):
        last = line_start(text, limit - 1)
        line = text[last:limit]
        if line.strip() and not line.startswith("#"):
            break
        limit = last
    return limit


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The entries that the base lacks, each with the entries that stand beside it."""
    names, theirs = {entry.name for entry in _entries(base)}, _entries(woven)
    blocks: list[str] = []
    spots: Spots = {}
    for is_new, group in groupby(enumerate(theirs), key=lambda item: item[1].name not in names):
        run = list(group)
        if not is_new:
            continue
        first, last = run[0][0], run[-1][0]
        places = [Place("after", theirs[first - 1].name)] if first else []
        places += [Place("before", entry.name) for entry in theirs[last + 1 : last + 2]]
        blocks.append(woven[above_comments(woven, theirs[first].start, ("#",)) : theirs[last].end])
        spots |= {("file", entry.name): tuple(places) for _, entry in run}
    return "\n".join(blocks), spots


def entries(text: str) -> dict[str, str]:
    """The entries of a list by their whole schema, each with its lines."""
    starts = [*SCHEMA.finditer(text)]
    ends = [*(entry.start() for entry in starts[1:]), len(text)]
    return {entry[1]: text[entry.start() : end] for entry, end in zip(starts, ends)}


def changed(before: str, after: str) -> list[str]:
    """The schemas of entries that both lists have, and not alike."""
    old, new = entries(before), entries(after)
    return [schema for schema in old if schema in new and code(old[schema]) != code(new[schema])]


def in_dispatch_alone(before: str, after: str) -> bool:
    """Whether every entry that differs says the same beside its `dispatch`."""
    lists = [entries(text) for text in (before, after)]
    rest = (
        [DISPATCH.sub("", "\n".join([*code(one[schema]), ""])) for one in lists] for schema in changed(before, after)
    )
    return all(old == new for old, new in rest)


def code(entry: str) -> list[str]:
    """The lines of an entry that say anything."""
    return [line.rstrip() for line in entry.splitlines() if line.strip() and not line.lstrip().startswith("#")]
