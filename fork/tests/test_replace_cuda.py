"""A branch that changes PyTorch's own code of the GPU, on a CUDA build of torch, without a GPU: what was changed is
compiled, linked, and found by the base, or it is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork.cli import main
from fork.engine.build import environment
from fork.engine.compile import toolchain
from fork.engine.wheel import base as bases
from fork.tests.helpers import QUIET_GIT, committed, edit, git, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import NATIVE_FUNCTIONS

pytestmark = pytest.mark.long

SOFTPLUS = "aten/src/ATen/native/cuda/ActivationSoftplusKernel.cu"
FACTOR = "aten/src/ATen/native/cuda/SoftplusFactor.cuh"
SUFFIX = "c10/cuda/CUDAMiscFunctions.cpp"
MEDIAN = "aten/src/ATen/native/cuda/MedianMine.cu"
LINALG = "aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp"
# A kernel, a header of kernels and a source of the GPU's libraries, which PyTorch has, in words of our own.
SOURCES = {
    FACTOR: "#pragma once\n__device__ inline float factor() { return 2; }\n",
    SOFTPLUS: """\
#include <ATen/native/Activation.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/cuda/SoftplusFactor.cuh>
#include <c10/core/Scalar.h>

namespace at::native {

// What another library launches by this name must stay its own.
__global__ void vol2col_kernel(float* values) {
  values[threadIdx.x] *= factor();
}

template <typename T>
__global__ void scaled(T* value) {
  *value *= factor();
}

// The compiler makes what launches a template a part of this function, which the base exports, and which is no kernel.
void launch_cross_kernel(const TensorIteratorBase& iter, int64_t, int64_t, int64_t) {
  scaled<<<1, 1>>>(static_cast<float*>(iter.data_ptr(0)));
}

static void softplus_kernel(TensorIteratorBase& iter, const Scalar&, const Scalar&) {
  vol2col_kernel<<<1, 32>>>(static_cast<float*>(iter.data_ptr(0)));
  launch_cross_kernel(iter, 0, 0, 0);
}

REGISTER_DISPATCH(softplus_stub, &softplus_kernel)

} // namespace at::native
""",
    SUFFIX: """\
#include <c10/cuda/CUDAMiscFunctions.h>

namespace c10::cuda {

const char* get_cuda_check_suffix() noexcept {
  return " (theirs)";
}

} // namespace c10::cuda
""",
    LINALG: "void linalg() {}\n",
}
# Where the dispatcher's table of softplus leads, and what two functions of the base's libraries are to a program.
CODE = """
import ctypes, torch
from fork.engine.link.proof import file_of
scope = ctypes.CDLL(torch._C.__file__)
stub = (ctypes.c_uint64 * 8).in_dll(scope, "_ZN2at6native13softplus_stubE")
names = {file_of(value).rpartition("/")[2] for value in stub}
print({name for name in names if name.startswith("libtorch")})
suffix = scope._ZN3c104cuda21get_cuda_check_suffixEv
suffix.restype = ctypes.c_char_p
print(suffix().decode())
"""


@pytest.fixture(scope="module")
def module_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    toolkit, why = toolchain.choose(bases.installed(), "auto")
    if toolkit is None:
        pytest.skip(f"nothing compiles for the GPU, as `fork build` says: {why}")
    lists = {NATIVE_FUNCTIONS: bases.installed().read(NATIVE_FUNCTIONS) or ""}
    tree = committed(tmp_path_factory.mktemp("changed") / "tree", {**UPSTREAM, **SOURCES, **lists})
    git(tree, "switch", "--quiet", "--create", "mine")
    return tree


@pytest.fixture
def tree(module_tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in QUIET_GIT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    yield module_tree
    git(module_tree, "checkout", "--quiet", "--force", "mine")
    git(module_tree, "clean", "--quiet", "--force", "-d")


def build(tree: Path, cuda: str = "on") -> int:
    return main(["--root", str(tree.parent / "root"), "--checkout", str(tree), "build", "--cuda", cuda])


def site(tree: Path) -> Path:
    (found,) = (tree.parent / "root/build/checkouts").glob("*/build/forks/*-cuda*/current")
    return found


def printed(tree: Path) -> list[str]:
    variables = environment(site(tree), bases.installed().python)
    done = subprocess.run([sys.executable, "-c", CODE], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_a_header_and_a_source(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(tree, SOFTPLUS, "1, 32", "2, 32")
    assert build(tree) == 0
    assert f"replaced {SOFTPLUS} (changed)\n" in capsys.readouterr().out
    assert printed(tree)[0] == "{'libtorch.so'}"
    library = site(tree) / "torch/lib/libtorch.so"
    symbols = subprocess.run(["nm", "--dynamic", library], capture_output=True, text=True, check=True).stdout
    assert "vol2col_kernel" not in symbols and "softplus_stub" in symbols
    edit(tree, SOFTPLUS, "// What another", "// Explained: what another")
    assert build(tree) == 0
    assert ".cu\n" not in capsys.readouterr().out.partition("replaced")[0]
    git(tree, "checkout", "--quiet", "--force", "mine")
    edit(tree, FACTOR, "return 2", "return 3")
    edit(tree, SUFFIX, "theirs", "ours")
    assert build(tree) == 0
    said = capsys.readouterr().out
    assert f"replaced {SOFTPLUS} (includes the changed {FACTOR})\n" in said and f"replaced {SUFFIX} (changed)\n" in said
    assert printed(tree) == ["{'libtorch.so'}", " (ours)"]


def test_another_kernel_of_an_operator(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a new file for nvcc, beside a changed one; the dispatcher has it from the fork's generated source."""
    edit(tree, NATIVE_FUNCTIONS, "    CUDA: median_cuda\n", "    CUDA: median_mine\n")
    edit(tree, SOFTPLUS, "1, 32", "2, 32")
    kernel = "Tensor median_mine(const Tensor& self) {\n  return self.neg();\n}\n"
    head = "#include <ATen/core/Tensor.h>\n#include <ATen/ops/median_native.h>\n"
    write(tree, {MEDIAN: f"{head}namespace at::native {{\n{kernel}}} // namespace at::native\n"})
    assert build(tree) == 0
    said = capsys.readouterr().out
    assert re.search(r"replaced aten/src/ATen/RegisterCUDA_\d+\.cpp \(generated: .*median", said)
    code = "import torch; print(torch._C._dispatch_dump('aten::median'))"
    variables = environment(site(tree), bases.installed().python)
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, cwd="/")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("CUDA: "))
    assert "RegisterCUDA_" in line
    assert (
        "median_mine"
        in subprocess.run(
            ["nm", "--dynamic", site(tree) / "torch/lib/libtorch.so"], capture_output=True, text=True
        ).stdout
    )


REFUSED = {
    "an error": (SOFTPLUS, "threadIdx.x", "threadIdx.w", f"{SOFTPLUS}:10: error: class"),
    "a library that is loaded later": (LINALG, "{}", "{ return; }", "is of libtorch_cuda_linalg.so, which is loaded"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_would_not_run_is_refused(tree: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, before, after, reason = REFUSED[name]
    edit(tree, path, before, after)
    assert build(tree) == 1
    assert reason in capsys.readouterr().err


def test_cuda_off(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(tree, SOFTPLUS, "1, 32", "2, 32")
    assert build(tree, "off") == 0
    assert f"left out {SOFTPLUS}: the GPU keeps the base's, as --cuda off asks\n" in capsys.readouterr().out
    git(tree, "checkout", "--quiet", "--force", "mine")
    edit(tree, FACTOR, "return 2", "return 3")
    assert build(tree, "off") == 0
    assert f"left out {FACTOR}: the GPU keeps the base's, as --cuda off asks\n" in capsys.readouterr().out
