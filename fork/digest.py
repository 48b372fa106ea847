"""One name for all that goes into a build, so that a change of any part of it is seen."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fork.folders import PACKAGE


def digest(*parts: bytes) -> str:
    """The same for the same parts, in the same order."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:16]


def tool_files() -> list[Path]:
    """The files of the tool that a build depends on: its own modules, the weavers, checkouts and the engine."""
    rooms = ("cpp", "weave", "checkout", "engine")
    found = [*PACKAGE.glob("*.py"), *(file for room in rooms for file in (PACKAGE / room).rglob("*"))]
    return sorted(file for file in found if file.is_file() and "__pycache__" not in file.parts)
