"""The headers of other projects that a wheel lacks: those that CMake makes of templates, and who brings the others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fork.checkout.git import Checkout
from fork.engine.compile import submodules
from fork.engine.compile.device import Device
from fork.engine.wheel.base import Base, Probe
from fork.tests.helpers import commit, committed, git, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import NATIVE_FUNCTIONS

TEMPLATES = {
    "ideep/mkl-dnn/include/oneapi/dnnl/dnnl_config.h.in": "#cmakedefine DNNL_CPU_RUNTIME "
    "DNNL_RUNTIME_${DNNL_CPU_RUNTIME}\n#cmakedefine DNNL_WITH_SYCL\n"
    "#cmakedefine01 BUILD_TRAINING\n#cmakedefine01 BUILD_SUM\n",
    "ideep/mkl-dnn/include/oneapi/dnnl/dnnl_version.h.in": "#define DNNL_VERSION_MAJOR @DNNL_VERSION_MAJOR@\n"
    '#define DNNL_VERSION_HASH "@DNNL_VERSION_HASH@"\n',
    "gloo/gloo/config.h.in": "#define GLOO_VERSION_MINOR @GLOO_VERSION_MINOR@\n#cmakedefine01 GLOO_USE_REDIS\n"
    "#cmakedefine01 GLOO_HAVE_TRANSPORT_TCP\n",
    "gloo/CMakeLists.txt": "set(GLOO_VERSION_MAJOR 0)\nset(GLOO_VERSION_MINOR 5)\n",
}


RUNTIME = """\
#include "crt/host_config.h"
#include "crt/host_defines.h"
struct __device_builtin__ __builtin_align__(16) vec { float x; };
extern "C" __host__ __cudart_builtin__ vec CUDARTAPI start(void*);
static __forceinline__ __host__ __device__ int one() { return 1; }
"""


@pytest.fixture
def base(tmp_path: Path) -> Base:
    found = Base(Path("python"), tmp_path / "lib/python3/site", "2.13.0", tmp_path / "info")
    config = "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d263e6)\n"
    found.__dict__["probe"] = Probe("/usr/include", ".so", [], "", config, "")
    return found


def test_headers_of_templates(base: Base, tmp_path: Path) -> None:
    assert submodules.includes(base, tmp_path / "none", tmp_path / "work") == []
    write(tmp_path / "tree/third_party", TEMPLATES)
    folder = submodules.includes(base, tmp_path / "tree", tmp_path / "work")[0]
    made = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.h")}
    assert made == {
        "oneapi/dnnl/dnnl_config.h": "#define DNNL_CPU_RUNTIME DNNL_RUNTIME_OMP\n/* #undef DNNL_WITH_SYCL */\n"
        "#define BUILD_TRAINING 1\n#define BUILD_SUM 0\n",
        "oneapi/dnnl/dnnl_version.h": '#define DNNL_VERSION_MAJOR 3\n#define DNNL_VERSION_HASH "8d263e6"\n',
        "gloo/config.h": "#define GLOO_VERSION_MINOR 5\n#define GLOO_USE_REDIS 0\n#define GLOO_HAVE_TRANSPORT_TCP 1\n",
    }


def test_a_header_of_the_wheel_stays(base: Base, tmp_path: Path) -> None:
    write(tmp_path / "tree/third_party", TEMPLATES)
    write(base.torch, {"include/oneapi/dnnl/dnnl_config.h": ""})
    folder = submodules.includes(base, tmp_path / "tree", tmp_path / "work")[0]
    assert [file.name for file in folder.rglob("*.h")] == ["config.h"]


def test_headers_of_cuda_without_nvcc(base: Base, tmp_path: Path) -> None:
    """Those of its runtime include two of nvcc's package: ours come behind all others, and only for CUDA."""
    write(base.site, {"torch/version.py": "cuda: str = '13.0'\n", "nvidia/cu13/include/runtime.h": RUNTIME})
    folders = Device(base, None, "").includes()
    assert folders[0] == base.site / "nvidia/cu13/include"
    write(tmp_path, {"cpu.cpp": "#include <runtime.h>\nvec a = start(nullptr);\n"})
    command = ["c++", "-std=c++17", "-fsyntax-only", *(f"-idirafter{folder}" for folder in folders)]
    subprocess.run([*command, tmp_path / "cpu.cpp"], check=True)
    other = Base(base.python, tmp_path / "other", base.version, base.dist_info)
    write(other.site, {"torch/version.py": "cuda = None\n"})
    assert Device(other, None, "").includes() == []


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("gloo/config.h", "third_party/gloo lacks it: `git submodule update --recursive third_party/gloo`"),
        ("ApproximateClock.h", "`git submodule update --init --recursive third_party/kineto` brings it"),
        ("dnnl.hpp", "third_party/ideep lacks it: `git submodule update --recursive third_party/ideep`"),
        ("mkl_vsl.h", "`pip install mkl-include` brings it"),
        ("nv/target", "`pip install nvidia-cuda-cccl`, or `nvidia-cuda-cccl-cu12` with CUDA 12, brings it"),
        ("nvtx3/nvtx3.hpp", ""),
        ("nobody/knows.h", ""),
    ],
)
def test_who_brings_a_header(tmp_path: Path, header: str, said: str) -> None:
    write(tmp_path / "third_party", TEMPLATES)
    (tmp_path / "third_party/kineto").mkdir()
    assert submodules.advice(tmp_path, header) == said


def test_a_submodule_at_another_commit_than_the_releases(tmp_path: Path) -> None:
    """Whoever reads a header of it is told; whoever does not, and who has the release's, is not."""
    gloo = committed(tmp_path / "tree/third_party/gloo", {"gloo/context.h": "struct Context { int rank; };\n"})
    released = git(gloo, "rev-parse", "HEAD").strip()
    tree = committed(tmp_path / "tree", UPSTREAM)  # with the submodule as a commit
    checkout, header = Checkout.open(tree), str(gloo / "gloo/context.h")
    assert submodules.unlike(checkout, "HEAD", [header]) == []
    commit(gloo, {"gloo/context.h": "struct Context { int rank, size; };\n"}, "size")
    assert submodules.unlike(checkout, "HEAD", [str(tree / NATIVE_FUNCTIONS)]) == []
    (said,) = submodules.unlike(checkout, "HEAD", [header])
    assert said.startswith("third_party/gloo is at ") and said.endswith(f"checkout {released[:10]}`")
