"""Weaves lines under the headings of docs. The fragment repeats the heading under which its lines go."""

from __future__ import annotations

import re

from fork.cpp.difference import hunks
from fork.weave.edit import Edit, Spots, line_starts
from fork.weave.file_kinds import beside

HEADING = re.compile(r'^(?:#+ *(.*?) *|(\S.*?) *\n([~=\-^"`+])\3{2,} *)(?:\n|\Z)', re.MULTILINE)
FILLED = re.compile(r"^.*\S.*\n?", re.MULTILINE)
Region = list[re.Match[str]]


def weave(edit: Edit, fragment: str) -> None:
    """Inserts the lines of each heading; with an anchor of `file`, the whole fragment."""
    if "file" in edit.places:
        _insert(edit, "file", [*FILLED.finditer(edit.base)], [("", fragment)])
        return
    theirs, ours = _regions(edit.base), _regions(fragment)
    start = ours[0][1][0].start() if ours else len(fragment)
    if lost := FILLED.search(fragment, 0, start):
        edit.problem(f"line {fragment.count(chr(10), 0, lost.start()) + 1} of the fragment is under no heading")
    for container, (_, *lines) in ours:
        found = [region for name, region in theirs if name == container]
        if lines and len(found) != 1:
            edit.problem(f"container {container!r} found {len(found)} times")
        elif lines:
            _insert(edit, container, found[0], [(line[0].strip(), line[0].rstrip("\n") + "\n") for line in lines])


def in_rst(text: str) -> str:
    """Markdown's `code` as reStructuredText writes it, for releases whose docs were .rst."""
    return re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", text)


def _insert(edit: Edit, container: str, region: Region, blocks: list[tuple[str, str]]) -> None:
    for run, before, line in edit.placed(container, blocks, lambda to: [x for x in region if x[0].strip() == to]):
        edit.insert(line.start() if before and line else (line or region[-1]).end(), "".join(run))


def _regions(text: str) -> list[tuple[str, Region]]:
    """Each heading by its words, with the lines below it, up to the next one, that hold anything."""
    heads = [*HEADING.finditer(text)]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return [
        (head[1] or head[2] or "", [head, *FILLED.finditer(text, head.end(), end)]) for head, end in zip(heads, ends)
    ]


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The lines that the base lacks, under their heading, with the lines beside them."""
    new, starts, theirs = woven.splitlines(keepends=True), line_starts(base), _regions(base)
    names = [name for name, _ in theirs]
    held: dict[str, list[str]] = {}
    spots: Spots = {}
    for a, b, c, d in hunks(base.splitlines(keepends=True), new):
        above = [one for one in theirs if one[1][0].end() <= starts[a]]
        if a < b or not above or names.count(above[-1][0]) > 1:
            return None
        name, (_, *lines) = above[-1]
        sides = [[line[0].strip() for line in lines if (line.start() < starts[a]) == is_above] for is_above in (1, 0)]
        for line in filter(str.strip, new[c:d]):
            held.setdefault(name, []).append(line)
            spots[name, line.strip()] = beside(*sides)
    return "\n".join(f"### {name}\n\n{''.join(lines)}" for name, lines in held.items()), spots
