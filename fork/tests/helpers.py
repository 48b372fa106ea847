"""What several tests share: a diff to print, a stack on disk, and a tiny upstream under git."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fork.weave import weave
from fork.weave.kinds import Fragment, Place

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


def anchor(formerly: str | None = None, **places: str | tuple[str, ...]) -> Fragment:
    """`anchor(file="after x")`; a name that is not an identifier goes in by `**{"a b": "last"}`."""
    spots = {
        container: tuple(map(place, [words] if isinstance(words, str) else words))
        for container, words in places.items()
    }
    return Fragment(spots, formerly)


def place(words: str) -> Place:
    relation, _, target = words.partition(" ")
    return Place(relation, target)


def diff(before: str, after: str, context: int = 1) -> str:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=context)
    return "\n".join(line.rstrip() for line in list(lines)[2:]) + "\n"


def woven(path: str, base: str, fragment: str, where: Fragment) -> str:
    """What weaving changes in the base, as a diff."""
    return diff(base, weave(path, base, fragment, where))


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


def committed(root: Path, files: Mapping[str, str]) -> Path:
    """A git checkout whose only commit holds these files."""
    write(root, files)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=base")
    return root
