"""What several tests share: what weaving gives, a stack on disk, a tiny upstream under git, and the command line."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from fork.cli import main
from fork.engine.build import Build, environment
from fork.engine.compile.device import Device
from fork.engine.compile.flags import Flags
from fork.engine.wheel import base as bases
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.series import Series
from fork.weave import weave
from fork.weave.file_kinds import Fragment, Place

ROOT = Path(__file__).resolve().parents[2]
QUIET_GIT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}


def anchor(older_path: str | None = None, **places: str | tuple[str, ...]) -> Fragment:
    """`anchor(file="after x")`; a name that is not an identifier goes in by `**{"a b": "last"}`."""
    spots = {
        container: tuple(map(place, [words] if isinstance(words, str) else words))
        for container, words in places.items()
    }
    return Fragment(spots, older_path)


def place(words: str) -> Place:
    relation, _, target = words.partition(" ")
    return Place(relation, target)


def woven(path: str, base: str, fragment: str, where: Fragment) -> str:
    """What weaving changes in the base, as a diff."""
    after = weave(path, base, fragment, where)
    lines = difflib.unified_diff(base.split("\n"), after.split("\n"), lineterm="", n=1)
    return "\n".join(line.rstrip() for line in list(lines)[2:]) + "\n"


def refused(path: str, base: str, fragment: str, where: Fragment) -> str:
    """What weaving says where it cannot."""
    with pytest.raises(ForkError) as caught:
        weave(path, base, fragment, where)
    return str(caught.value)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def edit(tree: Path, path: str, before: str, after: str) -> None:
    """Changes the one place of a file that has this text."""
    text = (tree / path).read_text()
    assert text.count(before) == 1
    write(tree, {path: text.replace(before, after)})


def git(tree: Path, *args: str) -> str:
    command = ["git", "-C", str(tree), *args]
    return subprocess.run(command, env=QUIET_GIT, check=True, capture_output=True, text=True).stdout


def commit(tree: Path, files: Mapping[str, str], message: str) -> Path:
    """Commits these files, and whatever else has changed."""
    write(tree, files)
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", f"--message={message}")
    return tree


def committed(root: Path, files: Mapping[str, str]) -> Path:
    """A git checkout whose only commit holds these files."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    return commit(root, files, "base")


def script(file: Path, text: str) -> Path:
    """A program of the shell in this file."""
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def fork(*words: object) -> int:
    """Runs a command of the tool."""
    return main([str(word) for word in words])


class Said(NamedTuple):
    out: str
    err: str


class Tool:
    """The tool's command line, and what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object, status: int = 0) -> Said:
        """What this command alone prints. It ends with this status."""
        self.capsys.readouterr()
        ended = fork(*words)
        said = Said(*self.capsys.readouterr())
        assert ended == status, said
        return said

    def refusal(self, *words: object) -> str:
        """The one sentence with which the tool refuses this."""
        said = self(*words, status=1).err
        assert said.startswith("fork: ") and said.count("\n") == 1, said
        return said


def flags_of(
    base: Base,
    work: Path,
    front: Sequence[Path] = (),
    behind: Sequence[Path] = (),
    capabilities: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Flags:
    """How sources are compiled for a base, for the CPU."""
    return Flags(Device(base, None, ""), work, capabilities, front, behind, work / "ccache")


def fork_of(root: Path, build: Path | None = None) -> Build:
    """The fork of a stack's last state on the installed torch, for the CPU."""
    series = Series.load(root)
    return Build(series, series.find(), bases.installed(), "off", build or root / "build")


def python(site: Path, *words: str | Path, **more: str) -> str:
    """What Python prints with a fork as its torch; `more` are variables of its environment."""
    variables = environment(site, Path(sys.executable)) | more
    command = [sys.executable, *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
