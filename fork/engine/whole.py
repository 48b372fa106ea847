"""Compiles sources of PyTorch whole, as the base was compiled, and keeps every object for the next time."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fork import process
from fork.checkout.changed import SOURCES
from fork.digest import digest
from fork.engine import toolchain, tree
from fork.engine.base import Base
from fork.engine.device import SUFFIX, Device
from fork.errors import ForkError
from fork.weave.scan import lines

HERE = Path(__file__).parent
# PyTorch's CMake files define these for its libraries, beside those that the base tells in its CXX_FLAGS.
DEFINED = (
    "AT_PER_OPERATOR_HEADERS",
    "CAFFE2_BUILD_MAIN_LIB",
    "C10_BUILD_MAIN_LIB",
    "TORCH_PYTHON_BUILD_MAIN_LIB",
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
    "USE_NUMPY",
    # Else pybind11 hides its variables, and the fork's would not be the base's.
    "PYBIND11_NAMESPACE=pybind11",
    "USE_C10D",
    "USE_ITT",
    "USE_VALGRIND",
    "BUILD_ONEDNN_GRAPH",
    "_FILE_OFFSET_BITS=64",
)
# How nvcc's front end tells an error.
NVCC = re.compile(r"^(\S.*)\((\d+)\): (?:catastrophic )?error[^:\n]*:", re.MULTILINE)
# What is hidden is not reached by the table in which a variable of the base can stand.
HIDING = "-fvisibility=hidden"
KERNELS = ("aten/src/ATen/native/cpu/", "aten/src/ATen/native/quantized/cpu/kernels/")


@dataclass(frozen=True)
class Unit:
    """One run of the compiler: a text, the path that it has in PyTorch, and for a kernel its instruction set."""

    path: str
    text: str
    capability: str = ""

    @property
    def named(self) -> str:
        return f"{self.path} ({self.capability})" if self.capability else self.path


@dataclass(frozen=True)
class Failed(Exception):
    """The compiler's first error, its place in front, and what it said in all."""

    unit: Unit
    error: str
    said: str


class Compiler:
    """Compiles for one base; `includes` come before its headers, `behind` after them."""

    def __init__(
        self,
        base: Base,
        work: Path,
        capabilities: Mapping[str, Sequence[str]],
        includes: Sequence[Path],
        behind: Sequence[Path],
        device: Device | None = None,
    ) -> None:
        self._base, self._work, self._capabilities = base, work, capabilities
        self._includes, self._behind = includes, behind
        self._device = device or Device(base, None, "")
        self._stable = (str(base.site), str(base.probe.include), "/usr/")
        standard = re.search(r"C\+\+ Version: (\d\d\d\d)", base.probe.config)
        flags = re.search(r"CXX_FLAGS=([^,\n]*)", base.probe.config)
        said = [word for word in (flags[1] if flags else "").split() if word.startswith(("-D", "-O", "-f"))]
        said = [word for word in said if word != HIDING]
        self._flags = [
            f"-std=c++{standard[1][2:] if standard else '17'}",
            *said,
            # A section for each function and variable, so that two objects can be compared.
            *("-fPIC", "-fopenmp", "-ffunction-sections", "-fdata-sections", "-w", "-fdiagnostics-color=never"),
            *(f"-D{name}" for name in DEFINED),
            *(f"-DHAVE_{name}_CPU_DEFINITION" for name in capabilities if name != "DEFAULT"),
            *(f"-D{definition}" for definition in base.probe.definitions),
            *(word for folder in includes for word in ("-I", str(folder))),
            *(f"-isystem{base.torch / folder}" for folder in ("include", "include/torch/csrc/api/include")),
            f"-isystem{base.probe.include}",
            f"-isystem{HERE / 'glue/include'}",
            *(f"-idirafter{folder}" for folder in behind),
        ]
        self._command = [*shlex.split(os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "")), str(toolchain.cxx())]
        version = process.run([toolchain.cxx(), "--version"], "the compiler does not run")
        headers = sorted(str(file) for folder in includes for file in folder.rglob("*.*h"))
        self._nvcc = self._device.nvcc() + for_nvcc(self._flags) if self._device.toolkit else []
        self._about = repr((version, base.record_text, self._flags, self._nvcc, headers, toolchain.settings())).encode()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The endings of the sources that it compiles."""
        return (*SOURCES, *self._device.kinds)

    @property
    def lacking(self) -> str:
        """Why it compiles none for the GPU, if it does not."""
        return self._device.lacking

    def including(self, folders: Sequence[Path]) -> Compiler:
        """One that looks for headers in these folders first."""
        front = [*folders, *self._includes]
        return Compiler(self._base, self._work, self._capabilities, front, self._behind, self._device)

    def units(self, path: str, text: str) -> list[Unit]:
        """A kernel is compiled once for each instruction set."""
        if path.startswith(KERNELS):
            return [Unit(path, text, capability) for capability in self._capabilities]
        return [Unit(path, text)]

    def compile_all(self, units: Iterable[Unit]) -> dict[Unit, Path | Failed]:
        """The object of each unit, or why there is none; several are compiled at a time."""
        units = list(dict.fromkeys(units))
        found: dict[Unit, Path | Failed] = {}
        for unit in units:
            if kept := self.kept(unit):
                found[unit] = kept
        todo = [unit for unit in units if unit not in found]
        begun, done = time.monotonic(), 0

        def run(unit: Unit) -> Path | Failed:
            nonlocal done
            try:
                return self._compile(unit)
            except Failed as failed:
                return failed
            finally:
                done += 1
                print(f"         [{done}/{len(todo)} {time.monotonic() - begun:.1f}] {unit.named}", flush=True)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            found |= zip(todo, pool.map(run, todo))
        return found

    def _key(self, unit: Unit) -> str:
        # Neither a comment nor an empty line needs a compiler; the numbers of lines in messages may then be old.
        code = "\n".join(line for line in lines(unit.text) if not line.startswith("#line "))
        return digest(self._about, unit.path.encode(), unit.capability.encode(), code.encode())

    def kept(self, unit: Unit) -> Path | None:
        """The object that was made of the same before, if it is there."""
        file = self._work / f"{self._key(unit)}.o"
        known = file.with_suffix(".json")
        if not file.is_file() or not known.is_file():
            return None
        inputs: dict[str, str] = json.loads(known.read_text())
        same = all(Path(name).is_file() and _digest(name) == made for name, made in inputs.items())
        return file if same else None

    def headers_of(self, made: Path) -> list[str]:
        """The headers that an object was compiled with, but for those of the wheel and of the system."""
        return list(json.loads(made.with_suffix(".json").read_text()))

    def preprocessed(self, unit: Unit) -> str:
        """What the compiler reads of a text behind its directives; nothing where it cannot read it."""
        folder = self._work / f"{self._key(unit)}.read"
        tree.write(folder, "read.cpp", unit.text)
        done = process.attempt([*self._command_of(unit), "-E", "-P", str(folder / "read.cpp")])
        shutil.rmtree(folder)
        return "" if done.returncode else done.stdout

    def _command_of(self, unit: Unit) -> list[str]:
        command = self._nvcc if unit.path.endswith(SUFFIX) else [*self._command, *self._flags]
        command = [*command, *(f"-D{name}" for name in self._device.definitions(unit.path))]
        if unit.capability:
            names = (f"-DCPU_CAPABILITY={unit.capability}", f"-DCPU_CAPABILITY_{unit.capability}")
            command += ["-O3", *names, *self._capabilities[unit.capability]]
        return command

    def _compile(self, unit: Unit) -> Path:
        key = self._key(unit)
        folder = self._work / key
        source, made = folder / unit.path.rpartition("/")[2], self._work / f"{key}.o"
        tree.write(folder, source.name, unit.text)
        part, needs = folder / "part.o", folder / "needs"
        done = process.attempt([*self._command_of(unit), "-MD", "-MF", str(needs), "-c", str(source), "-o", str(part)])
        if done.returncode:
            raise Failed(unit, _first_error(unit, done), done.stderr)
        files = needs.read_text().replace("\\\n", " ").partition(":")[2].split()
        # nvcc tells the name in the text's `#line` as well, which is the file that somebody edits.
        own = (str(source), f"/{unit.path}")
        inputs = {name: _digest(name) for name in files if not name.startswith(self._stable) and not name.endswith(own)}
        tree.write(self._work, f"{key}.json", json.dumps(inputs))
        part.replace(made)
        for file in (source, needs):
            file.unlink()
        folder.rmdir()
        return made


def for_nvcc(flags: Sequence[str]) -> list[str]:
    """The flags of the C++ compiler in nvcc's words, which passes on those that it does not know itself."""
    found: list[str] = []
    for n, word in enumerate(flags):
        own = word in ("-w", "-I") or word.startswith(("-D", "-std=")) or (n > 0 and flags[n - 1] == "-I")
        if word.startswith("-isystem"):
            found += ["-isystem", word.removeprefix("-isystem")]
        elif not word.startswith("-O"):
            found.append(word if own else f"-Xcompiler={word}")
    return found


def _digest(name: str) -> str:
    return digest(Path(name).read_bytes())


def _first_error(unit: Unit, done: subprocess.CompletedProcess[str]) -> str:
    """The compiler's first error of the text; raises where none is told, such as of a compiler that was killed."""
    if process.DISK_FULL in done.stderr:
        raise ForkError("the disk is full: free some space and try again")
    said = NVCC.sub(r"\1:\2: error:", done.stderr)
    error = next((line for line in said.splitlines() if re.search(r":\d+: .*\berror:", line)), None)
    if error is None:
        raise ForkError(f"the compiler stopped at {unit.named}, and not by an error in it: {process.reason(done)}")
    return error
