"""`fork list` and `fork clean`: what is built, how large it is, and that what goes is what was named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pytest import MonkeyPatch, fixture

from fork import folders
from fork.engine.kept import kept
from fork.lock import alone
from fork.tests.helpers import Tool, fork, write
from fork.tests.tiny import stack

MB = 1_000_000


@fixture
def root(tmp_path: Path) -> Path:
    """A stack with a fork, a branch's fork of which half is the base's, a build that failed, and a release."""
    root = stack(tmp_path / "ours")
    made = {"commit": "fast", "base": "2.13.0+cpu", "of": "fast of ours"}
    forks = {
        "forks/fast-2.13.0+cpu": made,
        "forks/plain-2.13.0+cpu": {},
        "checkouts/tree-123456/build/forks/branch-2.12.0": made | {"of": "branch a/b of tree", "base": "2.12.0"},
    }
    for home, about in forks.items():
        write(root / "build" / home, {"lock": ""} | ({"site-1/fork.json": json.dumps(about)} if about else {}))
        if about:
            (root / "build" / home / "current").symlink_to("site-1")
    branch = root / "build/checkouts/tree-123456/build/forks/branch-2.12.0/site-1"
    (tmp_path / "base").write_bytes(b"x" * 4 * MB)
    os.link(tmp_path / "base", branch / "libtorch_cpu.so")
    (branch / "libtorch.so").write_bytes(b"y" * 3 * MB)
    os.link(branch / "libtorch.so", branch / "again.so")
    write(root / "build/bases/2.12.0", {"complete": ""})
    return root


def test_what_is_built_is_listed_with_what_its_removal_frees(root: Path, tool: Tool) -> None:
    rows = [line.split() for line in tool("--root", root, "list").out.splitlines()]
    assert rows[0] == ["name", "torch", "MB", "of"]
    assert rows[1:-1] == [
        ["fast-2.13.0+cpu", "2.13.0+cpu", "0", "fast", "of", "ours"],
        ["plain-2.13.0+cpu", "0", "a", "plan,", "or", "a", "build", "that", "did", "not", "end"],
        ["bases/2.12.0", "2.12.0", "0", "a", "release", "of", "torch"],
        ["tree-123456/branch-2.12.0", "2.12.0", "3", "branch", "a/b", "of", "tree"],
    ]
    assert rows[-1][:2] == ["3", "MB"]
    (branch,) = (one for one in kept([root / "build"]) if "branch" in one.name)
    freed = branch.size()
    branch.remove()
    assert 3 * MB <= freed < 3.2 * MB and not branch.folder.exists()


def test_what_is_named_goes_and_nothing_else(root: Path, tool: Tool) -> None:
    words = ["--root", root, "clean"]
    for wrong, sentence in (
        ([], "name what is to go, as `fork list` prints it, or give --all alone"),
        (["bases/2.12.0", "--all"], "name what is to go, as `fork list` prints it, or give --all alone"),
        (["bases"], "nothing is called bases: `fork list` prints fast-2.13.0+cpu, "),
    ):
        assert sentence in tool(*words, *wrong, status=1).err
    files = sorted(root.rglob("*"))
    assert fork(*words, "tree-123456/branch-2.12.0") == 0
    gone = set(files) - set(root.rglob("*"))
    assert gone and all("branch-2.12.0" in str(file) for file in gone)
    assert fork(*words, "--all") == 0
    assert list(kept([root / "build"])) == [] and (root / "stack/series.yaml").is_file()
    assert tool("--root", root, "list").out == "nothing is built\n"


def test_a_build_that_goes_on_is_not_pulled_away(root: Path) -> None:
    home = root / "build/forks/fast-2.13.0+cpu"
    command = [sys.executable, "-m", "fork", "--root", str(root), "clean", "fast-2.13.0+cpu"]
    with alone(home / "lock", ""):
        cleaning = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert cleaning.stdout is not None
        assert cleaning.stdout.readline() == "wait     a build of fast-2.13.0+cpu is running\n"
        assert (home / "current/fork.json").is_file()
    cleaning.communicate(timeout=60)
    assert cleaning.returncode == 0 and not home.exists()


def test_where_no_stack_is(root: Path, tmp_path: Path, monkeypatch: MonkeyPatch, tool: Tool) -> None:
    """An installed tool keeps the builds of checkouts in a folder of the user's caches."""
    monkeypatch.setattr(folders, "PROJECT", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    (root / "build").rename(tmp_path / "cache/torch-fork")
    assert "\ntree-123456/branch-2.12.0" in tool("list").out
