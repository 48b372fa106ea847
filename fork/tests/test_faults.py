"""The tool under faults of the machine: it says one sentence, the last good fork works, and the next build succeeds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest import MonkeyPatch, TempPathFactory, fixture, mark, raises, skip

from fork.engine import pipeline
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.engine.wheel import disk
from fork.errors import ForkError
from fork.tests import halve
from fork.tests.helpers import ROOT, Tool, edit, fork_of, python

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [mark.xdist_group("faults"), mark.long]
# All that may stand in a path but what a compiler refuses, and long.
ODD = "it's a stäck; of $HOME=1: 100%, #1 & (co) " + "long " * 30 + "too"


@fixture(scope="module")
def root(tmp_path_factory: TempPathFactory) -> Path:
    """The smallest stack in a folder with an odd name, built once from nothing."""
    root = halve.stack(tmp_path_factory.mktemp("stack") / ODD)
    make(fork_of(root))
    return root


def divide_by(root: Path, number: int) -> None:
    """Changes the operator: halve(1) is then 1 / number."""
    (root / halve.KERNEL).write_text(halve.FILES[halve.KERNEL].replace("div(2)", f"div({number})"))


def halved(root: Path) -> float:
    """What the built fork makes of 1."""
    return float(python(fork_of(root).site, "-c", "import torch; print(torch.halve(torch.ones(())).item())"))


def words(root: Path) -> list[str]:
    return ["--root", str(root), "build", "--cuda", "off"]


def started(root: Path, *before: str, **options: object) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-m", "fork", *words(root)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **{**streams, **options})  # type: ignore[call-overload]


def refused(process: subprocess.Popen[str]) -> str:
    """The sentence with which the tool ended."""
    _, error = process.communicate()
    assert process.returncode == 1 and error.startswith("fork: ") and len(error.splitlines()) == 1, error
    return error


# Where a build is killed, in order. Each is a program that changes the tool before it runs.
HALF = (
    "write = Path.write_bytes\n"
    "def half(self, data):\n"
    "    write(self, data[:len(data) // 2] if {where} else data)\n"
    "    {where} and kill()\n"
    "Path.write_bytes = half\n"
)
KILLS = {
    "copy": "attempt = process.attempt\n"
    "def half(command, **options):\n"
    "    if command[0] != 'cp':\n"
    "        return attempt(command, **options)\n"
    "    subprocess.Popen(command)\n"
    "    time.sleep(0.03); kill()\n"
    "process.attempt = half\n",
    "weave": HALF.format(where="self.parent.name == 'woven'"),
    "generate": "attempt = process.attempt\n"
    "def slow(command, **options):\n"
    "    if 'generate.py' not in str(command):\n"
    "        return attempt(command, **options)\n"
    "    subprocess.Popen(command, preexec_fn=process.die_with_parent, **options)\n"
    "    time.sleep(0.2); kill()\n"
    "process.attempt = slow\n",
    "compile": "attempt = process.Together.attempt\n"
    "def slow(*words, **options):\n"
    "    threading.Timer(0.5, kill).start()\n"
    "    return attempt(*words, **options)\n"
    "process.Together.attempt = slow\n",
    "link": "link = linking._link\n"
    "def slow(*words):\n"
    "    threading.Timer(0.05, kill).start()\n"
    "    link(*words)\n"
    "linking._link = slow\n",
    "write": HALF.format(where="self.name.startswith('libtorch.so')"),
    "try out": "pipeline._try_out = lambda *_: kill()\n",
    "publish": "Path.symlink_to = lambda *_: kill()\n",
}
PROGRAM = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from fork import process
from fork.cli import main
from fork.engine.link import link as linking
from fork.engine import pipeline
from fork.engine.wheel import disk
HOME = Path(sys.argv[1])
def kill():
    os.killpg(0, signal.SIGKILL)
{change}
sys.exit(main(sys.argv[2:]))
"""


def test_killed_in_every_step(root: Path) -> None:
    home, before = fork_of(root).home, fork_of(root).site.resolve()
    divide_by(root, 4)
    edit(root, "torch/overrides.py", "-1", "-2")
    for step, change in KILLS.items():
        command = [sys.executable, "-c", PROGRAM.format(change=change), str(home), *words(root)]
        # No compiler may end before it is killed.
        variables = os.environ | {"CCACHE_DISABLE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, start_new_session=True)
        assert done.returncode == -signal.SIGKILL, f"{step}: {done.stdout}{done.stderr}"
        assert (home / "current").resolve() == before, step
    assert halved(root) == 0.5
    make(fork_of(root))
    assert halved(root) == 0.25
    after = fork_of(root).site.resolve()
    assert not list(home.glob("stage-*")) and set(home.glob("site-*")) == {before, after}
    # Nothing but what was edited differs, so no half of a file was taken for a whole one.
    assert different(before, after) == {"fork.json", "torch/lib/libtorch.so", "torch/overrides.py"}
    woven = (after / "torch/overrides.py").read_text()
    assert woven.replace("input: -2", "input: -1") == (before / "torch/overrides.py").read_text()


def different(one: Path, other: Path) -> set[str]:
    """The files of two sites that are not the same."""
    files = {file.relative_to(site) for site in (one, other) for file in site.rglob("*") if file.is_file()}
    return {str(file) for file in files if "__pycache__" not in file.parts and not same(one / file, other / file)}


def same(one: Path, other: Path) -> bool:
    if not one.is_file() or not other.is_file():
        return False
    return one.samefile(other) or one.read_bytes() == other.read_bytes()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system with little room over a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True)
    if mounting.returncode:
        skip("a small file system cannot be mounted here: that needs root and the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_disk_is_full(root: Path, tmp_path: Path, tool: Tool) -> None:
    before, work = halved(root), fork_of(root).home / "work"
    divide_by(root, 8)
    edit(root, "torch/overrides.py", "input: -", "input: -1")
    for folder, size, more in (
        (tmp_path, "20m", ["--build", tmp_path]),
        (work / "woven", "16k", []),
        (work / "generated", "64k", []),
        (work / "objects", "64k", []),
    ):
        with small_disk(folder, size):
            assert tool.refusal(*words(root), *more).startswith("fork: the disk is full at ")
    assert halved(root) == before
    make(fork_of(root))
    assert halved(root) == 0.125


def test_the_disk_of_temporary_files_is_full(root: Path, tmp_path: Path) -> None:
    before = halved(root)
    divide_by(root, 9)
    with small_disk(tmp_path, "4k"):
        said = refused(started(root, env=os.environ | {"TMPDIR": str(tmp_path), "CCACHE_DISABLE": "1"}))
    assert said.startswith(f"fork: the disk is full at {tmp_path}/") and halved(root) == before


def test_a_folder_that_may_not_be_written(root: Path) -> None:
    before, home = halved(root), fork_of(root).home
    divide_by(root, 3)
    # Without these rights root may write no more than others.
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.getuid() == 0 else []
    home.chmod(0o500)
    try:
        said = refused(started(root, *drop))
    finally:
        home.chmod(0o755)
    assert "cannot be written: choose a writable folder with --build" in said
    assert halved(root) == before


def test_two_builds_at_once_with_a_strict_umask_and_without_git(root: Path, tmp_path: Path) -> None:
    divide_by(root, 16)
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            if program.is_file() and not program.name.startswith("git"):
                (tmp_path / program.name).unlink(missing_ok=True)
                (tmp_path / program.name).symlink_to(program)
    # The same compiler by the same path, so that only what was edited is compiled.
    variables = os.environ | {"PATH": str(tmp_path), "CXX": str(shutil.which("c++"))}
    two = [started(root, env=variables, umask=0o077) for _ in range(2)]
    said, errors = zip(*(process.communicate() for process in two))
    assert [process.returncode for process in two] == [0, 0], errors
    assert sum("done     composite" in output for output in said) == 1
    assert sum("wait     another build" in output and "up to date" in output for output in said) == 1
    assert halved(root) == 0.0625
    command = [sys.executable, "-m", "fork", "--root", str(root), "apply", str(ROOT)]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "fork: git is not on the PATH: install it\n"


def test_the_clock_was_set_back(root: Path, tool: Tool) -> None:
    """Files that were built have times in the future, those of a person have earlier ones."""
    home, tomorrow = fork_of(root).home, time.time() + 86400
    for file in home.rglob("*"):
        if file.is_file() and not file.is_symlink() and not disk.BINARY.search(file.name) or file.suffix == ".o":
            os.utime(file, (tomorrow, tomorrow))
    for made in (home / "work").glob("*.so"):
        os.utime(made, (tomorrow, tomorrow))
    divide_by(root, 32)
    make(fork_of(root))
    assert halved(root) == 0.03125
    assert "up to date" in tool(*words(root)).out


@mark.parametrize("fails", [False, True])
def test_the_base_is_replaced_during_a_build(root: Path, tmp_path: Path, monkeypatch: MonkeyPatch, fails: bool) -> None:
    before = halved(root)
    divide_by(root, 25)
    info = Path(shutil.copytree(bases.installed().dist_info, tmp_path / "torch.dist-info"))
    build = replace(fork_of(root), base=replace(bases.installed(), dist_info=info))

    def replaced(*_: object) -> dict[str, Path]:
        (info / "RECORD").write_text("torch/version.py,sha256=other,1\n")
        if fails:
            raise ForkError("compiling failed: torch/all.h is missing")
        return {}

    monkeypatch.setattr(pipeline, "link_fork", replaced)
    with raises(ForkError, match=r"torch .* was replaced during the build: run the command again"):
        make(build)
    assert halved(root) == before
    assert replace(build, base=replace(build.base, version="2.14.0")).home != build.home


@mark.parametrize("character", ["\n", '"', "\\"])
def test_a_path_that_no_compiler_takes(root: Path, tmp_path: Path, character: str, tool: Tool) -> None:
    said = tool.refusal(*words(root), "--build", tmp_path / f"a{character}b")
    assert said.startswith("fork: a build takes no path with ")
    assert not list(tmp_path.iterdir())
