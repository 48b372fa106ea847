"""Builds a fork: weave, generate, compile, install, each step named with its time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fork.engine import toolchain, tree
from fork.engine.base import Base
from fork.engine.compile import Job, compile_fork
from fork.engine.digest import digest, tool_files
from fork.errors import ForkError, told_plainly
from fork.lock import alone
from fork.series import NATIVE_FUNCTIONS, PullRequest, Series
from fork.weave import weave_all

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]

# Where the sources of PyTorch's libraries lie; a C++ test of a stack is not one of them.
LIBRARIES = ("aten/", "c10/", "torch/")


@dataclass(frozen=True)
class Fork:
    """One state of the stack on one base; `home` keeps its build, `site` is the folder to import from."""

    series: Series
    pr: PullRequest
    base: Base
    cuda: str
    build: Path

    @property
    def home(self) -> Path:
        suffix = "-cuda" if self.cuda == "on" else "-nocuda" if self.cuda == "off" and self.base.cuda else ""
        if not self.base.site.is_relative_to(PROJECT / ".venv"):
            # Another Python's torch of the same version must not take the place of this one's fork.
            suffix += f"-{digest(str(self.base.site).encode())[:6]}"
        return self.build / "forks" / f"{self.pr.name}-{self.base.version}{suffix}"

    @property
    def site(self) -> Path:
        return self.home / "current"

    def digest(self) -> str:
        """Changes when anything that goes into the build does."""
        state = self.series.state(self.pr)
        parts = [f"{path}\n".encode() + file.read_bytes() for path, file in sorted(state.items())]
        parts += [file.read_bytes() for file in tool_files()]
        parts += [(self.series.root / "stack/series.yaml").read_bytes(), (self.base.dist_info / "RECORD").read_bytes()]
        parts += [
            repr(
                (
                    self.base.python,
                    self.base.site,
                    self.cuda,
                    str(toolchain.compiler(self.base) or "") if self.base.cuda and self.cuda != "off" else "",
                    os.environ.get("CXX"),
                    os.environ.get("TORCH_CUDA_ARCH_LIST"),
                    sys.version,
                )
            ).encode()
        ]
        return digest(*parts)

    def stale(self) -> bool:
        """Whether there is no good build, or one of something else."""
        try:
            return str(json.loads((self.site / "fork.json").read_text())["digest"]) != self.digest()
        except (FileNotFoundError, ValueError, KeyError):
            return True


class Clock:
    """Prints each step's name and time."""

    def __init__(self) -> None:
        self.start = self.last = time.monotonic()

    def step(self, name: str, what: str) -> None:
        now = time.monotonic()
        print(f"{name:8} {what} ({now - self.last:.1f} s)", flush=True)
        self.last = now


def build(fork: Fork) -> Path:
    """Brings the fork up to date and returns its site folder; the last good one stays until then."""
    advice, busy = "choose a writable folder with --build", f"another build of {fork.home.name} is running"
    with told_plainly(fork.home, advice), alone(fork.home / "lock", busy):
        if not fork.stale():
            print(f"current  {fork.pr.name} on torch {fork.base.version} is up to date: {fork.site}", flush=True)
            return fork.site
        print(f"fork     {fork.pr.name} on torch {fork.base.version} ({fork.base.site})", flush=True)
        for left_over in fork.home.glob("stage-*"):
            shutil.rmtree(left_over)
        stage = fork.home / f"stage-{os.getpid()}"
        try:
            _make(fork, stage)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        return fork.site


def _make(fork: Fork, stage: Path) -> None:
    clock = Clock()
    made_of, state = fork.digest(), fork.series.state(fork.pr)
    toolchain.check_tools(fork.base)
    toolkit, chosen = toolchain.choose(fork.base, fork.cuda)
    if fork.base.cuda or fork.cuda == "on":
        print(f"cuda     {chosen}", flush=True)
    tree.copy(fork.base, stage)
    clock.step("copy", f"{fork.base.site}/torch, as links")

    woven = _weave(fork, state, stage)
    clock.step("weave", f"{woven} files")

    generated = fork.home / "work/generated"
    _generate(fork, stage, state, generated)
    tree.install_headers(stage, generated)
    tree.install_stubs(stage, generated)
    clock.step("generate", f"{sum(1 for _ in generated.rglob('*.*'))} files by PyTorch's own generators")

    headers = fork.home / "work/headers"
    sources = {p: file for p, file in state.items() if p.startswith(LIBRARIES) and p.endswith((".cpp", ".cu", ".h"))}
    job = Job(fork.base, sources, generated, headers, fork.home / "work/cmake", toolkit, _probe(fork.base))
    libraries = compile_fork(job)
    clock.step(
        "compile", f"{sum(not path.endswith('.h') for path in sources)} sources of the stack, and the generated ones"
    )

    for path, file in libraries.items():
        tree.write(stage, path, file.read_bytes())
        (stage / path).chmod(0o755)
    tree.write(stage, "fork.json", json.dumps({"digest": made_of, "pr": fork.pr.name, "base": fork.base.version}))
    _try_out(fork, stage)
    _publish(fork, stage)
    clock.step("install", f"{fork.site}")
    print(
        f"done     {fork.pr.name} on torch {fork.base.version} in {time.monotonic() - clock.start:.1f} s",
        flush=True,
    )


def _weave(fork: Fork, state: dict[str, Path], stage: Path) -> int:
    """Writes the state's files that a wheel has room for; C++ sources are compiled instead."""
    base = fork.base
    inside = {}
    for path, file in state.items():
        anchor = fork.series.anchors.get(path)
        shipped = base.wheel_path(path) or (base.new_path(path) if anchor is None else None)
        if shipped is not None and not path.endswith((".cpp", ".cu")):
            inside[path] = file
    base.check(filter(None, map(base.wheel_path, inside)))
    texts = weave_all(inside, fork.series.anchors, base.read)
    headers = fork.home / "work/headers"
    wanted = set()
    for path, text in texts.items():
        shipped = base.wheel_path(path) or base.new_path(path)
        assert shipped is not None
        tree.write(stage, shipped, text)
        if "torch/include/" in shipped:
            header = headers / shipped.removeprefix("torch/include/")
            wanted.add(header)
            if not header.is_file() or header.read_text() != text:
                tree.write(header.parent, header.name, text)
    for header in headers.rglob("*.*"):
        if header not in wanted:
            header.unlink()
    return len(texts)


def _generate(fork: Fork, stage: Path, state: dict[str, Path], generated: Path) -> None:
    native = state.get(NATIVE_FUNCTIONS)
    if native is None:
        raise ForkError(f"PR {fork.pr.name} adds no native function: there is nothing to build before the PR that does")
    generated.mkdir(parents=True, exist_ok=True)
    derivatives = state.get("tools/autograd/derivatives.yaml", "")
    command = [str(fork.base.python), str(HERE / "generate.py"), str(native), str(derivatives), str(generated)]
    environment = os.environ | {"PYTHONPATH": str(stage), "TORCH_FORK": str(stage)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise ForkError(
            f"PyTorch's generators reject {native}"
            + (f" or {derivatives}" if derivatives else "")
            + f": {lines[-1] if lines else 'they said nothing'}"
        )


def _probe(base: Base) -> dict[str, object]:
    """What only the base's own Python can say: where its headers are, and pybind11's flags of torch's build."""
    code = (
        "import json, sysconfig, torch\n"
        "print(json.dumps({'include': sysconfig.get_path('include'),\n"
        " 'suffix': sysconfig.get_config_var('EXT_SUFFIX'),\n"
        " 'definitions': [f'PYBIND11_{n}=\"{v}\"' for n in ('COMPILER_TYPE', 'STDLIB', 'BUILD_ABI')\n"
        "                 if (v := getattr(torch._C, f'_PYBIND11_{n}', None))]}))"
    )
    environment = os.environ | {"TORCH_FORK": str(base.site)}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run([base.python, "-c", code], capture_output=True, text=True, env=environment, cwd="/")
    if result.returncode != 0:
        raise ForkError(
            f"torch {base.version} in {base.site} cannot be imported: "
            f"{(result.stderr.strip().splitlines() or [f'it ended with status {result.returncode}'])[-1]}"
        )
    probe: dict[str, object] = json.loads(result.stdout)
    return probe


def environment(fork_site: Path, python: Path) -> dict[str, str]:
    """The environment in which `python` and all its children import that fork."""
    path = os.pathsep.join(filter(None, [str(fork_site), os.environ.get("PYTHONPATH", "")]))
    search = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    return os.environ | {"PYTHONPATH": path, "TORCH_FORK": str(fork_site), "PATH": search}


def python_folder(home: Path, python: Path) -> Path:
    """A folder in which `python` and `python3` are the base's interpreter, whatever its own folder has."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        script = folder / name
        text = f'#!/bin/sh\nexec "{python}" "$@"\n'
        if not script.is_file() or script.read_text() != text:
            script.write_text(text)
            script.chmod(0o755)
    return folder


def _try_out(fork: Fork, stage: Path) -> None:
    """Imports the new fork before it replaces the last good one."""
    code = f"import torch; assert torch.__file__.startswith({str(stage)!r}), torch.__file__"
    result = subprocess.run(
        [fork.base.python, "-c", code],
        env=environment(stage, fork.base.python),
        capture_output=True,
        text=True,
        cwd="/",
    )
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"it ended with status {result.returncode}"]
        raise ForkError(f"the new fork does not import, so the last good one stays: {lines[-1]}")


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
