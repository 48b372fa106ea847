"""Compiles what a job has, and links it with PyTorch's own changed sources into the fork's libraries."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from fork import process
from fork.engine.binary.libraries import Libraries
from fork.engine.binary.objects import Object
from fork.engine.compile import device, sanitizers, toolchain
from fork.engine.compile.compiler import LOG, Failed, Unit
from fork.engine.compile.diagnostics import Said, errors
from fork.engine.link.leading import WRITABLE, led
from fork.engine.link.units_of_the_stack import Job, units
from fork.errors import ForkError

TORCH = "torch/lib/libtorch.so"


def link_fork(job: Job) -> dict[str, Path]:
    """The new libraries by their path in the site folder."""
    of_torch, of_module = units(job)
    # The bindings take longest.
    objects = _compile(job, [*of_module, *of_torch])
    base, work, replaced = job.compiler.base, job.work, job.replaced
    parts = (replaced.objects, of_torch), (replaced.python, of_module)
    groups = [[*front, *(Object(objects[unit]) for unit in own)] for front, own in parts]
    leading = [*led(replaced, replaced.libraries or Libraries(base, work), groups)]
    objects = _compile(job, [unit for _, more in leading for unit in more])
    in_torch, in_module = ([*map(str, files), *(str(objects[unit]) for unit in more)] for files, more in leading)
    gpu = [str(library) for library in job.compiler.toolkit.libraries] if job.compiler.toolkit else []
    behind = [*_libraries(job), *(device.libraries(base) if replaced.objects or replaced.python else gpu)]
    wrapping = ["-Wl,--wrap=GOMP_parallel"] if "thread" in job.sanitize else []
    torch = work / "libtorch.so"
    # The base's libtorch.so is an empty stub that every program links; the fork's holds the operators.
    words = [*in_torch, "-Wl,--no-as-needed", *behind, *wrapping]
    _link(job, torch, [*words, "-Wl,--no-undefined", "-Wl,-soname,libtorch.so"], "$ORIGIN:$ORIGIN/../../torch.libs")
    # What changed sources of the bindings define is looked up here before libtorch_python.so.
    module = work / f"_C{base.probe.suffix}"
    python = [str(torch), str(base.torch / "lib/libtorch_python.so"), *behind]
    words = [*in_module, "-Wl,--no-as-needed", *python]
    _link(job, module, words, "$ORIGIN:$ORIGIN/lib:$ORIGIN/../torch.libs")
    job.compiler.forget()
    return {TORCH: torch, f"torch/{module.name}": module}


def _compile(job: Job, todo: Sequence[Unit]) -> dict[Unit, Path]:
    """The object of each unit; the first errors end it."""
    made = job.compiler.compile_all(todo, patient=False)
    failed = [said for one in made.values() if isinstance(one, Failed) for said in one.said]
    if failed:
        raise error(job.work, list(dict.fromkeys(failed)))
    return {unit: file for unit, file in made.items() if isinstance(file, Path)}


def error(work: Path, said: Sequence[Said]) -> ForkError:
    """Tells all errors but the first, which is the one that is raised."""
    for one in said[1:]:
        print("\n".join([f"error    {one.error}", *(f"         {line}" for line in one.quoted)]), flush=True)
    first = f"compiling failed: {said[0].error} (all of it: {work / LOG})"
    return ForkError("\n".join([first, *(f"         {line}" for line in said[0].quoted)]))


def _libraries(job: Job) -> list[str]:
    """The base's, by their paths; of OpenMP one runtime in the process, the base's, so that kernels share threads."""
    base = job.compiler.base
    own = [base.torch / "lib" / name for name in ("libtorch_cpu.so", "libc10.so")]
    openmp = [*(base.torch / "lib").glob("libgomp*.so*"), *(base.site / "torch.libs").glob("libgomp*.so*")]
    return [str(file) for file in (*own, *openmp)]


def _link(job: Job, made: Path, words: Sequence[str], search: str) -> None:
    """Links one library; `search` is where it looks for others."""
    wished = (word for name in ("CXXFLAGS", "LDFLAGS") for word in shlex.split(os.environ.get(name, "")))
    own = [f"-Wl,-rpath,{search}", *sanitizers.flags(job.sanitize), *wished]
    # A compiler that links libstdc++.a must not make the process use that copy beside the base's own libstdc++.so.
    how = ["-shared", "-fPIC", "-Wl,--exclude-libs,ALL", *own, WRITABLE]
    command = [str(toolchain.cxx()), *how, "-o", str(made), *words]
    done = process.attempt(command, cwd=job.work)
    if done.returncode == 0:
        return
    with (job.work / LOG).open("a") as log:
        log.write(f"{shlex.join(command)}\n{done.stderr}\n")
    said = errors(done.stderr, job.compiler.names, job.work)
    raise error(job.work, said or [Said(process.reason(done))])
