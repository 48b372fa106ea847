"""How PyTorch compiles the sources of its GPU libraries, and what its Python bindings define beside them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fork.engine.compile import toolchain
from fork.engine.compile.toolchain import Toolkit
from fork.engine.wheel.base import Base
from fork.tree import DEVICE, KERNEL

# A header of nvcc's own package that others of CUDA include, in what code of the CPU needs of it.
WITHOUT_NVCC = toolchain.GLUE / "without_nvcc"
LISTS = "build_variables.bzl"
# PyTorch's CMake files define these for libtorch_cuda in a release, beside those that the base tells in CUDA_FLAGS.
DEFINED = (
    "TORCH_CUDA_BUILD_MAIN_LIB",
    "C10_CUDA_BUILD_MAIN_LIB",
    "TORCH_CUDA_USE_NVTX3",
    "USE_FLASH_ATTENTION",
    "USE_MEM_EFF_ATTENTION",
    "FLASHATTENTION_DISABLE_ALIBI",
    "FLASHATTENTION_DISABLE_SOFTCAP",
    "FLASH_NAMESPACE=pytorch_flash",
    "UNFUSE_FMA",
)
# What both define that a build may have, and under which setting a base tells that it has it.
PARTS = {
    "USE_CUDNN": "USE_CUDNN",
    "USE_CUSPARSELT": "USE_CUSPARSELT",
    "USE_NCCL": "USE_NCCL",
    "USE_C10D_NCCL": "USE_NCCL",
}
# Why a source of the GPU's is left as it is in a base that has it.
STAYS = "the GPU keeps the base's, as --cuda off asks"
# A kernel that two libraries have must be each one's own; nvcc says so since 12.8.
KERNELS_OF_ITS_OWN = ("-static-global-template-stub=true", "-device-entity-has-hidden-visibility=true")


@dataclass(frozen=True)
class Device:
    """The GPU's half of a base: None of it in a base for the CPU; without a toolkit, `lacking` says why."""

    base: Base
    toolkit: Toolkit | None
    lacking: str
    bindings: frozenset[str] = frozenset()  # the sources of libtorch_python
    listed: frozenset[str] = frozenset()  # those that PyTorch's lists name for libtorch_cuda

    def definitions(self, path: str) -> list[str]:
        """What a source is compiled with beside what all are."""
        if self.base.cuda is None:
            return []
        settings = dict(re.findall(r"\b(USE_\w+)=(\w+)", self.base.probe.config))
        parts = [name for name, setting in PARTS.items() if settings.get(setting) in ("1", "ON")]
        if path in self.bindings:
            return ["USE_CUDA", "USE_CUFILE", *parts]
        if path in self.listed or DEVICE.search(path) or path.endswith(KERNEL):
            return ["USE_CUDA", "USE_CUFILE", *parts, *DEFINED]
        return []

    def includes(self) -> list[Path]:
        """The headers of CUDA: the toolkit's, and those that pip has brought with the base."""
        if self.toolkit:
            return list(self.toolkit.includes)
        brought = sorted(self.base.site.glob("nvidia/*/include"))
        return [*brought, WITHOUT_NVCC] if self.base.cuda else []

    def nvcc(self, own: bool) -> list[str]:
        """The command that compiles the stack's own for all architectures of the base; what is PyTorch's, which takes
        long, for the GPU at hand, else for one from which the others are made."""
        assert self.toolkit is not None
        told = re.search(r"CUDA_FLAGS=([^\n]*?), [A-Z_]+=", self.base.probe.config)
        flags = [word for word in (told[1] if told else "").split() if word.startswith("-D")]
        options = subprocess.run([self.toolkit.nvcc, "--help"], capture_output=True, text=True).stdout
        stubs = KERNELS_OF_ITS_OWN if "static-global-template-stub" in options else ()
        # What TORCH_CUDA_ARCH_LIST says, else the GPUs of this machine, else the oldest
        names = self.toolkit.architectures
        if not own and not os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip():
            names = at_hand() or (names[0].partition("-")[0],)
        codes, host = map(code, names), os.environ.get("CUDAHOSTCXX") or toolchain.cxx()
        return [
            *(str(self.toolkit.nvcc), "-ccbin", str(host), "-O3", "-lineinfo", "--expt-relaxed-constexpr"),
            *("--forward-unknown-to-host-compiler", "--expt-extended-lambda", "-Xfatbin", "-compress-all"),
            *(*stubs, *flags),
            *(word for one in codes for word in ("-gencode", one)),
        ]


def named(lists: str, library: str) -> list[str]:
    """The sources that PyTorch's lists name for a library."""
    found: list[str] = []
    for node in ast.parse(lists).body:
        names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        if any(name.startswith(library) for name in names):
            words = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            found += [word for word in words if isinstance(word, str) and "/" in word]
    return found


def at_hand() -> tuple[str, ...]:
    """The architectures of this machine's GPUs, as nvidia-smi tells them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=compute_cap", "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True)
    return tuple(sorted({"".join(found) for found in re.findall(r"^(\d+)\.(\d+)\s*$", told.stdout, re.MULTILINE)}))


def code(architecture: str) -> str:
    """nvcc's words for CMake's: `90` has machine code and PTX."""
    number, _, kind = architecture.partition("-")
    made = {"real": f"sm_{number}", "virtual": f"compute_{number}"}.get(kind, f"[sm_{number},compute_{number}]")
    return f"arch=compute_{number},code={made}"


def libraries(base: Base) -> list[str]:
    """What replaced sources are linked with: the base's libraries for the GPU, and of CUDA's those that are used."""
    if base.cuda is None:
        return []
    own = [str(base.torch / "lib" / name) for name in ("libtorch_cuda.so", "libc10_cuda.so")]
    # C++'s own library first: some of the others export parts of it.
    used = ["-lstdc++", *map(str, sorted(base.site.glob("nvidia/*/lib/lib*.so*")))]
    return [*own, "-Wl,--push-state,--as-needed", *used, "-Wl,--pop-state"]
