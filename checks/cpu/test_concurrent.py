"""torch.attn from many threads and processes at once, and inside of other parallel loops; each with a time limit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from checks import ROOT
from checks.built import built, run

pytestmark = pytest.mark.long
LIMIT = 240
"""Seconds, many times what a program takes: one that still runs then waits for itself."""


@pytest.fixture(scope="module")
def site() -> Path:
    return built()


@pytest.mark.parametrize("name", ["threads", "forks", "workers"])
def test_at_once(site: Path, name: str) -> None:
    run(sys.executable, "-m", "checks.cpu.concurrent", name, site=site, seconds=LIMIT)


@pytest.mark.parametrize("setting", [{"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}], ids=lambda x: next(iter(x)))
def test_fewer_threads_than_are_asked_for(site: Path, setting: dict[str, str]) -> None:
    words = (sys.executable, "-m", "checks.cpu.concurrent", "fewer")
    run(*words, site=site, seconds=LIMIT, variables={"TORCH_ATTN_KERNELS": "1", **setting})


def test_inside_of_a_parallel_loop(site: Path, tmp_path: Path) -> None:
    lines = (
        "cmake_minimum_required(VERSION 3.18)",
        "project(nested CXX)",
        "find_package(Torch REQUIRED)",
        f"add_executable(nested {ROOT / 'checks/cpu/concurrent.cpp'})",
        "target_link_libraries(nested ${TORCH_LIBRARIES})",
        "target_compile_options(nested PRIVATE -fopenmp)",
        "target_link_options(nested PRIVATE -fopenmp)",
        "set_property(TARGET nested PROPERTY CXX_STANDARD 20)",
    )
    (tmp_path / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    prefix, compiler = site / "torch/share/cmake", shutil.which("c++") or "g++"
    configure = ("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(*configure, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release", site=site)
    run("cmake", "--build", tmp_path / "build", site=site)
    run(tmp_path / "build/nested", site=site, seconds=LIMIT)
