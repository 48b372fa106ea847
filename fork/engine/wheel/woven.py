"""Weaves what a wheel has room for into the copy of the base, and remembers what it wove."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from fork.digest import digest, tool_files
from fork.engine.wheel import disk
from fork.engine.wheel.base import PACKAGES, Base
from fork.errors import ForkError
from fork.series import Commit, Series
from fork.tree import Fate, Kind, kind_of
from fork.weave import weave_all
from fork.weave.file_kinds import File, Fragment, New, Whole
from fork.weave.merge import merged


def write_woven(base: Base, series: Series, commit: Commit, stage: Path, work: Path) -> list[str]:
    """Writes the state's files that a wheel ships into `stage`, and headers into `work` too; returns their paths.

    C++ sources are compiled instead, and what a wheel does not ship, such as documentation, is left out.
    """
    state = series.state(commit)
    woven = series.of_kind(state, New, Fragment)
    inside = {path: file for path, file in woven.items() if _has_room(base, series.kind(path), path)}
    headers = work / "headers"
    shutil.rmtree(headers, ignore_errors=True)
    for path, text in _weave(base, series, inside, work / "woven").items():
        shipped = base.wheel_path(path) or base.new_path(path)
        assert shipped is not None
        disk.write(stage, shipped, text)
        if "torch/include/" in shipped:
            disk.write(headers, shipped.removeprefix("torch/include/"), text)
    gone = {path: shipped for path in sorted(series.gone(commit)) if (shipped := base.wheel_path(path))}
    for shipped in gone.values():
        (stage / shipped).unlink(missing_ok=True)
    return [*inside, *_write_whole(base, series, state, stage), *gone]


def _write_whole(base: Base, series: Series, state: Mapping[str, File], stage: Path) -> Iterator[str]:
    """What a branch changes of the files that are installed as they are, with what else the release has in them."""
    for path, file in series.of_kind(state, Whole).items():
        kind, whole, shipped = kind_of(path), series.kind(path), base.wheel_path(path)
        if not kind or kind.fate is not Fate.INSTALLED or not isinstance(whole, Whole):
            continue
        if shipped is None:
            print(f"left out {path}: torch {base.version} does not ship it", flush=True)
            continue
        disk.write(stage, shipped, merged(file.read_bytes(), whole.start, (base.site / shipped).read_bytes(), path))
        yield path


def _has_room(base: Base, kind: New | Fragment | Whole, path: str) -> bool:
    new = isinstance(kind, New)
    shipped = base.wheel_path(path) or (base.new_path(path) if new else None)
    if shipped is None and not new and (like := base.nearest(path)):
        raise ForkError(f"{path} has an anchor, and torch {base.version} has no such file: did you mean {like}?")
    found = kind_of(path)
    if shipped is None and new and found and found.fate is Fate.INSTALLED and path.startswith(PACKAGES):
        print(f"left out {path}: torch {base.version} ships no such file", flush=True)
    return shipped is not None and found not in (Kind.SOURCE, Kind.KERNEL)


def _weave(base: Base, series: Series, state: Mapping[str, File], remembered: Path) -> dict[str, str]:
    """The woven text of each path; one that was made before of the same parts is read again, which saves seconds."""
    always = [
        *(file.read_bytes() for file in tool_files() if {"cpp", "weave"} & {*file.parts}),
        base.record_text.encode(),
    ]
    made_of = {
        path: digest(*always, path.encode(), repr(series.kind(path)).encode(), file.read_bytes())
        for path, file in state.items()
    }
    fresh = {path: file for path, file in state.items() if not (remembered / made_of[path]).is_file()}
    for path, text in weave_all(fresh, series.anchors, base.read).items():
        disk.write(remembered, made_of[path], text)
    for file in remembered.glob("*"):
        if file.name not in made_of.values():
            file.unlink()
    texts = {path: (remembered / name).read_bytes() for path, name in made_of.items()}
    return {path: text.decode(errors="surrogateescape") for path, text in texts.items()}
