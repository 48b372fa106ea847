"""Prints the steps of what takes long, each with its seconds."""

from __future__ import annotations

import time


class Clock:
    """Prints each step's name, in a column of this width, and its time."""

    def __init__(self, width: int = 8) -> None:
        self._width = width
        self.start = self.last = time.monotonic()

    def step(self, name: str, what: str) -> None:
        now = time.monotonic()
        print(f"{name:{self._width}} {what} ({now - self.last:.1f} s)", flush=True)
        self.last = now
