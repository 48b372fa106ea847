"""Weaves what a wheel has room for into the copy of the base, and remembers what it wove."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fork.digest import digest, tool_files
from fork.engine.wheel import disk
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.series import Series
from fork.weave import weave_all
from fork.weave.file_kinds import Fragment, Kind, New


def write_woven(base: Base, series: Series, state: Mapping[str, Path], stage: Path, work: Path) -> list[str]:
    """Writes the state's files that a wheel ships into `stage`, and headers into `work` too; returns their paths.

    C++ sources are compiled instead, and what a wheel does not ship, such as documentation, is left out.
    """
    woven = series.of_kind(state, New, Fragment)
    inside = {path: file for path, file in woven.items() if _has_room(base, series.kind(path), path)}
    base.check({*filter(None, map(base.wheel_path, inside)), *disk.edited_base(base)})
    headers, wanted = work / "headers", set()
    for path, text in _weave(base, series, inside, work / "woven").items():
        shipped = base.wheel_path(path) or base.new_path(path)
        assert shipped is not None
        disk.write(stage, shipped, text)
        if "torch/include/" in shipped:
            header = headers / shipped.removeprefix("torch/include/")
            wanted.add(header)
            if not header.is_file() or header.read_text() != text:
                disk.write(header.parent, header.name, text)
    for header in headers.rglob("*.*"):
        if header not in wanted:
            header.unlink()
    return list(inside)


def _has_room(base: Base, kind: Kind, path: str) -> bool:
    new = isinstance(kind, New)
    shipped = base.wheel_path(path) or (base.new_path(path) if new else None)
    if shipped is None and not new and (like := base.nearest(path)):
        raise ForkError(f"{path} has an anchor, and torch {base.version} has no such file: did you mean {like}?")
    return shipped is not None and not path.endswith((".cpp", ".cu"))


def _weave(base: Base, series: Series, state: Mapping[str, Path], remembered: Path) -> dict[str, str]:
    """The woven text of each path; one that was made before of the same parts is read again, which saves seconds."""
    always = [
        *(file.read_bytes() for file in tool_files() if {"cpp", "weave"} & {*file.parts}),
        base.record_text.encode(),
    ]
    made_of = {
        path: digest(*always, path.encode(), repr(series.kind(path)).encode(), file.read_bytes())
        for path, file in state.items()
    }
    known = {path: remembered / name for path, name in made_of.items() if (remembered / name).is_file()}
    fresh = weave_all({path: file for path, file in state.items() if path not in known}, series.anchors, base.read)
    texts = {path: known[path].read_text() if path in known else fresh[path] for path in state}
    for path, text in fresh.items():
        disk.write(remembered, made_of[path], text)
    for file in remembered.glob("*"):
        if file.name not in made_of.values():
            file.unlink()
    return texts
