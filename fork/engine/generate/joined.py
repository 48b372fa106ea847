"""The headers that PyTorch's generators write, as all code has them: the base's, with what changes and is added."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from fork.cpp.scan import scan
from fork.cpp.slices import pieces, without
from fork.engine.wheel import disk
from fork.engine.wheel.base import Base

ATEN, OPS, AUTOGRAD = "aten/src/ATen/", "aten/src/ATen/ops/", "torch/csrc/autograd/generated/"
GUARD = re.compile(r"^#if.*\n#error(?:.*\\\n)*.*\n#endif\n", re.MULTILINE)
LINE = re.compile(r"^ *# *(?:include|pragma|define)\b.*\n?", re.MULTILINE)


def join(base: Base, work: Path, stage: Path, changed: Mapping[str, str]) -> Path:
    """The folder of those that differ from the base's, which the fork ships too; `changed` has some by their paths."""
    folder = work / "joined"
    shutil.rmtree(folder, ignore_errors=True)
    added = _added(work / "generated")
    for path in sorted({*added, *changed}):
        shipped = base.wheel_path(path) or (base.new_path(path) if path.startswith(OPS) else None)
        if shipped is None and path not in changed:
            continue  # what includes it has it beside
        before = base.read(path) or ""
        text = joined(changed.get(path, before), added.get(path, ""))
        if text == before:
            continue
        disk.write(folder, path.removeprefix("aten/src/"), text)
        if shipped:
            disk.write(stage, shipped, text)
    return folder


def joined(theirs: str, ours: str) -> str:
    """A header with what another one of its name has and it lacks."""
    if not theirs or not ours:
        return theirs or ours
    same = [piece for piece in pieces(ours) if ours[piece.start : piece.end] in theirs]
    rest = LINE.sub(lambda line: "" if line[0].strip() in theirs else line[0], without(ours, same))
    lines = [line.rstrip() for line in GUARD.sub("", scan(rest).plain).splitlines() if line.strip()]
    more = len(same) < len(pieces(ours)) or any(map(LINE.match, lines))
    return "\n".join([theirs, *lines, ""]) if more else theirs


def _added(generated: Path) -> dict[str, str]:
    """What is generated of the operators that the stack adds alone, by its path in PyTorch."""
    folders = {ATEN: generated / "aten", OPS: generated / "aten/ops", AUTOGRAD: generated / "autograd" / AUTOGRAD}
    return {f"{path}{file.name}": file.read_text() for path, folder in folders.items() for file in folder.glob("*.h")}
