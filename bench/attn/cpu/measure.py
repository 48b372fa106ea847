"""Times, peak memory and floors, all taken on this machine in the same run."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from timeit import Timer

import torch

from bench.attn.reference import flop

Work = Callable[[], object]


class Clock:
    """Times a work that has run once, by as many calls as take about a millisecond."""

    def __init__(self, work: Work) -> None:
        self.timer = Timer(work)
        once = self.timer.timeit(1)
        if once < 0.1:  # One call alone may have met a busy moment.
            once = min(self.timer.repeat(5, 1))
        self.count = max(1, min(1000, int(1e-3 / max(once, 1e-7))))

    def seconds(self) -> float:
        """Of all its calls."""
        return self.timer.timeit(self.count)


def in_turns(clocks: Mapping[str, Clock], seconds: float) -> dict[str, list[float]]:
    """Seconds per call, for about `seconds` each, in turns: a busy moment of the machine meets all of them."""
    rounds: dict[str, list[float]] = {name: [] for name in clocks}
    spent = 0.0
    while spent < seconds * len(clocks):
        for name, clock in clocks.items():
            took = clock.seconds()
            rounds[name].append(took / clock.count)
            spent += took
    return rounds


def median(work: Work, seconds: float) -> float:
    """Seconds per call."""
    work()
    return statistics.median(in_turns({"": Clock(work)}, seconds)[""])


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
        self.rate = 2 * n**3 / median(lambda: a @ a, seconds)
        self.dtype, self.seconds = dtype, seconds
        self.passes: dict[int, dict[str, float]] = {}

    def of(self, kind: str, n: int, d: int, e: int) -> float:
        """Seconds; kind is `forward` (writes N x N) or `backward` (reads it)."""
        if n not in self.passes:
            a = torch.rand(n, n).to(self.dtype)
            self.passes[n] = {"forward": median(a.clone, self.seconds), "backward": median(a.sum, self.seconds)}
        return flop(kind, n, d, e) / self.rate + self.passes[n][kind]
