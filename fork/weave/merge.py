"""Brings a branch's text of a file to a release that has other lines there than where the branch began."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from fork.errors import ForkError
from fork.refusals import Refusal


def merged(branch: bytes, start: bytes | None, release: bytes | None, place: str) -> bytes:
    """The branch's text with what else the release has, by git's merge of three texts; `place` names the file.

    Raises where both have changed the same lines, and names the first.
    """
    if release is None or start is None or release in (start, branch):
        return branch
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("branch", "start", "release")]
        for file, text in zip(files, (branch, start, release)):
            file.write_bytes(text)
        done = subprocess.run(["git", "merge-file", "-p", "--diff3", *map(str, files)], capture_output=True)
    if done.returncode:
        # Of what is no text, git tells no line.
        line = f":{_line(done.stdout.splitlines(), branch.splitlines())}" if done.stdout else ""
        raise ForkError(Refusal.OTHER_LINES.of(place=f"{place}{line}"))
    return done.stdout


def _line(conflicted: list[bytes], branch: list[bytes]) -> int:
    """The line of the branch's file where the first conflict begins."""
    begun = next((n for n, line in enumerate(conflicted) if line.startswith(b"<<<<<<<")), 0)
    beside = conflicted[begun + 1] if begun + 1 < len(conflicted) else b""
    return next((n for n, line in enumerate(branch, 1) if line == beside), begun + 1)
