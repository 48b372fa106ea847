"""The memory of torch.attn, seen by an allocator that guards the end of every tensor, counts bytes, and can fail."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from checks import ROOT
from checks.built import run

pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="the allocator is preloaded, as Linux does it"),
    pytest.mark.long,
]


CAPABILITIES: list[dict[str, str]] = [{"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"}, {}]
KERNELS = {"TORCH_ATTN_KERNELS": "1"}


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variable that preloads the guarding allocator."""
    library = tmp_path_factory.mktemp("guard") / "libguard.so"
    source = ROOT / "checks/memory/guard.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True)
    return {"LD_PRELOAD": str(library)}


def program(variables: Mapping[str, str], *words: str) -> str:
    return run(sys.executable, "-m", "checks.memory.programs", *words, variables=variables)


def test_the_guard_sees_a_byte_beyond_an_end(guard: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=f"status -{signal.SIGSEGV}"):
        program(guard, "beyond")


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_nothing_beyond_an_end_is_touched(guard: dict[str, str], capability: dict[str, str]) -> None:
    program(guard | capability, "ends")


def test_a_failed_allocation_is_an_error_and_loses_nothing(guard: dict[str, str]) -> None:
    program(guard, "failures")


def test_peaks(guard: dict[str, str]) -> None:
    program(guard | KERNELS, "peaks")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks for a flag of x86")
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_nothing_is_read_before_it_is_written(guard: dict[str, str], capability: dict[str, str]) -> None:
    program(guard | capability | KERNELS, "unwritten")


def test_memory_is_flat_over_many_calls() -> None:
    program({}, "calls", "100000")


def test_memory_is_flat_over_many_sizes() -> None:
    """ATen's own products of bfloat16, which are taken for small D, leave a kernel of oneDNN's for each size."""
    program(KERNELS, "sizes")


def test_four_processes_share_an_attn_that_none_may_hold(tmp_path: Path) -> None:
    """Each may have a quarter of it and 40 MiB, and their gradients are those of one process."""
    words = (sys.executable, "-m", "checks.memory.shared_by_four", str(tmp_path))
    assert run(*words, seconds=300, variables=KERNELS) == "equal\n"
