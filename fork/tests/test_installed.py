"""The tool as a package: its wheel, in an environment that has torch and in folders that know nothing of this one."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fork import __version__
from fork.cli import main
from fork.engine.wheel import base as bases
from fork.tests import softclip
from fork.tests.helpers import QUIET_GIT, committed, git, write

ROOT = Path(__file__).resolve().parents[2]
# What this environment has of the tool itself, and the .pth files, by which it finds it.
OF_THE_TOOL = re.compile(r"(__editable__|torch_fork|attn_fork|_torch_fork).*|.*\.pth|__pycache__")
# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [pytest.mark.xdist_group("installed"), pytest.mark.long]


@dataclass(frozen=True)
class Installed:
    """An environment with the tool's wheel, and with torch and the libraries of this one."""

    home: Path
    wheel: Path
    cache: Path

    def fork(self, folder: Path, *words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """What the command `fork` prints in a folder."""
        return self.run(folder, self.home / "bin/fork", *words, status=status)

    def run(self, folder: Path, *words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in QUIET_GIT.items() if name not in ("PYTHONPATH", "TORCH_FORK")}
        variables = kept | {"XDG_CACHE_HOME": str(self.cache)}
        done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    @property
    def site(self) -> Path:
        (package,) = self.home.glob("lib/python*/site-packages/fork")
        return package.parent

    def files(self) -> set[str]:
        """What is installed, without what Python compiles of it."""
        return {str(file) for file in self.home.rglob("*") if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    made = tmp_path_factory.mktemp("installed")
    words = ["-m", "build", "--no-isolation", "--outdir", str(made / "dist"), str(ROOT)]
    built = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (made / "dist").glob("*.whl")
    libraries = made / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not OF_THE_TOOL.fullmatch(entry.name):
            (libraries / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made / "env"], check=True)
    environment = Installed(made / "env", wheel, made / "cache")
    (site,) = (made / "env").glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(made / "env/bin/python")]
    for command in (["install", "--quiet", "--no-deps", "--no-index", str(wheel)], ["check"]):
        done = subprocess.run([*pip, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return environment


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_the_wheel_has_every_file_of_the_tool_and_none_of_its_tests(installed: Installed) -> None:
    tracked = {path for path in git(ROOT, "ls-files", "fork").splitlines() if not path.startswith("fork/tests/")}
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("fork/")}
    brought = {name for name in packed if name.startswith("fork/share/")}
    assert packed - brought == tracked
    assert {"fork/share/guide/map.yaml", "fork/share/suites/common.py", "fork/share/test/test_ops.py"} <= brought
    assert all((ROOT / name.removeprefix("fork/share/")).is_file() for name in brought)


def test_it_says_its_version(installed: Installed, empty: Path) -> None:
    said = installed.fork(empty, "--version").stdout
    assert said == f"fork {__version__} ({installed.site}/fork)\n"
    assert installed.run(empty, installed.home / "bin/python", "-m", "fork", "--version").stdout == said
    versions = re.findall(r"^## (\S+)", (ROOT / "fork/CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == __version__


@pytest.mark.parametrize("words", ["build", "run -- true", "wheel", "show", "check", "apply .", "export . .", "compat"])
def test_without_a_stack_it_says_what_to_name(installed: Installed, empty: Path, words: str) -> None:
    said = installed.fork(empty, *words.split(), status=1)
    assert (said.stdout, said.stderr) == (
        "",
        f"fork: {empty} has no stack/series.yaml: name the folder of a stack by --root, "
        "or a branch of PyTorch by --checkout\n",
    )
    assert not any(empty.iterdir())


def test_a_new_stack_and_what_is_left_to_write(installed: Installed, empty: Path) -> None:
    """Here the templates, the style, the map, the guide and the suites are needed."""
    written = installed.fork(empty, "new", "--explicit", "mine", "halve(Tensor a) -> Tensor").stdout
    (tests,) = re.findall(r"-- python (\S+) -k halve$", written, re.MULTILINE)
    assert Path(tests).is_relative_to(installed.site)
    program = "import runpy, sys; sys.argv = ['test_ops.py', '-k', 'nothing']; runpy.run_path(sys.orig_argv[-1])"
    installed.run(empty, installed.home / "bin/python", "-c", program, tests)
    assert "halve" in installed.fork(empty / "mine", "show").stdout  # The stack of the folder that it runs in.
    checked = installed.fork(empty / "mine", "check", "--static", status=1)
    assert f"({installed.site}/fork/share/guide/adding_an_operator.md says more)" in checked.stdout
    assert re.search(r"; torch.attn's: [\w/]+\.py$", checked.stdout, re.MULTILINE) and "left to write" in checked.stderr
    installed.fork(empty / "mine", "show", "--html", "page.html")
    assert "halve" in (empty / "mine/page.html").read_text()


def test_a_branch_of_a_checkout_runs(installed: Installed, empty: Path, quiet_git: None) -> None:
    base = bases.installed()
    changed = [path for path in softclip.FILES if base.read(path) is not None]
    tree = committed(empty.parent / "pytorch", {path: str(base.read(path)) for path in changed})
    git(tree, "branch", "--move", "main")
    before = installed.files()
    stack = write(softclip.on_a_wheel(empty.parent / "stack"), {"stack/explicit/PR.md": "Add softclip\n"})
    assert main(["--root", str(stack), "apply", str(tree)]) == 0
    (branch,) = set(git(tree, "branch", "--format=%(refname:short)").split()) - {"main"}
    git(tree, "switch", "--quiet", branch)
    (empty.parent / "script.py").write_text("import torch; print(f'{torch.softclip(torch.ones(())).item():.4f}')")
    words = ("--checkout", tree, "run", "--cuda", "off", "--", "python", empty.parent / "script.py")
    assert installed.fork(empty, *words).stdout.splitlines()[-1] == "0.7616"
    again = installed.fork(empty, *words)
    assert again.stdout == "0.7616\n"
    assert not any(empty.iterdir()) and installed.files() == before
    assert git(tree, "status", "--porcelain") == ""
    assert list(installed.cache.glob("torch-fork/checkouts/pytorch-*/build/forks"))
