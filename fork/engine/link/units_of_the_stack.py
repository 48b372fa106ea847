"""What a stack adds that is compiled: its own sources, those generated for it, and the glue that they need."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fork import process
from fork.buildable import AUTOCAST
from fork.engine.compile import toolchain
from fork.engine.compile.compiler import Compiler, Unit
from fork.engine.compile.flags import HIDING
from fork.engine.replace.search import Replacements
from fork.weave.file_kinds import File

# Of Python's class of tensors; empty where the stack adds none.
METHODS = "python_variable_methods"


@dataclass(frozen=True)
class Job:
    """What is to be compiled: the stack's C++ files and headers by upstream path, and generated code, in `work`.

    `replaced` are PyTorch's own, compiled already.
    """

    compiler: Compiler
    sources: Mapping[str, File]
    sanitize: Sequence[str] = ()
    replaced: Replacements = Replacements()

    @property
    def work(self) -> Path:
        return self.compiler.work

    @property
    def generated(self) -> Path:
        return self.work / "generated"

    @property
    def operators(self) -> bool:
        """Whether the stack adds native functions, for which sources were generated."""
        return (self.generated / "aten").is_dir()


@dataclass(frozen=True)
class Units:
    """The units of each library: libtorch.so, and torch._C."""

    torch: list[Unit] = field(default_factory=list)
    module: list[Unit] = field(default_factory=list)


def units(job: Job) -> Units:
    """All that has to be compiled, of each library what takes longest first."""
    made: dict[str, list[Path]] = generated_sources(job) if job.operators else defaultdict(list)
    bindings = _including(job, "bindings", made["python"])
    nodes = " ".join(f"NODES({name})" for name in job.replaced.classes)
    own_rows = [file.stem + "_own" for file in made["python"] if file.stem == METHODS]
    rows = " ".join(f"ROWS({name})" for name in (*job.replaced.rows, *own_rows))
    module = ["-DFORK_OPERATORS", f"-I{_autograd(job)}"] if job.operators else []
    module += [*([f"-DFORK_NODES={nodes}"] if nodes else []), *([f"-DFORK_ROWS={rows}"] if rows else [])]
    lists = "autocast_lists.cpp" if AUTOCAST in job.sources and job.operators else ""
    generated = [
        *_including(job, "autograd", made["autograd"], lists),
        *_including(job, "registration", made["registration"]),
        *(unit for file in made["alone"] for unit in _including(job, file.stem, [file])),
        *(unit for file in made["cuda"] if job.compiler.toolkit for unit in _including(job, file.stem, [file])),
    ]
    last = []
    if "thread" in job.sanitize:
        last.append(_glue("thread_sanitizer"))
    if "clang" in process.run([toolchain.cxx(), "--version"], "the compiler does not run"):
        last.append(_glue("clang_openmp"))
    if job.replaced.definitions:
        last.append(_glue("schemas", more=job.replaced.definitions))
    if job.replaced:
        last.append(_glue("quiet_start"))  # behind all that registers
    own = [
        unit
        for path, file in job.sources.items()
        if path.endswith(job.compiler.kinds)
        for unit in job.compiler.units(path, file.read_text(), own=True)
    ]
    return Units(
        torch=[*generated, *own, *last],
        module=[*bindings, _glue("module", HIDING, *module)],
    )


def _glue(name: str, *words: str, more: str = "") -> Unit:
    return Unit(f"glue/{name}.cpp", (toolchain.GLUE / f"{name}.cpp").read_text() + more, own=True, words=words)


def _including(job: Job, name: str, files: Iterable[Path], glue: str = "") -> list[Unit]:
    """One unit of generated sources of a subject: they are small and include nearly the same headers."""
    text = (toolchain.GLUE / glue).read_text() if glue else ""
    text += "".join(f'#include "{file.relative_to(job.work)}"\n' for file in files)
    hiding = [HIDING] if name == "bindings" else []
    return [Unit(f"generated/{name}.cpp", text, own=True, words=(f"-I{job.work}", *hiding))] if text else []


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
    python = ["functionsEverything", "torch_functionsEverything", "return_types", *(f"{m}_functions" for m in modules)]
    if (autograd / f"{METHODS}.cpp").read_text():
        python.append(METHODS.removeprefix("python_"))
    return {
        "autograd": [autograd / "Functions.cpp", *derivatives],
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
