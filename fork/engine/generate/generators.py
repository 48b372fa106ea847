"""Runs a program that calls PyTorch's generators."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fork import process
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError


def environment(base: Base, stage: Path) -> dict[str, str]:
    """For a program that imports the torchgen of `stage`, and reads the headers of the base."""
    return {"PYTHONPATH": str(stage), "TORCH_FORK": str(stage), "FORK_BASE": str(base.site)}


def run(base: Base, stage: Path, work: Path, words: list[str | Path], rejected: Callable[[str], str]) -> None:
    """Runs a program in `work`; what it says where it fails is kept there, and `rejected` makes a phrase of it."""
    work.mkdir(parents=True, exist_ok=True)
    done = process.attempt([base.python, *words], env=os.environ | environment(base, stage), cwd=work)
    if done.returncode:
        log = work / "generate.log"
        if process.DISK_FULL in done.stderr:
            raise ForkError(f"the disk is full at {work}: free some space and try again")
        write(work, log.name, done.stdout + done.stderr)
        raise ForkError(f"PyTorch's generators reject {rejected(done.stderr)} (all of it: {log})")
