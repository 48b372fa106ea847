"""Builds a fork: weave, generate, compile, install, each step named with its time."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from fork import process
from fork.checkout.changed import HEADERS, SOURCES
from fork.clock import Clock
from fork.engine.compile import cache, sanitizers, submodules, toolchain
from fork.engine.compile.compiler import LOG, Compiler
from fork.engine.compile.device import Device
from fork.engine.compile.diagnostics import Names
from fork.engine.compile.flags import Flags
from fork.engine.compile.toolchain import Toolkit
from fork.engine.fork import Fork, environment
from fork.engine.generate.nodes import HEADER, structs
from fork.engine.generate.rejection import rejection
from fork.engine.link.link import link_fork
from fork.engine.link.own import AUTOCAST, Job, units
from fork.engine.replace.replace import added_entries, changed, generated, replace_sources
from fork.engine.replace.search import Replaced
from fork.engine.wheel import disk
from fork.engine.wheel.base import WHEEL_FOLDERS, Base
from fork.engine.wheel.woven import write_woven
from fork.errors import ForkError, NothingToBuild, told_plainly
from fork.lock import alone
from fork.refusals import Refusal
from fork.series import Commit, Series
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave.cpp import DEFINE
from fork.weave.cpp_inverse import has_code, unread
from fork.weave.kinds import Fragment, New, Rewrite

# Scripts that run with the base's Python.
GENERATE, PROOF = (Path(__file__).resolve().parent / name for name in ("generate/generate.py", "link/proof.py"))

# Where the sources of PyTorch's libraries lie; a C++ test of a stack is not one of them.
LIBRARIES = ("aten/", "c10/", "torch/")

# The suites read in it by how much the stack's decompositions may differ from its kernels.
TOLERANCES = "test/test_decomp.py"


def compiled(series: Series, state: Mapping[str, Path]) -> dict[str, Path]:
    """The files of a state that are compiled beside PyTorch's: headers, and sources that hold code."""
    return {
        path: file
        for path, file in series.of_kind(state, New, Fragment).items()
        if path.startswith(LIBRARIES) and path.endswith((*SOURCES, ".cu", ".h"))
        if path.endswith(".h") or has_code(file.read_text())
    }


def inside_functions(series: Series, state: Mapping[str, Path]) -> list[str]:
    """The fragments that add to a function of PyTorch's, whose machine code alone a wheel has."""
    return [
        path
        for path, file in state.items()
        if isinstance(kind := series.kind(path), Fragment)
        if path.startswith(LIBRARIES) and path.endswith((".cpp", ".cu"))
        for name, piece in unread(file.read_text())
        if has_code(piece) and not any(place.replaces for place in kind.places[name])
    ]


def refuse_unbuildable(series: Series, commit: Commit) -> None:
    """Raises where a state has nothing for a wheel; needs no base."""
    state = series.state(commit)
    if not (series.of_kind(state, Rewrite) or any(path.startswith(f) for path in state for f, _ in WHEEL_FOLDERS)):
        raise NothingToBuild(f"{commit.name} changes nothing that a wheel of torch holds: there is nothing to build")
    for path, file in series.of_kind(state, Fragment).items():
        if path.endswith(HEADERS) and path != AUTOCAST and (found := DEFINE.search(file.read_text())):
            raise ForkError(Refusal.LIST_OF_A_STACK.of(path=path, name=found[1]))


def build(fork: Fork) -> Path:
    """Brings the fork up to date and returns its site folder; the last good one stays until then."""
    return _at_work(fork, _make)


def plan(fork: Fork) -> None:
    """Tells what a build would compile, and refuses what it would refuse before it compiles; installs nothing."""
    _at_work(fork, _plan)


def _at_work(fork: Fork, make: Callable[[Fork, Path], None]) -> Path:
    """The fork's site folder, when this has been done in a folder that does not outlast it."""
    refuse_unbuildable(fork.series, fork.commit)
    refuse_names(fork.home, fork.series.root, fork.base.site, GENERATE)
    advice, busy = "choose a writable folder with --build", f"another build of {fork.home.name} is running"
    with told_plainly(fork.home, advice), alone(fork.home / "lock", busy):
        if not fork.stale() and not _edited(fork):
            print(f"current  {fork.commit.name} on torch {fork.base.version} is up to date: {fork.site}", flush=True)
            return fork.site
        print(f"fork     {fork.commit.name} on torch {fork.base.version} ({fork.base.site})", flush=True)
        for left_over in fork.home.glob("stage-*"):
            shutil.rmtree(left_over)
        stage = fork.home / f"stage-{os.getpid()}"
        try:
            make(fork, stage)
        except Exception as error:
            if not fork.base.is_current():
                raise _replaced(fork.base) from error
            raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return fork.site


def refuse_names(*paths: Path) -> None:
    for path in map(str, paths):
        if wrong := re.search(r'["\\\n]', path):
            raise ForkError(f"a build takes no path with {wrong[0]!r}, as in {path!r}: give the folder another name")


def _replaced(base: Base) -> ForkError:
    return ForkError(f"torch {base.version} in {base.site} was replaced during the build: run the command again")


def _edited(fork: Fork) -> bool:
    """Whether somebody has edited the fork's files in place; says which one and where it stays."""
    fork.base.check(disk.edited_base(fork.base))
    edited = sorted(disk.changed_after(fork.site, (fork.site / "fork.json").stat().st_mtime))
    if edited:
        more = f" and {len(edited) - 1} more" if edited[1:] else ""
        kept = f"and the edited one stays until the build after this: {fork.site.resolve()}"
        print(f"edited   {edited[0]}{more} of the fork: it is built anew, {kept}", flush=True)
    return bool(edited)


@dataclass(frozen=True)
class Begun:
    """A build whose files are woven: which of them, whether anything is compiled, and the toolkit for the GPU, with
    which it is or why there is none."""

    state: dict[str, Path]
    compiles: bool
    toolkit: Toolkit | None = None
    chosen: str = ""


def _begin(fork: Fork, stage: Path, clock: Clock) -> Begun:
    """Copies the base and weaves."""
    state = fork.series.state(fork.commit)
    toolkit: Toolkit | None = None
    chosen = ""
    fork.base.check(fork.base.resized())
    fork.base.remember(fork.home / "work")
    sources = [path for path in compiled(fork.series, state) if not path.endswith(".h")]
    compiles = bool(NATIVE_FUNCTIONS in state or sources or changed(fork.series, state))
    if compiles:
        toolchain.check_tools(fork.base)
        toolkit, chosen = toolchain.choose(fork.base, fork.cuda)
        if fork.cuda == "on" or (fork.base.cuda and _has_device_code(fork.series, state)):
            print(f"cuda     {chosen}", flush=True)
    disk.copy(fork.base, stage, fork.home / "work/base")
    clock.step("copy", f"{fork.base.site}/torch, as links")

    woven = write_woven(fork.base, fork.series, state, stage, fork.home / "work")
    clock.step("weave", f"{len(woven)} files")
    for path in inside_functions(fork.series, state):
        print(f"left out {path}: it goes into a function of PyTorch's, and a wheel has no source of that", flush=True)
    return Begun(state, compiles, toolkit, chosen)


def _plan(fork: Fork, stage: Path) -> None:
    clock = Clock()
    for path in fork.series.state(fork.commit):
        print(f"{'new' if isinstance(fork.series.kind(path), New) else 'changed':8} {path}", flush=True)
    begun = _begin(fork, stage, clock)
    if begun.compiles:
        _tell(_job(fork, stage, begun, clock, planned=True), begun.chosen)
    print(f"stays    all else, as torch {fork.base.version} has it", flush=True)
    took = time.monotonic() - clock.start
    print(f"planned  {fork.commit.name} on torch {fork.base.version} in {took:.1f} s: nothing is compiled or installed")


def _tell(job: Job, chosen: str) -> None:
    """What a job would compile, and what nobody knows before it has."""
    for line in job.replaced.told:
        print(line)
    for path in job.sources:
        if path.endswith(".cu") and not job.toolkit:
            print(f"left out {path}: CUDA is {chosen}")
    own = units(job)
    todo = [unit for unit in (*own.torch, *own.archive, *own.module) if own.torch or own.archive]
    kept = {unit for unit in todo if job.compiler.kept(unit)}
    for unit in todo:
        took = "" if unit in kept else job.compiler.took([unit])
        print(f"{'kept' if unit in kept else 'compile':8} {unit.named} ({_origin(job, unit.path)}{took})")
    if todo and len(kept) < len(todo):
        print("later    ccache tells which of the stack's it has from another build")


def _origin(job: Job, path: str) -> str:
    if path in job.sources:
        return "what is added to it" if path in job.compiler.names.fragments else "new"
    return "generated for what is added" if path.startswith("generated/") else "the tool's own"


def _make(fork: Fork, stage: Path) -> None:
    clock, made_of = Clock(), fork.digest()
    begun, replaced = _begin(fork, stage, clock), Replaced()
    if begun.compiles:  # else Python changes alone, and the base's libraries stay
        job = _job(fork, stage, begun, clock)
        replaced = job.replaced
        _make_libraries(stage, job, clock)
    if not fork.base.is_current():
        raise _replaced(fork.base)
    if (tolerances := begun.state.get(TOLERANCES)) is not None:
        disk.write(stage, TOLERANCES, tolerances.read_bytes())
    made = {"digest": made_of, "commit": fork.commit.name, "base": fork.base.version, "of": fork.of}
    disk.write(stage, "fork.json", json.dumps(made))
    disk.date_last(stage / "fork.json", stage)
    _try_out(fork, stage, replaced)
    _publish(fork, stage)
    clock.step("install", f"{fork.site}")
    took = time.monotonic() - clock.start
    print(f"done     {fork.commit.name} on torch {fork.base.version} in {took:.1f} s", flush=True)


def _has_device_code(series: Series, state: Mapping[str, Path]) -> bool:
    """Whether a state has code that nvcc compiles, or kernels of its own for the GPU."""
    native = series.of_kind(state, New, Fragment).get(NATIVE_FUNCTIONS)
    return any(path.endswith((".cu", ".cuh")) for path in state) or bool(native and "CUDA" in native.read_text())


def _job(fork: Fork, stage: Path, begun: Begun, clock: Clock, planned: bool = False) -> Job:
    """Generates, and compiles what is PyTorch's own, which tells what else is needed; with `planned` it only tells."""
    state, work = begun.state, fork.home / "work"
    made = work / "generated"
    for log in (LOG, cache.LOG):
        (work / log).unlink(missing_ok=True)
    if native := _added(fork, state, NATIVE_FUNCTIONS):
        _generate(fork, stage, native, _added(fork, state, DERIVATIVES), made)
        disk.install_headers(stage, made)
        disk.install_stubs(stage, made)
        clock.step("generate", f"{sum(1 for _ in made.rglob('*.*'))} files by PyTorch's own generators")
    else:
        shutil.rmtree(made, ignore_errors=True)

    replaced = replace_sources(fork, stage, state, begun.toolkit, begun.chosen, planned)
    for line in () if planned else replaced.told:
        print(f"replaced {line}", flush=True)
    if replaced.told and not planned:
        clock.step("replace", f"{len(replaced.told)} sources of PyTorch")
    sources = compiled(fork.series, state)
    return Job(
        compiler=_compiler(fork, begun, replaced, sources),
        sources=sources,
        toolkit=begun.toolkit,
        sanitize=fork.sanitize,
        replaced=replaced,
    )


def _compiler(fork: Fork, begun: Begun, replaced: Replaced, sources: Mapping[str, Path]) -> Compiler:
    """The one for the stack's own, which reads the headers that the branch changes, and those that it adds."""
    base, work, checkout = fork.base, fork.home / "work", fork.series.checkout
    includes = [*replaced.headers, work / "headers", *generated(work)]
    if AUTOCAST in sources:
        disk.write(work / "operators", "fork_autocast_lists.h", sources[AUTOCAST].read_text())
    device = Device(base, begun.toolkit, begun.chosen)
    brought = device.includes()
    behind = submodules.behind(base, checkout, work, brought) if checkout else brought
    places = {path: str(fork.series.written_at(path) or file) for path, file in sources.items()}
    headers = {f"headers/{path.removeprefix('aten/src/')}": place for path, place in places.items()}
    fragments = frozenset(fork.series.of_kind(sources, Fragment))
    names = Names(places | headers, replaced.kernels, fragments)
    capabilities = toolchain.instruction_sets(base.torch, platform.machine())
    flags = Flags(base, work, capabilities, includes, behind, device)
    return Compiler(flags, fork.build / "ccache", names, sanitizers.flags(fork.sanitize))


def _make_libraries(stage: Path, job: Job, clock: Clock) -> None:
    """Compiles what is the stack's, and links all into the libraries of `stage`."""
    count = sum(not path.endswith(".h") for path in job.sources)
    if not (count or job.operators or job.replaced.objects or job.replaced.python):
        return  # what the wheel was built without was all, so its libraries stay
    for path, file in link_fork(job).items():
        disk.write(stage, path, file.read_bytes())
        (stage / path).chmod(0o755)
    own = f"{count} sources of the stack{', and the generated ones' if job.operators else ''}{cache.said(job.work)}"
    clock.step(*(("compile", own) if count or job.operators else ("link", "libtorch.so and torch._C")))


def _added(fork: Fork, state: dict[str, Path], path: str) -> Path | None:
    """A list with the entries that the state adds for operators that it adds."""
    file = state.get(path)
    return added_entries(fork, path, file) if file and isinstance(fork.series.kind(path), Rewrite) else file


def _served(fork: Fork, native: Path) -> Path:
    """The list of operators without what this base lacks."""
    kind = fork.series.kind(NATIVE_FUNCTIONS)
    if not isinstance(kind, Fragment) or not kind.newer:
        return native
    served = kind.served(native.read_text(), fork.base.read(NATIVE_FUNCTIONS) or "")
    lost = " and ".join(word for word in kind.newer if word not in served)
    print(f"note     torch {fork.base.version} lacks {lost}: {NATIVE_FUNCTIONS} goes without", flush=True)
    disk.write(fork.home / "work/served", native.name, served)
    return fork.home / "work/served" / native.name


def _generate(fork: Fork, stage: Path, native: Path, derivatives: Path | None, generated: Path) -> None:
    generated.mkdir(parents=True, exist_ok=True)
    command = [fork.base.python, GENERATE, _served(fork, native), derivatives or "", generated]
    environment = os.environ | {"PYTHONPATH": str(stage), "TORCH_FORK": str(stage)}
    done = process.attempt(command, env=environment)
    if done.returncode:
        log = fork.home / "work/generate.log"
        log.write_text(done.stdout + done.stderr)
        if process.DISK_FULL in done.stderr:
            raise ForkError(f"the disk is full at {generated}: free some space and try again")
        raise ForkError(f"PyTorch's generators reject {rejection(done.stderr, native, derivatives)} (all of it: {log})")
    own, theirs = (
        structs(text) for text in ((generated / "autograd" / HEADER).read_text(), fork.base.read(HEADER) or "")
    )
    if taken := sorted(own.keys() & theirs.keys()):
        raise ForkError(Refusal.KNOWN_NODE.of(path=NATIVE_FUNCTIONS, node=taken[0]))
    for entry in yaml.safe_load(native.read_text()):
        if "method" in entry.get("variants", ""):
            name = entry["func"].partition("(")[0]
            print(f"note     no Tensor.{name}: the class Tensor of a wheel takes no new method", flush=True)


def _try_out(fork: Fork, stage: Path, replaced: Replaced) -> None:
    """Imports the new fork before it replaces the last good one, and looks whether what it replaces is replaced."""
    own = ["libtorch.so", "_C" + fork.base.probe.suffix]
    bindings = sorted({*fork.base.probe.bindings} - replaced.gone) if replaced.python else []
    found = {"slots": replaced.slots, "jumps": replaced.jumps}
    asked = {"stage": str(stage), "own": own, "bindings": bindings, **found}
    disk.write(fork.home / "work", "slots.json", json.dumps(asked))
    failed = "the new fork does not import, so the last good one stays"
    variables = environment(stage, fork.base.python, fork.sanitize)
    if replaced.slots:
        variables["LD_BIND_NOW"] = "1"
    program, told = str(PROOF), str(fork.home / "work/slots.json")
    # As a module would: its own folder is not to be searched for what torch imports.
    code = f"import runpy, sys; sys.argv[1:] = [{told!r}]; runpy.run_path({program!r}, run_name='__main__')"
    command: list[str | Path] = [fork.base.python, "-X", "faulthandler", "-c", code]
    done = process.attempt(command, env=variables, cwd="/")
    if done.returncode:
        raise ForkError(f"{failed}: {process.reason(done)}{process.place(done, stage)}")


def _publish(fork: Fork, stage: Path) -> None:
    """Makes the stage the current fork in one rename; the one before it stays for who still runs it."""
    previous = fork.site.resolve() if fork.site.is_symlink() else None
    final = fork.home / f"site-{time.time_ns()}"
    stage.rename(final)
    link = fork.home / "current.new"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(fork.site)
    for old in fork.home.glob("site-*"):
        if old not in (final, previous):
            shutil.rmtree(old, ignore_errors=True)
