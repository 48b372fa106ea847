"""Times, peak memory and floors, all taken on this machine in the same run."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from timeit import Timer

import torch

from bench.reference import flop

Work = Callable[[], object]
# A case ends after about this many seconds, even if fewer rounds were taken than otherwise.
LONGEST = 10.0


def medians(works: Mapping[str, Work], seconds: float) -> dict[str, float]:
    """Median seconds per call of each, measured in turns, so that a busy moment of the machine meets all of them.

    There are at least five rounds, and about `seconds` for each, unless five rounds would take longer than LONGEST.
    """
    timers = {name: Timer(work) for name, work in works.items()}
    counts = {}
    for name, timer in timers.items():
        once = timer.timeit(1)
        if once < 1:
            once = timer.timeit(1)
        counts[name] = max(1, min(1000, int(1e-3 / max(once, 1e-7))))
    rounds: dict[str, list[float]] = {name: [] for name in works}
    taken, spent = 0, 0.0
    while spent < LONGEST and (taken < 5 or spent < seconds * len(works)):
        for name, timer in timers.items():
            took = timer.timeit(counts[name])
            rounds[name].append(took / counts[name])
            spent += took
        taken += 1
    return {name: statistics.median(times) for name, times in rounds.items()}


def _status(field: str) -> int:
    """Bytes of VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak_memory(work: Work) -> int:
    """Bytes of resident memory that one call adds at its peak, its result included (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins at what is resident now.
    before = _status("VmRSS")
    result = work()
    peak = _status("VmHWM") - before
    del result
    return max(0, peak)


class Floor:
    """A lower bound: the FLOP at the rate of a square product, plus one pass over N x N."""

    def __init__(self, dtype: torch.dtype, seconds: float) -> None:
        n = 2048 if dtype in (torch.float32, torch.float64) else 1024
        a = torch.rand(n, n).to(dtype)
        self.rate = 2 * n**3 / medians({"product": lambda: a @ a}, seconds)["product"]
        self.dtype, self.seconds = dtype, seconds
        self.passes: dict[int, dict[str, float]] = {}

    def of(self, kind: str, n: int, d: int, e: int) -> float:
        """Seconds; kind is `forward` (writes N x N) or `backward` (reads it)."""
        if n not in self.passes:
            a = torch.rand(n, n).to(self.dtype)
            self.passes[n] = medians({"forward": a.clone, "backward": a.sum}, self.seconds)
        return flop(kind, n, d, e) / self.rate + self.passes[n][kind]
