"""Weaves fragments into upstream's files, at anchors that are found by structure, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from fork.errors import refuse_all
from fork.weave import cpp, lines, pieces, python, yamls
from fork.weave.edit import Edit
from fork.weave.file_kinds import File, Fragment, Kind, New, Whole
from fork.weave.merge import merged

WEAVERS: Mapping[str, Callable[[Edit, str], None]] = {
    ".yaml": yamls.weave,
    ".py": python.weave,
    ".bzl": python.weave,
    **dict.fromkeys((".h", ".cpp", ".cu", ".cuh"), cpp.weave),
}


def weave(path: str, base: str, text: str, kind: Fragment | Whole) -> str:
    """The base with the fragment's pieces at their anchors, and not another byte changed."""
    edit = _weave(path, base, text, kind)
    refuse_unwoven(edit.problems)
    return edit.result()


def weave_all(
    state: Mapping[str, File],
    anchors: Mapping[str, Fragment | Whole],
    read: Callable[[str], str | None],
    told: list[str] | None = None,
    used: set[tuple[str, str]] | None = None,
) -> dict[str, str]:
    """The text of every file of a state (`Series.state`), by its path in this base.

    `read` gives the base's text of a path, or None where the base has no such file. All anchors that are not found
    exactly once, in all files, are named in one error, or added to `told`. To `used` it adds the path and container of
    each anchor that a fragment asked for.
    """
    woven: dict[str, str] = {}
    problems: list[str] = [] if told is None else told
    for path, file in state.items():
        content, kind = file.read_text(), anchors.get(path, New())
        if isinstance(kind, New):
            if read(path) is not None:
                problems.append(f"{path}: a new file of the stack, and the base has one already")
            woven[path] = content
            continue
        here = base_path(path, kind, read)
        base = read(here)
        if base is None:
            problems.append(f"{path}: the base has no such file")
            continue
        if isinstance(kind, Fragment) and here != path and here.endswith(".rst"):
            places = {
                lines.in_rst(container): tuple(replace(place, target=lines.in_rst(place.target)) for place in spots)
                for container, spots in kind.places.items()
            }
            content, kind = lines.in_rst(content), replace(kind, places=places)
        edit = _weave(here, base, content, kind)
        woven[here] = edit.result()
        problems += edit.problems
        if used is not None:
            used |= {(path, container) for container in edit.used}
    if told is None:
        refuse_unwoven(problems)
    return woven


def base_path(path: str, kind: Kind, read: Callable[[str], str | None]) -> str:
    """The path that the base has a file at: a fragment's `older_path` where it is older."""
    older_path = kind.older_path if isinstance(kind, Fragment) else None
    return older_path if older_path and read(path) is None and read(older_path) is not None else path


def _weave(path: str, base: str, text: str, kind: Fragment | Whole) -> Edit:
    if isinstance(kind, Whole):
        edit = Edit(path, base, {})
        whole = merged(_bytes(text), kind.start, _bytes(base), path)
        edit.insert(0, whole.decode(errors="surrogateescape"), until=len(base))
        return edit
    edit, text = Edit(path, base, kind.places), kind.served(text, base)
    weaver = pieces.weave if pieces.MARK.search(text) else WEAVERS.get(PurePosixPath(path).suffix, lines.weave)
    weaver(edit, text)
    if not edit.insertions and not edit.problems:
        edit.problem("the fragment adds nothing to the base")
    return edit


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def refuse_unwoven(problems: Sequence[str]) -> None:
    head = f"{len(set(problems))} places do not fit: see the anchors in stack/series.yaml"
    refuse_all(problems, head, "{}: see its anchor in stack/series.yaml")
