"""Runs the program that calls PyTorch's generators, unless it has made the same before."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fork import process
from fork.digest import digest, tool_files
from fork.engine.generate.rejection import rejection
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError


def environment(base: Base, stage: Path) -> dict[str, str]:
    """For a program that imports the torchgen of `stage`, and reads the headers of the base."""
    return {"PYTHONPATH": str(stage), "TORCH_FORK": str(stage), "FORK_BASE": str(base.site)}


def run(
    base: Base,
    stage: Path,
    work: Path,
    native: Path,
    derivatives: Path | None,
    written: Path | None,
) -> Path:
    """The folder with what is generated of two lists; `written` is the second as somebody edits it."""
    tools = [file.read_bytes() for file in tool_files()]
    lists = [file.read_bytes() for file in (native, derivatives) if file]
    asked = digest(base.record_text.encode(), *tools, *lists)
    made, done = work / "generated", work / "generated.json"
    if done.is_file() and json.loads(done.read_text()) == asked:
        return made
    done.unlink(missing_ok=True)
    program = Path(__file__).with_name("generate.py")
    variables = os.environ | environment(base, stage)
    ended = process.attempt([base.python, program, native, derivatives or "", made], env=variables)
    if ended.returncode:
        write(work, "generate.log", ended.stdout + ended.stderr)
        raise ForkError(f"PyTorch's generators reject {rejection(ended.stderr, native, written)}")
    write(work, done.name, json.dumps(asked))
    return made
