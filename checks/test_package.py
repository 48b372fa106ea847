"""The tool is installed: it works from any folder, and the folders of the repository hide no package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks import ROOT


def python(folder: Path, *words: str, **variables: str) -> str:
    """What Python prints in a folder."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    return tmp_path_factory.mktemp("elsewhere")


def test_the_tool_shows_this_stack_from_any_folder(elsewhere):
    assert python(elsewhere, "-m", "fork", "show") == python(ROOT, "-m", "fork", "show")


def test_the_tool_has_a_command_of_its_own(elsewhere):
    command = Path(sys.executable).with_name("fork")
    done = subprocess.run([command, "show"], cwd=elsewhere, capture_output=True, text=True)
    assert done.stdout == python(ROOT, "-m", "fork", "show")


@pytest.mark.parametrize("path", [".", "test", "tools", "torch", "aten", "fork"])
def test_the_folders_of_the_stack_hide_no_package(path):
    """Wherever Python runs, and with the root on PYTHONPATH too."""
    program = "import test, torch.testing; print(*(m.__file__ for m in (test, torch, torch.testing)), sep='\\n')"
    for found in map(Path, python(ROOT / path, "-c", program, PYTHONPATH=str(ROOT)).splitlines()):
        # A folder without __init__.py has None for its file.
        inside = found.relative_to(ROOT).parts[0] if ROOT in found.parents else None
        assert found.is_absolute() and inside in (None, "build", ".venv")


def test_installing_the_tool_adds_only_its_own_package(elsewhere):
    """The repository's root is not on the path, so that `import tools` or `import bench` finds what it found before."""
    paths = python(elsewhere, "-c", "import sys; print(*sys.path, sep='\\n')").splitlines()
    assert str(ROOT) not in paths
    program = "import importlib.util as u; print([n for n in ('suites', 'checks', 'bench', 'tools') if u.find_spec(n)])"
    assert python(elsewhere, "-c", program).strip() == "[]"
