"""Runs a program and says in one line why it failed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from fork.errors import ForkError


def run(
    command: Sequence[str | Path], failed: str, *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> str:
    """What the program prints on its standard output; `failed` begins the error when its status is not 0."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd)
    if done.returncode:
        raise ForkError(f"{failed}: {reason(done)}")
    return done.stdout


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that the program wrote to its standard error, which says why it stopped."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with status {done.returncode} and no message"
