"""Weaves plain lists of lines: a table of docs under a heading, a list of sources.

The fragment repeats the heading, or the `NAME = [`, under which its lines go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fork.cpp.difference import hunks
from fork.weave.edit import Edit, Spots, line_starts
from fork.weave.file_kinds import beside

UNDERLINE = re.compile(r'([~=\-^"`+])\1{2,}$')


@dataclass(frozen=True)
class Line:
    """One line; `start` and `end` are offsets, the newline included."""

    text: str
    start: int
    end: int


def weave(edit: Edit, fragment: str) -> None:
    """Inserts the lines of each container; without any, the whole fragment goes to `file`."""
    ours, theirs = _lines(fragment), _lines(edit.base)
    if "file" in edit.places:
        _insert(edit, "file", theirs, [("", fragment)])
        return
    held = {container: _region(ours, container) for container in edit.places}
    placed = {line for regions in held.values() for region in regions for line in region}
    lost = [
        line
        for line in ours
        if line.text.strip(" ]")
        and not line.text.startswith("#")
        and line not in placed
        and not any(_is_head(line, name) for name in held)
    ]
    if not any(held.values()):
        edit.problem(f"the fragment has none of {', '.join(map(repr, held))}")
    elif lost:
        edit.problem(f"line {ours.index(lost[0]) + 1} of the fragment is in no container that has an anchor")
    for container, lines in held.items():
        if not lines:
            continue
        found = _region(theirs, container)
        if len(found) != 1:
            edit.problem(f"container {container!r} found {len(found)} times")
            continue
        filled = [(line.text.strip(), line.text + "\n") for line in lines[0] if line.text.strip()]
        _insert(edit, container, found[0], filled)


def in_rst(text: str) -> str:
    """Markdown's `code` as reStructuredText writes it, for releases whose docs were .rst."""
    return re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", text)


def _insert(edit: Edit, container: str, region: list[Line], blocks: list[tuple[str, str]]) -> None:
    for run, before, line in edit.placed(container, blocks, lambda to: [x for x in region if x.text.strip() == to]):
        edit.insert(line.start if before and line else (line or _last_filled(region)).end, "".join(run))


def _lines(text: str) -> list[Line]:
    starts = line_starts(text)
    return [Line(text[start:end].rstrip("\n"), start, end) for start, end in zip(starts, starts[1:])]


def _region(lines: list[Line], container: str) -> list[list[Line]]:
    """The lines under a heading up to the next one, or those of `NAME = [` up to its `]`."""
    regions = []
    for n, line in enumerate(lines):
        body = lines[n + 1 :]
        if not _is_head(line, container):
            continue
        if line.text.endswith("["):
            end = next((m for m, other in enumerate(body) if other.text.startswith("]")), 0)
        else:
            end = next((m for m in range(1, len(body)) if _is_heading(body, m)), len(body))
        regions.append(body[:end])
    return regions


def _is_head(line: Line, container: str) -> bool:
    return line.text == f"{container} = [" or line.text.lstrip("# ").rstrip() == container


def _is_heading(body: list[Line], n: int) -> bool:
    below = body[n + 1].text if n + 1 < len(body) else ""
    text = body[n].text
    return text.startswith("#") or bool(text.strip() and UNDERLINE.match(below))


def _last_filled(region: list[Line]) -> Line:
    return next((line for line in reversed(region) if line.text.strip()), region[-1])


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The lines that the base lacks, under the head of their list, with the lines beside them."""
    old, new = base.splitlines(keepends=True), woven.splitlines(keepends=True)
    theirs = _lines(base)
    held: dict[str, list[str]] = {}
    spots: Spots = {}
    for a, b, c, d in hunks(old, new):
        head = _head_above(theirs, a)
        if a < b or head is None:
            return None
        region = _region(theirs, head)
        if len(region) != 1:
            return None
        filled = [line for line in region[0] if line.text.strip()]
        above = [line.text.strip() for line in filled if line.start < theirs[a - 1].end]
        places = beside(above, [line.text.strip() for line in filled[len(above) :]])
        for line in new[c:d]:
            if line.strip():
                held.setdefault(head, []).append(line)
                spots[head, line.strip()] = places
    return "\n".join(_under(head, "".join(lines), base) for head, lines in held.items()), spots


def _head_above(lines: list[Line], at: int) -> str | None:
    """The container in which a line would stand that was put before line `at`."""
    for n in range(at - 1, -1, -1):
        text = lines[n].text
        if text.startswith("]"):
            return None
        if opened := re.fullmatch(r"(\w+) = \[", text):
            return opened[1]
        if n + 1 < at and _is_heading(lines, n):
            return text.lstrip("# ").rstrip()
    return None


def _under(head: str, block: str, base: str) -> str:
    return f"{head} = [\n{block}]\n" if f"{head} = [\n" in base else f"### {head}\n\n{block}"
