"""The stack compiled by clang: its kernels are right, on the threads of the wheel's OpenMP."""

from __future__ import annotations

import shutil
import sys

import pytest

from checks import ROOT
from checks.built import built, run
from fork import process

OPENMP = ["clang++", "-fopenmp", "-fsyntax-only", "-include", "omp.h", "-x", "c++", "/dev/null"]
TESTS = "17x5x33 or 129x70x90 or 304x64x64 or many_threads or deterministic"
# A second OpenMP would have threads of its own, beside those that tanh has started.
THREADS = """
import os, torch
torch.set_num_threads(5)
q = torch.randn(2000, 8)
q.tanh(), (q @ q.t()).tanh()
before = len(os.listdir("/proc/self/task"))
torch.attn(q, q, q)
assert len(os.listdir("/proc/self/task")) == before >= 5, os.listdir("/proc/self/task")
assert "libomp" not in open("/proc/self/maps").read()
"""


@pytest.mark.long
@pytest.mark.skipif(
    not shutil.which("clang++") or process.attempt(OPENMP).returncode != 0, reason="needs clang++ with its omp.h"
)
def test_a_fork_compiled_by_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    site = built("off", ROOT / "build/clang")
    for words in (["-c", THREADS], ["-m", "pytest", "-q", "test/test_attn_kernels.py", "-k", TESTS]):
        run(sys.executable, *words, site=site)
