"""One process at a time: a lock that says whom it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def alone(file: Path, elsewhere: str) -> Iterator[None]:
    """Waits until no other process holds this file; `elsewhere` is what it says while it waits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print(f"wait     {elsewhere}", flush=True)
        held = lock.acquire()
    with held:
        yield
