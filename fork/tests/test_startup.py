"""What Python's start in an environment with a fork chooses, and what is said when torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest import MonkeyPatch, fixture, mark, raises

from fork.commands import build as command
from fork.commands import run as running
from fork.engine import build as forks
from fork.engine.build import Build
from fork.folders import PROJECT
from fork.tests import softclip
from fork.tests.helpers import Tool, fork, write


@fixture
def environment(tmp_path: Path) -> Path:
    """An installed torch and a fork of it, as far as `import torch` shows."""
    files = {"torch/__init__.py": "print('base')\n", "torch-2.13.0.dist-info/RECORD": ""}
    write(tmp_path / "site", files | {"_torch_fork.py": command.STARTUP.read_text()})
    write(tmp_path / "fork", {"torch/__init__.py": "print('fork')\n", "fork.json": "{}"})
    return tmp_path


def started(environment: Path, code: str = "import torch, torch", **variables: str) -> tuple[str, list[str]]:
    """What a program prints, and the lines of its standard error."""
    site, info = environment / "site", environment / "site/torch-2.13.0.dist-info"
    line = command.LINE.format(site=str(environment / "fork"), base=str(info))
    program = f"import sys; sys.path.insert(0, {str(site)!r}); {line}\n{code}"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TORCH_FORK")}
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env=clean | variables)
    return done.stdout, done.stderr.splitlines()


def test_the_fork_comes_first_and_nothing_is_said(environment: Path) -> None:
    assert started(environment) == ("fork\n", [])
    assert started(environment, TORCH_FORK=str(environment / "site")) == ("base\n", [])


def test_each_build_has_a_path_of_its_own(environment: Path) -> None:
    """By which caches, such as Inductor's, tell what they have compiled with its headers from what with another's."""
    first = (environment / "fork").rename(environment.resolve() / "site-1")
    (environment / "fork").symlink_to(first.name)
    printed, _ = started(environment, "import torch; print(torch.__file__)")
    assert printed == f"fork\n{first}/torch/__init__.py\n"
    assert forks.environment(environment / "fork", Path(sys.executable))["TORCH_FORK"] == str(first)


def test_a_fork_that_is_gone(environment: Path) -> None:
    (environment / "fork/fork.json").unlink()
    printed, said = started(environment)
    assert printed == "base\n" and len(said) == 1
    assert said[0].startswith(f"torch: the fork in {environment}/fork is gone, so this is the installed torch: run")
    assert started(environment, "import json") == ("", [])


def test_another_torch_installed_over_the_forks_base(environment: Path) -> None:
    info = environment / "site/torch-2.13.0.dist-info"
    info.rename(info.with_name("torch-2.12.0.dist-info"))
    printed, said = started(environment)
    assert printed == "fork\n" and len(said) == 1
    assert said[0].startswith("torch: pip has replaced torch-2.13.0, and this is still the fork of it in ")


@mark.parametrize("words", [("-c", "import torch, torchgen"), ("-m", "use"), ("use.py",)])
def test_a_fork_runs_in_a_checkout(environment: Path, words: tuple[str, ...]) -> None:
    """Of each of these, the current folder comes before PYTHONPATH; the environment's own start remains."""
    files = {"use.py": "import torch, torchgen", "torch/__init__.py": "raise SystemError"}
    tree = write(environment / "pytorch", files)
    write(environment, {"fork/torchgen/__init__.py": "", "own/sitecustomize.py": "print('own')"})
    variables = forks.environment(environment / "fork", Path(sys.executable))
    variables["PYTHONPATH"] += f":{environment / 'own'}"
    done = subprocess.run([sys.executable, *words], cwd=tree, env=variables, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("own\nfork\n", "")


def test_only_the_projects_own_stack_installs_itself(tmp_path: Path, tool: Tool, monkeypatch: MonkeyPatch) -> None:
    installed: list[Path] = []

    def install(build: Build) -> str:
        installed.append(build.series.root)
        return "installed"

    monkeypatch.setattr(command, "make", lambda build: build.site)
    monkeypatch.setattr(command, "install", install)
    root = softclip.stack(tmp_path)
    for words in (["--root", root, "build"], ["build", "--build", tmp_path / "elsewhere"]):
        assert "COMMAND` runs with it; without that," in tool(*words).out
    assert installed == []
    assert fork("--root", root, "build", "--install") == fork("build") == 0
    assert installed == [root, PROJECT]


def test_a_command_that_cannot_run_is_told_before_a_build(tmp_path: Path, tool: Tool) -> None:
    root = softclip.stack(tmp_path)
    (tmp_path / "file").write_text("text")
    for program, status, sentence in (("nosuch", 127, "was not found"), (f"{tmp_path}/file", 126, "cannot be exec")):
        said = tool("--root", root, "run", "--", program, status=status)
        assert said.err.startswith(f"fork: {program} {sentence}") and said.out == ""


def test_a_crash_of_a_command_says_where(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A kernel may read memory that is not its own, and no shell between says more than a number."""
    given: dict[str, str] = {}
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
    monkeypatch.setattr(running, "make", lambda build: build.site)
    monkeypatch.setattr(os, "execve", lambda program, words, variables: given.update(variables) or sys.exit())
    with raises(SystemExit):
        fork("--root", softclip.stack(tmp_path), "run", "--", "true")
    crash = "def kernel():\n    import ctypes; ctypes.string_at(1)\n\nkernel()"
    variables = os.environ | {name: given[name] for name in running.CRASHES}
    done = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True, env=variables)
    assert "Segmentation fault" in done.stderr and "line 2 in kernel" in done.stderr
