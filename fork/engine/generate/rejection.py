"""Finds in the traceback of PyTorch's generators what they reject, and in which line of the stack."""

from __future__ import annotations

import re
from pathlib import Path

RAISED = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): ", re.MULTILINE)
PLACE = re.compile(r"(native_functions|derivatives)\.yaml(?:\", line |:)(\d+)")
SCHEMA = re.compile(r"^- name: *(.+?) *$", re.MULTILINE)


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
