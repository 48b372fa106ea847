"""The stack's code under GCC's sanitizers: its tests are clean, and a planted overflow and a planted race are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checks import ROOT
from checks.mutants.mutant import Mutant, fill, mutated, project

pytestmark = pytest.mark.sanitizers
COPY = ROOT / "build/sanitize"
KERNEL = "aten/src/ATen/native/cpu/AttnKernel.cpp"
OVERFLOW = Mutant(
    "a row of output with one element more, which for the last row lies after the end",
    KERNEL,
    where="store<opmath_t>(sums, at.rows, columns, to)",
    old="columns",
    new="columns + 1",
    test="checks/mutants/test_sanitized.py::test_a_planted_overflow_is_found",
)
RACE = Mutant(
    "all parts add to the same sums of grad_q",
    KERNEL,
    where="partial.from(task * most)",
    old="task * most",
    new="0 * most",
    test="checks/mutants/test_sanitized.py::test_a_planted_race_is_found",
)

VALUES = """
import torch
torch.set_num_threads(4)
for dtype in torch.float64, torch.float32, torch.bfloat16, torch.float16:
    for n in 9, 1100:
        q, k, v, grad = (torch.randn(n, 20).to(dtype) for _ in range(4))
        attn = torch.attn(q, k, v).attn
        torch.ops.aten._attn_backward(grad, attn, q, k, v, attn, [True] * 3)
"""


@pytest.fixture(scope="module")
def copy() -> Path:
    """The stack in a folder of its own, whose build stays for the next time."""
    fill(COPY, project())
    return COPY


def run(copy: Path, sanitize: str, *words: str, capability: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program with the copy's fork of these sanitizers."""
    command = [sys.executable, "-m", "fork", "--root", str(copy), "run", "--sanitize", sanitize, "--", "python", *words]
    variables = os.environ | {"OMP_WAIT_POLICY": "passive"}
    if capability:
        variables["ATEN_CPU_CAPABILITY"] = capability
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


@contextmanager
def planted(copy: Path, fault: Mutant) -> Iterator[None]:
    file, text = copy / fault.file, (copy / fault.file).read_text()
    file.write_text(mutated(text, fault))
    try:
        yield
    finally:
        file.write_text(text)


def assert_clean(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


TESTS = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


@pytest.mark.parametrize("capability", ["default", "avx2", ""])
def test_no_overflow_and_nothing_undefined_in_the_kernels(copy: Path, capability: str) -> None:
    program = ("-m", "checks.memory.programs", "ends")
    assert_clean(run(copy, "address,undefined", *program, capability=capability))


def test_no_overflow_and_nothing_undefined_in_the_formulas(copy: Path) -> None:
    chosen = "TestGradients or TestErrors or TestTransforms"
    assert_clean(run(copy, "address,undefined", *TESTS, "test/test_attn_explicit.py", "-k", chosen))


def test_a_planted_overflow_is_found(copy: Path) -> None:
    with planted(copy, OVERFLOW):
        # GCC does not instrument the masked stores of AVX-512.
        done = run(copy, "address,undefined", "-c", VALUES, capability="avx2")
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr and "AttnKernel.cpp" in done.stderr, done.stderr


def test_no_race(copy: Path) -> None:
    assert_clean(run(copy, "thread", "-c", VALUES))
    assert_clean(run(copy, "thread", "-m", "checks.cpu.concurrent", "threads"))


def test_a_planted_race_is_found(copy: Path) -> None:
    with planted(copy, RACE):
        done = run(copy, "thread", "-c", VALUES)
    assert "ThreadSanitizer: data race" in done.stderr and "AttnKernel.cpp" in done.stderr, done.stderr
