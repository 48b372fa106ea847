"""What a build is made with: the C++ compiler and its tools, and the CUDA toolkit, or why there is none."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fork import process
from fork.digest import digest
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.folders import PACKAGE

# What a build takes from the environment, as CMake does: the compilers and their flags. They are for the fork, not for
# what runs on it.
VARIABLES = ("CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAHOSTCXX", "CUDAFLAGS")

GLUE = PACKAGE / "engine/glue"

# The instruction sets that ATen builds its CPU kernels for, beside the compiler's default, with the flags of each.
X86: Mapping[str, tuple[str, ...]] = {
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
}
ARM: Mapping[str, tuple[str, ...]] = {
    "SVE256": ("-march=armv8-a+sve+bf16", "-msve-vector-bits=256", "-DCPU_CAPABILITY_SVE", "-D__ARM_FEATURE_BF16"),
    "SVE128": ("-march=armv9-a+sve2+bf16", "-msve-vector-bits=128", "-DCPU_CAPABILITY_SVE"),
}


BINUTILS = ("objcopy", "objdump", "readelf")


def settings() -> list[str]:
    """The environment's wishes for a build, on which its result depends."""
    return [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]


@dataclass(frozen=True)
class Toolkit:
    """nvcc, the architectures to compile for (in CMake's spelling), and the base's CUDA libraries and headers."""

    nvcc: Path
    architectures: tuple[str, ...]
    libraries: tuple[Path, ...]
    includes: tuple[Path, ...]


def choose(base: Base, wish: str) -> tuple[Toolkit | None, str]:
    """The toolkit for `wish` (auto, on, off), and one line that says what was chosen and why."""
    if wish == "off":
        return None, "off, as asked"
    try:
        toolkit = _find(base)
    except ForkError as error:
        if wish == "on":
            raise
        return None, f"off: {error}"
    return toolkit, f"{toolkit.nvcc}, for {' '.join(toolkit.architectures)}"


def _find(base: Base) -> Toolkit:
    if base.cuda is None:
        raise ForkError(
            f"torch {base.version} is a CPU build; `pip install torch==={base.version.split('+')[0]}` has CUDA"
        )
    nvcc = compiler(base)
    if nvcc is None:
        missing = "install the CUDA toolkit or `pip install nvidia-cuda-nvcc`, or set CUDACXX"
        raise ForkError(f"nvcc was not found: {missing}")
    said = process.run([nvcc, "--version"], f"{nvcc} does not run")
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None or release[1] != base.cuda.split(".")[0]:
        found = f"{release[1]}.{release[2]}" if release else "unknown"
        raise ForkError(
            f"torch {base.version} has CUDA {base.cuda} and {nvcc} is CUDA {found}: install nvcc {base.cuda}"
        )
    runtime = sorted(base.site.glob("nvidia/*/lib/libcudart.so.*")) or sorted(
        nvcc.parent.parent.glob("lib64/libcudart.so")
    )
    if not runtime:
        raise ForkError(f"libcudart was found neither in {base.site}/nvidia nor beside {nvcc}")
    libraries = tuple(base.torch / "lib" / name for name in ("libtorch_cuda.so", "libc10_cuda.so"))
    # A toolkit need not hold cuBLAS and its kin, whose headers ATen's include; a CUDA build of torch brings them.
    includes = (nvcc.parent.parent / "include", *sorted(base.site.glob("nvidia/*/include")))
    return Toolkit(nvcc, _architectures(base), (*libraries, runtime[0]), includes)


def compiler(base: Base) -> Path | None:
    """nvcc: the one that CUDACXX names, the toolkit's, or the one of pip beside the base."""
    toolkit = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    folders = [toolkit, os.environ.get("PATH", os.defpath), *map(str, base.site.glob("nvidia/*/bin"))]
    found = shutil.which(os.environ.get("CUDACXX", "")) or shutil.which("nvcc", path=os.pathsep.join(folders))
    return Path(found).resolve() if found else None


def _architectures(base: Base) -> tuple[str, ...]:
    """What the installed torch was built for, from 8.0 up, and the newest also as PTX for what comes later.

    TORCH_CUDA_ARCH_LIST, PyTorch's own variable (`9.0`, `8.0;9.0+PTX`), says otherwise.
    """
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    wished = re.findall(r"(\d+)\.(\d+)(\+PTX)?", listed)
    if listed.strip() and not wished:
        raise ForkError(f"TORCH_CUDA_ARCH_LIST={listed} names no architecture: write it as in `8.0;9.0+PTX`")
    if wished:
        return tuple(f"{major}{minor}" if ptx else f"{major}{minor}-real" for major, minor, ptx in wished)
    built = map(int, re.findall(r"sm_(\d+)", base.probe.architectures))
    numbers = sorted({n for n in built if n >= 80} | {80, 90})
    return (*(f"{n}-real" for n in numbers), f"{numbers[-1]}-virtual")


def cxx() -> Path:
    """The C++ compiler: CXX, or the system's."""
    wished = os.environ.get("CXX")
    compiler = shutil.which(wished) if wished else shutil.which("c++") or shutil.which("g++")
    if compiler is None and wished and " " in wished:
        launcher, _, program = wished.partition(" ")
        raise ForkError(
            f"CXX={wished!r} is more than a compiler: set CXX={program.split()[0]}, and CMAKE_CXX_COMPILER_LAUNCHER="
            f"{launcher} if {launcher} is to run it"
        )
    if compiler is None and wished:
        raise ForkError(f"the compiler {wished}, which CXX names, was not found: install it or set CXX to another")
    if compiler is None:
        raise ForkError("no C++ compiler was found: install g++ 11 or later (Debian: `apt-get install g++`) or set CXX")
    return Path(compiler)


def check_tools(base: Base) -> None:
    """Raises when the C++ compiler or Python's headers are missing."""
    compiler = cxx()
    openmp = ["-fopenmp", "-fsyntax-only", "-include", "omp.h", "-x", "c++", "/dev/null"]
    if process.attempt([compiler, *openmp]).returncode:
        raise ForkError(
            f"{compiler} has no OpenMP (it finds no omp.h), which ATen's headers need: set CXX=g++, or install clang's "
            "(Debian: `apt-get install libomp-dev`)"
        )
    if not Path(headers := base.probe.include, "Python.h").is_file():
        raise ForkError(
            f"Python.h is not in {headers}: install Python's headers (Debian: `apt-get install python3-dev`)"
        )
    for tool in BINUTILS:
        which(tool)
    if platform.system() != "Linux":
        raise ForkError(f"a fork on a wheel is built on Linux only, and this is {platform.system()}: use `fork apply`")


def path_of(tool: str) -> str | None:
    """Path of a build tool, this environment's own before the system's."""
    return shutil.which(tool, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def which(tool: str) -> str:
    """The same, of one that a build needs; a compiler in a folder of its own has its binutils beside it."""
    path = path_of(tool)
    if path is None and tool in BINUTILS:
        path = shutil.which(process.run([cxx(), f"-print-prog-name={tool}"], "the compiler does not run").strip())
    if path is None and tool in BINUTILS:
        raise ForkError(f"{tool} was not found: install binutils (Debian: `apt-get install binutils`)")
    if path is None:
        raise ForkError(f"{tool} was not found: run `{sys.executable} -m pip install {tool}`")
    return path


def copied(file: Path, words: Sequence[str]) -> Path:
    """A copy of an object in which objcopy has changed symbols."""
    made = file.with_suffix(f".{digest(file.read_bytes(), repr(words).encode())}.o")
    return once(made, [which("objcopy"), *words, file], f"{file.name} cannot be copied")


def once(made: Path, command: Sequence[str | Path], failed: str) -> Path:
    """A file that a program makes, with its path as the last word; what is there was made of the same, and whole."""
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part.o")
        process.run([*command, part], failed)
        part.replace(made)
    return made


def instruction_sets(torch: Path, machine: str) -> dict[str, tuple[str, ...]]:
    """The instruction sets of the base's kernels: all of x86-64; of Arm those that its DispatchStub.h names."""
    stub = (torch / "include/ATen/native/DispatchStub.h").read_text()
    known = {"x86_64": X86, "aarch64": {name: flags for name, flags in ARM.items() if f"void *{name}" in stub}}
    return {"DEFAULT": (), **known.get(machine, {})}
