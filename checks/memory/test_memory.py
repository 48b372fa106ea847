"""The memory of torch.attn, seen by an allocator that guards the end of every tensor, counts bytes, and can fail."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checks import ROOT
from checks.memory.guarded import guarded, run

pytestmark = [
    pytest.mark.skipif(platform.system() != "Linux", reason="the allocator is preloaded, as Linux does it"),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return guarded(tmp_path_factory.mktemp("guard"))


def test_the_guard_sees_a_byte_beyond_an_end(variables: dict[str, str]) -> None:
    assert run(variables, "beyond").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("capability", ["default", "avx2", "native"])
def test_nothing_beyond_an_end_is_touched(variables: dict[str, str], capability: str) -> None:
    chosen = {} if capability == "native" else {"ATEN_CPU_CAPABILITY": capability}
    done = run(variables | chosen, "ends")
    assert done.returncode == 0, done.stderr


def test_a_failed_allocation_is_an_error_and_loses_nothing(variables: dict[str, str]) -> None:
    done = run(variables, "failures")
    assert done.returncode == 0, done.stderr


def test_peaks(variables: dict[str, str]) -> None:
    done = run(variables | {"TORCH_ATTN_KERNELS": "1"}, "peaks")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks for a flag of x86")
@pytest.mark.parametrize("capability", ["default", "avx2", "native"])
def test_nothing_is_read_before_it_is_written(variables: dict[str, str], capability: str) -> None:
    chosen = {} if capability == "native" else {"ATEN_CPU_CAPABILITY": capability}
    done = run(variables | chosen | {"TORCH_ATTN_KERNELS": "1"}, "unwritten")
    assert done.returncode == 0, done.stderr


def test_memory_is_flat_over_many_calls(variables: dict[str, str]) -> None:
    plain = {name: value for name, value in variables.items() if name != "LD_PRELOAD"}
    done = run(plain, "calls", "100000")
    assert done.returncode == 0, done.stderr


def test_memory_is_flat_over_many_sizes(variables: dict[str, str]) -> None:
    plain = {name: value for name, value in variables.items() if name != "LD_PRELOAD"}
    # ATen's own products of bfloat16, which the rule takes for D < 16, leave a kernel of oneDNN's for each size.
    done = run(plain | {"TORCH_ATTN_KERNELS": "1"}, "sizes")
    assert done.returncode == 0, done.stderr


def test_four_processes_share_an_attn_that_none_may_hold(variables: dict[str, str], tmp_path: Path) -> None:
    """Each may have a quarter of it and 40 MiB, and their gradients are those of one process."""
    plain = {name: value for name, value in variables.items() if name != "LD_PRELOAD"} | {"TORCH_ATTN_KERNELS": "1"}
    command = [sys.executable, "-m", "checks.memory.processes", str(tmp_path)]
    done = subprocess.run(command, env=plain, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "equal\n", done.stderr
