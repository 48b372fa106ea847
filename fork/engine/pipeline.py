"""Builds a fork: weave, generate, compile, install, each step named with its time."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from fork import process
from fork.buildable import AUTOCAST, refuse_names
from fork.checkout.release_tree import Tree
from fork.checkout.whole_branch import Branch
from fork.clock import Clock
from fork.engine.build import Build, environment
from fork.engine.compile import cache, toolchain
from fork.engine.compile.compiler import LOG, Compiler
from fork.engine.compile.device import Device
from fork.engine.compile.diagnostics import NamesForErrors
from fork.engine.compile.flags import Flags
from fork.engine.generate import generators
from fork.engine.generate.generated import NODES, STRUCT
from fork.engine.generate.joined import join
from fork.engine.link.link import link_fork
from fork.engine.link.units_of_the_stack import Job, units
from fork.engine.replace.replace import added_entries, replace_sources
from fork.engine.replace.search import Replacements
from fork.engine.wheel import disk
from fork.engine.wheel.woven import write_woven
from fork.errors import ForkError, told_plainly
from fork.lock import alone
from fork.refusals import Refusal
from fork.series import Series
from fork.tree import HEADERS, Kind, kind_of
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave.cpp_inverse import has_code, pieces_inside_functions
from fork.weave.file_kinds import File, Fragment, New, Whole, edited

# Scripts that run with the base's Python.
GENERATE, PROOF = (Path(__file__).resolve().parent / name for name in ("generate/generate.py", "link/proof.py"))

# The suites read in it by how much the stack's decompositions may differ from its kernels.
TOLERANCES = "test/test_decomp.py"


def inside_functions(series: Series, state: Mapping[str, File]) -> list[str]:
    """The fragments that add to a function of PyTorch's, whose machine code alone a wheel has."""
    return [
        path
        for path, file in state.items()
        if isinstance(kind := series.kind(path), Fragment)
        if kind_of(path) in (Kind.SOURCE, Kind.KERNEL)
        for name, piece in pieces_inside_functions(file.read_text())
        if has_code(piece) and not any(place.replaces for place in kind.places[name])
    ]


def make(build: Build, planned: bool = False) -> Path:
    """Brings the fork up to date and returns its site folder; the last good one stays until then.

    With `planned`, it tells what it would compile, and refuses what it would refuse before that; it installs nothing.
    """
    refuse_names(build.base.site)
    advice, busy = "choose a writable folder with --build", f"another build of {build.home.name} is running"
    with told_plainly(build.home, advice), alone(build.home / "lock", busy):
        disk.check(build.base, build.state)
        if not build.stale() and not _edited(build):
            print(f"current  {build.commit.name} on torch {build.base.version} is up to date: {build.site}", flush=True)
            return build.site
        print(f"fork     {build.commit.name} on torch {build.base.version} ({build.base.site})", flush=True)
        for left_over in build.home.glob("stage-*"):
            shutil.rmtree(left_over)
        stage = build.home / f"stage-{os.getpid()}"
        try:
            (_plan if planned else _make_fork)(build, stage)
        except Exception:
            build.base.refuse_replaced()
            raise
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return build.site


def _edited(build: Build) -> bool:
    """Whether somebody has edited the fork's files in place; says which one and where it stays."""
    edited = sorted(disk.changed_after(build.site, (build.site / "fork.json").stat().st_mtime))
    if edited:
        more = f" and {len(edited) - 1} more" if edited[1:] else ""
        kept = f"and the edited one stays until the build after this: {build.site.resolve()}"
        print(f"edited   {edited[0]}{more} of the fork: it is built anew, {kept}", flush=True)
    return bool(edited)


def _begin(build: Build) -> tuple[Flags | None, Tree | None]:
    """The flags of compilers, if anything is compiled, and the release's tree, if that is for a branch."""
    base, series, work = build.base, build.series, build.home / "work"
    disk.remember(base, work)
    changed = series.changed(build.commit) if isinstance(series, Branch) else {}
    sources = [path for path in build.compiled if not path.endswith(HEADERS)]
    if not (NATIVE_FUNCTIONS in build.state or sources or changed):
        return None, None
    toolchain.check_tools(base)
    toolkit, chosen = toolchain.choose(base, build.cuda)
    if build.cuda == "on" or (base.cuda and _has_device_code(series, build.state)):
        print(f"cuda     {chosen}", flush=True)
    tree = None
    if isinstance(series, Branch):
        device, moved = base.cuda is not None and build.cuda != "off", series.moved(build.commit)
        tree = Tree.of(series.checkout, series.since, base.version, base.probe.commit, device, moved)
    return Flags.of_build(Device(base, toolkit, chosen), work, build.folder / "ccache", build.sanitize, tree), tree


def _weave(build: Build, stage: Path) -> int:
    """Weaves into the stage, and says what has no place there; returns how many files were woven."""
    woven = write_woven(build.base, build.series, build.commit, stage, build.home / "work")
    if isinstance(build.series, Branch):
        for line in build.series.left(build.commit):
            print(f"left out {line}", flush=True)
        for old, new in build.series.moved(build.commit).items():
            print(f"renamed  {old}: {new} takes its place", flush=True)
    for path in inside_functions(build.series, build.state):
        print(f"left out {path}: it goes into a function of PyTorch's, and a wheel has no source of that", flush=True)
    return len(woven)


def _plan(build: Build, stage: Path) -> None:
    clock = Clock()
    for path in build.state:
        print(f"{'new' if isinstance(build.series.kind(path), New) else 'changed':8} {path}", flush=True)
    for path in sorted(build.series.gone(build.commit)):
        print(f"removed  {path}", flush=True)
    flags, tree = _begin(build)
    shutil.copytree(build.base.site / "torchgen", stage / "torchgen", ignore=shutil.ignore_patterns("__pycache__"))
    _weave(build, stage)
    if flags:
        _print_plan(_prepare(build, stage, flags, tree, clock, planned=True))
    print(f"stays    all else, as torch {build.base.version} has it", flush=True)
    took = time.monotonic() - clock.start
    print(
        f"planned  {build.commit.name} on torch {build.base.version} in {took:.1f} s: nothing is compiled or installed"
    )


def _print_plan(job: Job) -> None:
    """What a job would compile, and what nobody knows before it has."""
    kernels = [path for path in job.sources if path.endswith(".cu") and not job.compiler.toolkit]
    left = [f"left out {path}: CUDA is {job.compiler.lacking}" for path in kernels]
    of_torch, of_module = units(job)
    todo = [*of_torch, *of_module] if of_torch else []
    own = [job.compiler.planned(unit.named, _origin(job, unit.path), [unit]) for unit in todo]
    for line in [*job.replaced.told, *left, *own]:
        print(line)
    if any(line.startswith("compile") for line in own):
        print("later    ccache tells which of the stack's it has from another build")


def _origin(job: Job, path: str) -> str:
    if path in job.sources:
        return "what is added to it" if path in job.compiler.names.fragments else "new"
    return "generated for what is added" if path.startswith("generated/") else "the tool's own"


def _make_fork(build: Build, stage: Path) -> None:
    clock, made_of = Clock(), build.digest()
    (flags, tree), replaced = _begin(build), Replacements()
    disk.copy(build.base, stage, build.home / "work/base")
    clock.step("copy", f"{build.base.site}/torch, as links")
    clock.step("weave", f"{_weave(build, stage)} files")
    if flags:  # else Python changes alone, and the base's libraries stay
        job = _prepare(build, stage, flags, tree, clock)
        replaced = job.replaced
        _make_libraries(stage, job, clock)
    build.base.refuse_replaced()
    if (tolerances := build.state.get(TOLERANCES)) is not None:
        disk.write(stage, TOLERANCES, tolerances.read_bytes())
    made = {"digest": made_of, "commit": build.commit.name, "base": build.base.version, "of": build.described}
    disk.write(stage, "fork.json", json.dumps(made))
    disk.date_last(stage / "fork.json", stage)
    _try_out(build, stage, replaced)
    _publish(build, stage)
    clock.step("install", f"{build.site}")
    took = time.monotonic() - clock.start
    print(f"done     {build.commit.name} on torch {build.base.version} in {took:.1f} s", flush=True)


def _has_device_code(series: Series, state: Mapping[str, File]) -> bool:
    """Whether a state has code that nvcc compiles, or kernels of its own for the GPU."""
    native = series.of_kind(state, New, Fragment).get(NATIVE_FUNCTIONS)
    return any(path.endswith((".cu", ".cuh")) for path in state) or bool(native and "CUDA" in native.read_text())


def _prepare(build: Build, stage: Path, flags: Flags, tree: Tree | None, clock: Clock, planned: bool = False) -> Job:
    """Generates, and compiles what is PyTorch's own, which tells what else is needed; with `planned` it only tells."""
    work = build.home / "work"
    made = work / "generated"
    for log in (LOG, cache.LOG):
        (work / log).unlink(missing_ok=True)
    if native := _entries_added(build, NATIVE_FUNCTIONS):
        _generate(build, stage, native, _entries_added(build, DERIVATIVES), made)
        disk.install_stubs(stage, made)
        clock.step("generate", f"{sum(1 for _ in made.rglob('*.*'))} files by PyTorch's own generators")
    else:
        shutil.rmtree(made, ignore_errors=True)
    join(build.base, work, stage, {})

    replaced = Replacements()
    if tree and isinstance(build.series, Branch):
        replaced = replace_sources(build, stage, build.series.changed(build.commit), tree, flags, planned)
    for line in () if planned else replaced.told:
        print(f"replaced {line}", flush=True)
    if replaced.told and not planned:
        clock.step("replace", f"{len(replaced.told)} sources of PyTorch")
    sources = build.compiled
    if AUTOCAST in sources:
        disk.write(work / "operators", "fork_autocast_lists.h", sources[AUTOCAST].read_text())
    places = {path: str(edited(file)) for path, file in sources.items()}
    headers = {f"headers/{path.removeprefix('aten/src/')}": place for path, place in places.items()}
    fragments = frozenset(build.series.of_kind(sources, Fragment))
    names = NamesForErrors(places | headers, replaced.kernels, fragments)
    front = [*replaced.headers, work / "joined", work / "headers", work / "operators"]
    return Job(Compiler(replace(flags, front=front), names), sources, build.sanitize, replaced)


def _make_libraries(stage: Path, job: Job, clock: Clock) -> None:
    """Compiles what is the stack's, and links all into the libraries of `stage`."""
    count = sum(not path.endswith(".h") for path in job.sources)
    if not (count or job.operators or job.replaced):
        return  # what the wheel was built without was all, so its libraries stay
    for path, file in link_fork(job).items():
        disk.write(stage, path, file.read_bytes())
        (stage / path).chmod(0o755)
    own = f"{count} sources of the stack{', and the generated ones' if job.operators else ''}{cache.said(job.work)}"
    clock.step(*(("compile", own) if count or job.operators else ("link", "libtorch.so and torch._C")))


def _entries_added(build: Build, path: str) -> Path | None:
    """A list with the entries that the state adds for operators that it adds."""
    file, kind = build.state.get(path), build.series.kind(path)
    if file is None or not isinstance(kind, Whole):
        return edited(file) if file else None
    return added_entries(build, path, kind.text, file.read_text())


def _entries_this_base_takes(build: Build, native: Path) -> Path:
    """The list of operators without what this base lacks."""
    kind = build.series.kind(NATIVE_FUNCTIONS)
    if not isinstance(kind, Fragment) or not kind.only_if_base_has:
        return native
    served = kind.served(native.read_text(), build.base.read(NATIVE_FUNCTIONS) or "")
    if lost := " and ".join(word for word in kind.only_if_base_has if word not in served):
        print(f"note     torch {build.base.version} lacks {lost}: {NATIVE_FUNCTIONS} goes without", flush=True)
    disk.write(build.home / "work/served", native.name, served)
    return build.home / "work/served" / native.name


def _generate(build: Build, stage: Path, native: Path, derivatives: Path | None, generated: Path) -> None:
    words = [GENERATE, _entries_this_base_takes(build, native), derivatives or "", generated]
    generators.run(build.base, stage, build.home / "work", words, partial(_rejected, build, native, derivatives))
    own, theirs = (
        {found[1] for found in STRUCT.finditer(text)}
        for text in ((generated / "autograd" / NODES).read_text(), build.base.read(NODES) or "")
    )
    if taken := sorted(own & theirs):
        raise ForkError(Refusal.KNOWN_NODE.of(path=NATIVE_FUNCTIONS, node=taken[0]))
    for entry in yaml.safe_load(native.read_text()):
        if "method" in entry.get("variants", ""):
            name = entry["func"].partition("(")[0]
            print(f"note     {name} is a method in Python alone: C++'s class Tensor is compiled already", flush=True)


def _rejected(build: Build, native: Path, derivatives: Path | None, said: str) -> str:
    """What the generators reject, in the branch's own list, whose lines the part of it has too."""
    words = generators.rejection(said, native, derivatives)
    for path in (NATIVE_FUNCTIONS, DERIVATIVES):
        words = words.replace(str(build.home / "work/added" / Path(path).name), path)
    return words


def _try_out(build: Build, stage: Path, replaced: Replacements) -> None:
    """Imports the new fork before it replaces the last good one, and looks whether what it replaces is replaced."""
    own = ["libtorch.so", "_C" + build.base.probe.suffix]
    bindings = sorted({*build.base.probe.bindings} - replaced.gone) if replaced.python else []
    found = {"slots": replaced.slots, "jumps": replaced.jumps}
    asked = {"stage": str(stage), "own": own, "bindings": bindings, **found}
    disk.write(build.home / "work", "slots.json", json.dumps(asked))
    failed = "the new fork does not import, so the last good one stays"
    variables = environment(stage, build.base.python, build.sanitize)
    if replaced.slots:
        variables["LD_BIND_NOW"] = "1"
    program, told = str(PROOF), str(build.home / "work/slots.json")
    # As a module would: its own folder is not to be searched for what torch imports.
    code = f"import runpy, sys; sys.argv[1:] = [{told!r}]; runpy.run_path({program!r}, run_name='__main__')"
    command: list[str | Path] = [build.base.python, "-X", "faulthandler", "-c", code]
    done = process.attempt(command, env=variables, cwd="/")
    if done.returncode:
        raise ForkError(f"{failed}: {process.reason(done)}{process.place(done, stage)}")


def _publish(build: Build, stage: Path) -> None:
    """Makes the stage the current fork in one rename; the one before it stays for who still runs it."""
    previous = build.site.resolve() if build.site.is_symlink() else None
    final = build.home / f"site-{time.time_ns()}"
    stage.rename(final)
    link = build.home / "current.new"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(build.site)
    for old in build.home.glob("site-*"):
        if old not in (final, previous):
            shutil.rmtree(old, ignore_errors=True)
