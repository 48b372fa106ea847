"""The processes that a case is timed in: one for each setting that PyTorch reads when it starts."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch

from bench.attn.cpu.cases import Case, torch_dtype
from bench.attn.cpu.kinds import CAST
from bench.attn.cpu.measure import Clock, Floor, Work, in_turns, peak_memory
from bench.attn.cpu.record import BESIDE, PAGES
from bench.attn.cpu.routes import routes, works
from bench.attn.reference import Attn, runs_kernels

T = TypeVar("T")
GENERIC = {"TORCH_ATTN_KERNELS": "0"}
PLAIN, SWITCH = {"THP_MEM_ALLOC_ENABLE": "0"}, {"THP_MEM_ALLOC_ENABLE": "1"}
# The environment of each process, and which column of the results each route of it fills. Without its kernels
# torch.attn runs the functions that commit 1 registers. Composition runs in every process, so that caches and malloc's
# heap are alike; without a column its times are not kept.
SETTINGS: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    (PLAIN, {"composition": "composition", "torch.attn": "torch.attn", "vmap": "vmap"}),
    (GENERIC | PLAIN, {"composition": "", "torch.attn": "generic"}),
    (SWITCH, {"composition": "composition" + PAGES, "torch.attn": "torch.attn" + PAGES}),
    (GENERIC | SWITCH, {"composition": "", "torch.attn": "generic" + PAGES}),
)
# SDPA keeps no attn, so beside it nothing else runs that takes and returns as much memory.
RIVAL: tuple[dict[str, str], dict[str, str]] = (PLAIN, {"torch.attn": BESIDE, "SDPA": "SDPA"})
# The process of every other route. What these leave of malloc's heap made its torch.attn up to 1.6 times as slow.
OTHERS: tuple[dict[str, str], dict[str, str]] = (PLAIN, {"composition": "", "torch.attn": "", "vmap": "", CAST: CAST})
# Threads of OpenMP wait actively for some milliseconds. The next process begins when they sleep.
PAUSE = 0.01


class Worker:
    """What a process does: it prepares a case, and then times its routes whenever it is asked."""

    def __init__(self) -> None:
        # Once 31 MiB were freed, glibc keeps memory of that size. Before, chance decides which route gets new pages.
        torch.empty(31 << 20, dtype=torch.uint8)
        self.threads = torch.get_num_threads()
        self.found: dict[str, Work] = {}
        self.clocks: dict[str, Clock] = {}
        self.floors: dict[tuple[str, int], Floor] = {}
        self.others: dict[str, Attn] = {}

    def prepare(self, case: Case, columns: Mapping[str, str], others: bool, every: bool) -> None:
        """Routes of `columns`, or every one that the case takes. One that cannot do this work is named and left out."""
        torch.set_num_threads(case.threads or self.threads)
        torch._dynamo.reset()  # Past its limit of compilations per function, torch.compile would run eagerly.
        if others and not self.others:
            self.others = routes(others=True)
        self.found = {}
        for name, attn in (self.others if others else routes(others=False)).items():
            if not case.takes(name) or (name not in columns and not every):
                continue
            try:
                work = works(attn, case)
                work()
                self.found[columns.get(name, name)] = work
            except (NotImplementedError, RuntimeError):
                print(f"    {name} has no {case.kind}", flush=True)  # A custom Function without a jvp, say
        self.clocks = {name: Clock(work) for name, work in self.found.items()}

    def turn(self, seconds: float) -> dict[str, list[float]]:
        """Seconds per call of each column, for about `seconds` each."""
        times = in_turns(self.clocks, seconds)
        time.sleep(PAUSE)
        return times

    def peaks(self) -> dict[str, int]:
        """Bytes of resident memory that a call adds, without the switch for huge pages."""
        columns = ("composition", "generic", "torch.attn")
        return {name: peak_memory(self.found[name]) for name in columns if name in self.found}

    def runs_kernels(self) -> bool:
        """Whether torch.attn runs them for the case."""
        return runs_kernels(self.found["torch.attn"])

    def floor(self, case: Case) -> float:
        key = (case.dtype, case.threads)
        if key not in self.floors:
            self.floors[key] = Floor(torch_dtype(case.dtype), 0.1)
        return self.floors[key].of(case.kind, case.n, case.d, case.e)


worker = Worker()


def _run(method: Callable[..., T], arguments: Sequence[object]) -> T:
    return method(worker, *arguments)


class Process:
    """A worker in a process of its own, which has the environment from its start."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            self.pool.submit(os.getpid).result()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def run(self, method: Callable[..., T], *arguments: object) -> T:
        """What the worker's method returns."""
        return self.pool.submit(_run, method, arguments).result()
