"""Runs a program that calls PyTorch's generators, and finds what they reject, and in which line of the stack."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from fork import process
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError

RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): ", re.MULTILINE)
PLACE = re.compile(r"(native_functions|derivatives)\.yaml(?:\", line |:)(\d+)")
SCHEMA = re.compile(r"^- name: *(.+?) *$", re.MULTILINE)


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


def rejection(traceback: str, native: Path, derivatives: Path | None) -> str:
    """`file:line: what is wrong`, as far as the traceback tells."""
    raised = list(RAISED.finditer(traceback))
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    if not raised:
        return f"{native}: {lines[-1] if lines else 'no message'}"
    message = traceback[raised[-1].end() :]
    where: str = str(native)
    if derivatives and "load_derivatives" in traceback[: raised[-1].start()]:
        where = _entry(message, derivatives)
    elif place := PLACE.search(message):
        where = f"{native if place[1] == 'native_functions' or not derivatives else derivatives}:{place[2]}"
    said = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("  in ")]
    # What follows the sentence is the schema, and in one case a list of all schemas.
    return f"{where}: {', '.join(said[:2]) if 'while parsing' in said[0] else said[0].partition(' .  Available')[0]}"


def _entry(message: str, derivatives: Path) -> str:
    """The file, and the line of the entry whose schema the message names."""
    text = derivatives.read_text()
    for entry in SCHEMA.finditer(text):
        if entry[1].strip("'\"") in message:
            return f"{derivatives}:{text.count(chr(10), 0, entry.start()) + 1}"
    place = PLACE.search(message)
    return f"{derivatives}:{place[2]}" if place and place[1] == "derivatives" else str(derivatives)
