"""Compiles the stack's sources and the generated ones into the fork's libraries, with CMake and Ninja."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fork import process
from fork.checkout.changed import SOURCES
from fork.digest import digest
from fork.engine import cache, device, sanitizers, toolchain, tree
from fork.engine.base import Base
from fork.engine.search import Replaced
from fork.engine.toolchain import Toolkit
from fork.errors import ForkError

HERE = Path(__file__).parent

MISSED = re.compile(r"was not declared in|has not been declared|is not a member of|undeclared identifier")
REMEDY = "; of PyTorch's file only this fragment is compiled: put your function into a new file, with what it calls"
# at::sigmoid without its header, as GCC and as clang say it.
OPERATOR = re.compile(r"['‘](\w+)['’] is not a member of ['‘]at['’]|no member named '(\w+)' in namespace 'at'")
# Where a linker found what refers to a name: in which of an object's many sections.
SECTION = re.compile(r":\(\.[^()]*\)(?=: undefined reference)")
MISSING = re.compile(r"undefined reference to .at::native::(\w+)")
# The line of the source that a compiler shows below an error, and the line that points into it.
QUOTED = re.compile(r" +\d* \| ")
ERROR = re.compile(rf"\berror\b.*:|undefined reference|CMake Error|{process.DISK_FULL}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be compiled: the stack's C++ files and headers by upstream path, generated code, woven headers.

    `named` says by which name an error tells a file, where it is not the file that the compiler read. `fragments` are
    the sources that are compiled without the rest of their file. `replaced` are PyTorch's own, compiled already.
    """

    base: Base
    sources: Mapping[str, Path]
    generated: Path
    headers: Path
    work: Path
    toolkit: Toolkit | None
    store: Path  # what ccache keeps for all builds
    sanitize: Sequence[str] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    fragments: frozenset[str] = frozenset()
    replaced: Replaced = Replaced()
    behind: Sequence[Path] = ()  # where headers lie that the base lacks

    @property
    def operators(self) -> bool:
        """Whether the stack adds native functions, for which sources were generated."""
        return (self.generated / "aten").is_dir()


def compile_fork(job: Job) -> dict[str, Path]:
    """Builds what is out of date; returns the libraries by their path in the site folder."""
    _forget_what_ninja_would_keep(job)
    job = _at_one_place(job)
    inputs = job.work / "inputs.cmake"
    given = _inputs(job)
    settings = "".join(f"set({name} [=[{';'.join(map(str, values))}]=])\n" for name, values in given.items())
    configure = [toolchain.which("cmake"), "-S", str(HERE / "cmake"), "-B", str(job.work), "-G", "Ninja"]
    configure += [f"-DCMAKE_CXX_COMPILER={toolchain.cxx()}"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={toolchain.which('ninja')}"]
    configure += cache.launchers()
    if job.toolkit:
        configure += [f"-DCMAKE_CUDA_COMPILER={job.toolkit.nvcc}"]
    variables = cache.variables(job.work, job.store)
    # Written when CMake has succeeded, so that one that failed or was killed runs again.
    done = job.work / "configured"
    compilers = "\n".join([*configure, *toolchain.settings(), ""])
    wanted = compilers + settings
    if not done.is_file() or done.read_text() != wanted or not (job.work / "build.ninja").is_file():
        if not done.is_file() or not done.read_text().startswith(compilers):
            # It would keep the compilers of before, and their flags.
            (job.work / "CMakeCache.txt").unlink(missing_ok=True)
        done.unlink(missing_ok=True)
        inputs.write_text(settings)
        _run(configure, job.work / "configure.log", variables=variables)
        done.write_text(wanted)
    (job.work / cache.LOG).unlink(missing_ok=True)
    ninja = [toolchain.which("ninja"), "-C", str(job.work)]
    _run(ninja, job.work / "compile.log", job.named, job.fragments, variables, job.replaced.kernels)
    suffix = job.base.probe.suffix
    libraries = {"torch/lib/libtorch.so": job.work / "libtorch.so", f"torch/_C{suffix}": job.work / f"_C{suffix}"}
    if given.get("FORK_CUDA_SOURCES"):
        libraries["torch/lib/libtorch_fork_cuda.so"] = job.work / "libtorch_fork_cuda.so"
    return libraries


def _forget_what_ninja_would_keep(job: Job) -> None:
    """Removes what was compiled of a file that has changed and is not newer: Ninja goes by the time alone.

    The clock was set back, or an older file was put in its place with its time.
    """
    files = {path: str(file) for path, file in job.sources.items()}
    files |= {str(f): str(f) for top in (job.generated, job.headers) for f in top.rglob("*") if f.is_file()}
    now = {name: digest(Path(file).read_bytes()) for name, file in files.items()}
    now[""] = digest(job.base.record_text.encode())
    memory, log = job.work / "inputs.json", job.work / ".ninja_log"
    before = json.loads(memory.read_text()) if memory.is_file() else {}
    changed = {name for name in now if before.get(name) not in (None, now[name])}
    ended = log.stat().st_mtime if log.is_file() else 0.0
    if "" in changed or any(Path(files[name]).stat().st_mtime <= ended for name in changed):
        shutil.rmtree(job.work)
    tree.write(job.work, memory.name, json.dumps(now))


def _at_one_place(job: Job) -> Job:
    """The same job with its sources by their upstream path below `work`, so that every state compiles them alike."""
    sources = {path: _link(job, f"stack/{path}", file) for path, file in job.sources.items()}
    # ccache tells an error by the place to which the link leads.
    edited = {str(link): str(job.sources[path]) for path, link in sources.items()}
    named = dict(job.named) | {link: job.named.get(file, file) for link, file in edited.items()}
    fragments = frozenset(str(link) for path, link in sources.items() if str(job.sources[path]) in job.fragments)
    return replace(job, sources=sources, named=named, fragments=fragments)


def _link(job: Job, name: str, target: Path) -> Path:
    """A symbolic link below `work`, where ccache sees a path that is the same for all builds."""
    link = job.work / "links" / name
    if not link.is_symlink() or link.readlink() != target:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return link


def _unit(job: Job, name: str, files: Iterable[Path]) -> list[Path]:
    """One source that includes generated ones of a subject: they are small and include nearly the same headers."""
    text = "".join(f'#include "{os.path.relpath(file, job.work / "units")}"\n' for file in files)
    unit = job.work / "units" / f"{name}.cpp"
    if text and (not unit.is_file() or unit.read_text() != text):
        tree.write(unit.parent, unit.name, text)
    return [unit] if text else []


def _inputs(job: Job) -> dict[str, Iterable[object]]:
    cpp = {path: file for path, file in job.sources.items() if path.endswith(SOURCES)}
    kernels = [file for path, file in cpp.items() if path.startswith("aten/src/ATen/native/cpu/")]
    generated: dict[str, list[Path]] = generated_sources(job) if job.operators else defaultdict(list)
    capabilities = toolchain.instruction_sets(job.base.torch, platform.machine())
    glue = _link(job, "glue", HERE / "glue")
    replaced = [*job.replaced.objects, *job.replaced.python]
    bindings = [glue / "python_symbols.cpp"] if job.operators else []
    inputs: dict[str, Iterable[object]] = {
        "BASE_TORCH": [_link(job, "torch", job.base.torch)],
        # One OpenMP runtime in the process, the base's, so that all kernels share its threads.
        "BASE_LIBRARIES": [
            *(job.base.torch / "lib" / name for name in ("libtorch_cpu.so", "libc10.so")),
            *((job.base.torch / "lib").glob("libgomp*.so*")),
            *((job.base.site / "torch.libs").glob("libgomp*.so*")),
        ],
        "FORK_INCLUDES": [
            *job.replaced.headers,
            job.headers,
            _operators_only(job),
            job.generated / "merged",
            job.generated / "autograd",
        ],
        "FORK_BEHIND": job.behind,
        "FORK_DEFINITIONS": [*_definitions(capabilities), *job.base.probe.definitions],
        "FORK_CAPABILITIES": capabilities,
        **{f"FORK_FLAGS_{name}": flags for name, flags in capabilities.items()},
        "FORK_SANITIZERS": sanitizers.flags(job.sanitize),
        "FORK_KERNELS": kernels,
        "FORK_GLUE_FOLDER": [glue],
        "FORK_GLUE": [glue / f"{name}_symbols.cpp" for name in _glue(job)],
        "FORK_OBJECTS": job.replaced.objects,
        "FORK_PYTHON_OBJECTS": job.replaced.python,
        "FORK_OBJECT_LIBRARIES": device.libraries(job.base) if replaced else [],
        "FORK_LAST": [glue / "quiet_start.cpp"] if replaced else [],
        "FORK_MODULE": [
            *(["FORK_OPERATORS"] if job.operators else []),
            *(["FORK_NODES"] if job.replaced.generated else []),
        ],
        "FORK_SOURCES": [file for file in cpp.values() if file not in kernels],
        "FORK_GENERATED": [
            *_unit(job, "autograd", generated["autograd"]),
            *_unit(job, "registration", generated["registration"]),
            *generated["alone"],
        ],
        "FORK_PARALLEL": [glue / "thread_sanitizer.cpp"] if "thread" in job.sanitize else [],
        "FORK_BINDINGS": _unit(job, "bindings", [*generated["python"], *bindings]),
        "PYTHON_INCLUDE": [job.base.probe.include],
        "PYTHON_SUFFIX": [job.base.probe.suffix],
    }
    if job.toolkit:
        cu = [file for path, file in job.sources.items() if path.endswith(".cu")]
        inputs["FORK_CUDA_SOURCES"] = [*cu, *generated["cuda"]]
        inputs["FORK_CUDA_ARCHITECTURES"] = job.toolkit.architectures
        inputs["BASE_CUDA_LIBRARIES"] = job.toolkit.libraries
        inputs["BASE_CUDA_INCLUDES"] = job.toolkit.includes
    return inputs


def _definitions(capabilities: Iterable[str]) -> list[str]:
    """What ATen's headers ask for each of these instruction sets; the names for Arm differ between releases."""
    names = [name for name in capabilities if name != "DEFAULT"]
    if any(name in toolchain.ARM for name in names):
        names = ["SVE", "SVE256", "ARM_BF16"]
    return [f"HAVE_{name}_CPU_DEFINITION" for name in names]


def generated_sources(job: Job) -> dict[str, list[Path]]:
    """The generated sources that register anything, by the unit that compiles them, in an order that compiles.

    Some define PyTorch's TORCH_ASSERT_ONLY_METHOD_OPERATORS, which forbids headers that others include, so those come
    last. Of torchgen's files of kernels a unit takes one that calls the helpers, whose helpers are the unit's.
    """
    aten, autograd = job.generated / "aten", _autograd(job)
    aten_kernels, derivatives = (
        [file for file in sorted(folder.glob("*Everything.cpp")) if "m.impl(" in file.read_text()]
        for folder in (aten, autograd)
    )
    # The variants that an entry asks for by `autogen`, made of the operator that it describes.
    variants = [file for file in sorted(aten.glob("CompositeViewCopyKernels*.cpp")) if "::call(" in file.read_text()]
    cuda = [file for file in aten_kernels if "CUDA" in file.name]
    cpu = [file for file in aten_kernels if file not in cuda]
    calling = [file for file in cpu if _calls_helpers(file)]
    kernels = [*calling[:1], *(file for file in cpu if file not in calling)]
    modules = re.findall(r'"_(\w+)"', (autograd / "python_modules.inc").read_text())
    registered = [aten / f"{name}.cpp" for name in ("RegisterSchema", "OperatorsEverything")]
    python = ("functionsEverything", "torch_functionsEverything", "return_types", *(f"{m}_functions" for m in modules))
    return {
        "autograd": [*_autocast_lists(job), autograd / "Functions.cpp", *derivatives],
        "registration": [*registered, *variants, *kernels],
        "alone": calling[1:],
        "python": [autograd / f"python_{name}.cpp" for name in python],
        "cuda": cuda,
    }


def _calls_helpers(file: Path) -> bool:
    """Whether a file of kernels calls the helpers that torchgen puts into it: those of structured operators do."""
    _, _, text = file.read_text().partition("#define FORK_HELPERS")
    helpers, _, rest = text.partition("#endif // FORK_HELPERS")
    names = set(re.findall(r"^\S.* (\w+)\(.*\{$", helpers, re.MULTILINE))
    return not names or any(re.search(rf"\b{name}\(", rest) for name in names)


def _autograd(job: Job) -> Path:
    return job.generated / "autograd/torch/csrc/autograd/generated"


def _glue(job: Job) -> list[str]:
    """The groups of symbols, hidden in the base's libraries, that this stack's code may call."""
    ours = "".join(file.read_text() for file in job.sources.values())
    uses = {
        "autograd": job.replaced.generated
        or job.operators
        and "unpack(" in (_autograd(job) / "VariableTypeEverything.cpp").read_text(),
        "functorch": any(path.startswith("aten/src/ATen/functorch/") for path in job.sources),
        "blas": "cpublas" in ours,
    }
    return [name for name, used in uses.items() if used]


def _autocast_lists(job: Job) -> list[Path]:
    """The source that registers what the stack adds to autocast's lists, which a header of the base holds."""
    lists = job.sources.get("aten/src/ATen/autocast_mode.h")
    if lists is None:
        return []
    _link(job, "operators/fork_autocast_lists.h", lists)
    return [job.work / "links/glue/autocast_lists.cpp"]


def _operators_only(job: Job) -> Path:
    """An include folder with ATen/ops alone: the other generated headers would hide the base's fuller ones."""
    return _link(job, "operators/ATen/ops", job.generated / "aten/ops").parents[1]


def _remedy(said: str, fragment: bool) -> str:
    """What to do about a name that the compiler misses; nothing where only the user knows."""
    if found := OPERATOR.search(said):
        header = f"#include <ATen/ops/{found[1] or found[2]}.h>"
        return f"; PyTorch has no such operator, or the file lacks its `{header}`"
    return REMEDY if fragment and MISSED.search(said) else ""


def _run(
    command: list[str],
    log: Path,
    named: Mapping[str, str] | None = None,
    fragments: frozenset[str] = frozenset(),
    variables: Mapping[str, str] = os.environ,
    kernels: Mapping[str, str] | None = None,
) -> None:
    """Runs a build tool with all its words in a log; with `named`, its progress and errors are on the terminal too.

    `kernels` has the line of the list of operators that names a kernel, by the kernel.
    """
    environment = {**variables, "NINJA_STATUS": "         [%f/%t %es] "}
    errors: list[str] = []
    last, quoting = "no message", False
    quoted: list[str] = []  # the lines below the first error, which is told at the end
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            preexec_fn=process.die_with_parent,
        ) as tool,
    ):
        assert tool.stdout is not None
        try:
            for line in tool.stdout:
                file.write(line)
                last = line.strip() or last
                if named is not None and line.startswith("         ["):
                    print(line.replace(str(log.parent) + "/", "").rstrip(), flush=True)
                elif QUOTED.match(line):
                    if quoting and errors[1:]:
                        print(f"         {line.rstrip()}", flush=True)
                    elif quoting:
                        quoted.append(f"         {line.rstrip()}")
                elif ERROR.search(line):
                    place, colon, said = SECTION.sub("", line.strip()).partition(":")
                    said += _remedy(said, place in fragments)
                    error = (named or {}).get(place, place) + colon + said
                    missed = MISSING.search(said)
                    if missed and kernels and missed[1] in kernels:
                        error = f"{kernels[missed[1]]} names at::native::{missed[1]}, which no source defines"
                    quoting = named is not None and error not in errors  # a kernel has it once per instruction set
                    if quoting and errors:
                        print(f"error    {error}", flush=True)
                    if error not in errors:
                        errors.append(error)
                else:
                    quoting = False
                if line.startswith("FAILED: "):
                    # Ninja would wait for what compiles beside it. It writes all that the failed one said at once.
                    threading.Timer(1, tool.terminate).start()
        except BaseException:
            tool.terminate()
            raise
    if tool.returncode != 0:
        full = next((line for line in errors if process.DISK_FULL in line), None)
        if full:
            own = re.search(rf"(/[^:]*): {process.DISK_FULL}", full)  # A compiler's temporary file lies elsewhere
            raise ForkError(f"the disk is full at {own[1] if own else log.parent}: free some space and try again")
        raise ForkError("\n".join([f"compiling failed: {errors[0] if errors else last} (all of it: {log})", *quoted]))


if sys.byteorder != "little":  # ATen's kernels themselves build on others; nobody has tried the fork there
    raise ForkError("a fork is built on little-endian machines only")
