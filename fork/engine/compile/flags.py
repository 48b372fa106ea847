"""How a source is compiled: as the base tells it, as PyTorch's CMake files say, and as the stack's own is."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fork.checkout.release_tree import Tree
from fork.engine.compile import sanitizers, submodules, toolchain
from fork.engine.compile.device import LISTS, Device, named
from fork.engine.wheel.base import Base
from fork.tree import KERNEL, TOPS

# PyTorch's CMake files define these for its libraries, beside those that the base tells in its CXX_FLAGS.
DEFINED = (
    "AT_PER_OPERATOR_HEADERS",
    "CAFFE2_BUILD_MAIN_LIB",
    "C10_BUILD_MAIN_LIB",
    "TORCH_PYTHON_BUILD_MAIN_LIB",
    # The parsers of some argument types (int[2]) format their errors by fmt, which the base hides.
    "FMT_HEADER_ONLY=1",
    "HAVE_MALLOC_USABLE_SIZE=1",
    "HAVE_MMAP=1",
    "HAVE_POSIX_FALLOCATE=1",
    "HAVE_SHM_OPEN=1",
    "HAVE_SHM_UNLINK=1",
    "ONNX_ML=1",
    "ONNX_NAMESPACE=onnx_torch",
    "CPUINFO_SUPPORTED_PLATFORM=1",
    "MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS",
    "USE_EXTERNAL_MZCRC",
    "USE_DISTRIBUTED",
    "USE_RPC",
    "USE_TENSORPIPE",
    "USE_C10D_GLOO",
    "TORCH_USE_LIBUV",
    "USE_NUMPY",
    "NPY_API_SYMBOL_ATTRIBUTE=",  # else numpy's headers hide their variables, and the fork's would not be the base's
    # Else pybind11 hides its variables, and the fork's would not be the base's.
    "PYBIND11_NAMESPACE=pybind11",
    "USE_C10D",
    "USE_ITT",
    "USE_VALGRIND",
    "BUILD_ONEDNN_GRAPH",
    "_FILE_OFFSET_BITS=64",
)
# What is hidden is not reached by the table in which a variable of the base can stand.
HIDING = "-fvisibility=hidden"
# ATen's kernels are compiled once for each instruction set, and one is chosen when the process starts.
PLACES = ("native/cpu/", "native/quantized/cpu/kernels/", "UfuncCPUKernel_")
KERNELS = tuple(f"aten/src/ATen/{place}" for place in PLACES)
C_STANDARD = "-std=gnu11"
# What the stack's own code is written in, also where an older base was not.
STACK_STANDARD = "-std=c++20"


@dataclass(frozen=True)
class Flags:
    """The words between the compiler's name and a source, of one base, in a folder of work: `front` comes before the
    base's headers and `behind` after them; `words` are for all sources, PyTorch's and the stack's, but not for what is
    generated. `store` is where ccache keeps what all builds share."""

    device: Device
    work: Path
    capabilities: Mapping[str, Sequence[str]]
    front: Sequence[Path]
    behind: Sequence[Path]
    store: Path
    words: Sequence[str] = ()

    @classmethod
    def of_build(cls, device: Device, work: Path, store: Path, sanitize: Sequence[str], tree: Tree | None) -> Flags:
        """Without a front; `tree` has the release's list of sources, and the headers of submodules."""
        lists = (tree.checkout.read_at(tree.release, LISTS) if tree else None) or ""
        bindings, listed = (frozenset(named(lists, library)) for library in ("libtorch_python", "libtorch_cuda"))
        device, behind = replace(device, bindings=bindings, listed=listed), device.includes()
        behind = submodules.behind(device.base, tree.checkout.path, work, behind) if tree else behind
        capabilities = toolchain.instruction_sets(device.base.torch, platform.machine())
        return cls(device, work, capabilities, [], behind, store, sanitizers.flags(sanitize))

    @property
    def base(self) -> Base:
        return self.device.base

    @cached_property
    def includes(self) -> list[Path]:
        """The folders of headers in front, with those in them that headers are included from by their names."""
        tops = ["", *(top.removeprefix("aten/src/") for top in TOPS)]
        found = (folder / top for folder in self.front for top in tops if not top or (folder / top).is_dir())
        return [*dict.fromkeys(found)]

    @cached_property
    def _always(self) -> list[str]:
        base = self.base
        standard = re.search(r"C\+\+ Version: (\d\d\d\d)", base.probe.config)
        told = re.search(r"CXX_FLAGS=([^,\n]*)", base.probe.config)
        said = [word for word in (told[1] if told else "").split() if word.startswith(("-D", "-O", "-f"))]
        headers = [base.torch / folder for folder in ("include", "include/torch/csrc/api/include")]
        return [
            f"-std=c++{standard[1][2:] if standard else '17'}",
            *(word for word in said if word != HIDING),
            # A section for each function and variable, so that two objects can be compared.
            *("-fPIC", "-fopenmp", "-ffunction-sections", "-fdata-sections", "-w", "-fdiagnostics-color=never"),
            *(f"-D{name}" for name in DEFINED),
            *(f"-DHAVE_{name}_CPU_DEFINITION" for name in defined(self.capabilities)),
            *(f"-D{definition}" for definition in base.probe.definitions),
            *(f"-I{folder}" for folder in self.includes),
            *(f"-isystem{folder}" for folder in (*headers, base.probe.include)),
            *(f"-idirafter{folder}" for folder in (*self.behind, toolchain.GLUE / "include")),
        ]

    def of(self, path: str, capability: str, own: bool) -> list[str]:
        """Those of one source, behind the compiler's name; of a source for the GPU, nvcc's name and all."""
        always = [max(word, STACK_STANDARD) if own and word.startswith("-std=") else word for word in self._always]
        words = [*always, *(f"-D{name}" for name in self.device.definitions(path)), *self._beside(path, capability)]
        if path.endswith(KERNEL):
            # It takes one level of optimization, which it has, and passes on what it does not know.
            words = [word for word in words if not word.startswith("-O")]
            return [*self.device.nvcc(own), *words, *_wished("CUDAFLAGS")]
        if path.endswith(".c"):
            words = [C_STANDARD if word.startswith("-std=") else word for word in words]
            return ["-x", "c", *words, *_wished("CFLAGS")]
        kernel = [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]
        return [*words, *(["-O3", *kernel, *self.capabilities[capability]] if capability else ()), *_wished("CXXFLAGS")]

    def _beside(self, path: str, capability: str) -> list[str]:
        """A source finds the headers beside it, and names files by their paths in PyTorch, wherever they lie here."""
        beside = Path(path.removeprefix("aten/src/")).parent
        tops = [*self.includes, self.base.torch / "include"]
        maps = [
            f"-fmacro-prefix-map={top}/=" for folder in tops for top in (folder, os.path.relpath(folder, self.work))
        ]
        return [*maps, *(f"-iquote{folder / beside}" for folder in self.includes)]


def defined(capabilities: Mapping[str, Sequence[str]]) -> list[str]:
    """What ATen's headers ask for each of these instruction sets; the names for Arm differ between releases."""
    names = [name for name in capabilities if name != "DEFAULT"]
    return ["SVE", "SVE256", "ARM_BF16"] if any(name in toolchain.ARM for name in names) else names


def _wished(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))
