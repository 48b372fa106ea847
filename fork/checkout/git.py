"""A git checkout of PyTorch: its files as committed, and commits that leave the files alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fork.errors import ForkError
from fork.folders import SERIES
from fork.upstream import NATIVE_FUNCTIONS


@dataclass(frozen=True)
class Checkout:
    """`path` is the top of the working tree; `head` the commit that the stack goes on."""

    path: Path
    head: str

    @classmethod
    def open(cls, path: Path) -> Checkout:
        if not path.is_dir():
            raise ForkError(f"{path} is not a folder: give a git checkout of PyTorch")
        try:
            found = _git(path, "rev-parse", "--show-toplevel", "HEAD").decode().split("\n")
        except ForkError as error:
            if any(known in str(error) for known in ("not a git repository", "'HEAD'")):
                raise ForkError(f"{path} is not a git checkout with a commit: clone PyTorch there") from error
            raise
        if (path / SERIES).is_file():
            raise ForkError(f"{path} holds a stack, not PyTorch: give a checkout of PyTorch, or the stack by --root")
        checkout = cls(Path(found[0]), found[1])
        if Path(found[0]) != path.resolve() or checkout.read(NATIVE_FUNCTIONS) is None:
            raise ForkError(f"{path} is not the top of a PyTorch checkout: it has no {NATIVE_FUNCTIONS}")
        return checkout

    def git(self, *args: str, stdin: str | None = None, **variables: str) -> str:
        return _git(self.path, *args, stdin=stdin, variables=variables).decode()

    def commit_of(self, name: str) -> str:
        """The hash of the commit that a word names, empty where there is none."""
        with suppress(ForkError):
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
        return ""

    def contents(self, blobs: Mapping[str, str]) -> dict[str, bytes]:
        """What the blobs of these paths hold, by one process."""
        try:
            data = _git(self.path, "cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in blobs.values()))
        except ForkError as error:  # It could not load one from where the checkout was cloned.
            lost = next((path for path, blob in blobs.items() if blob in str(error)), None)
            raise (self._lacks(lost) if lost else error) from error
        found, at = {}, 0
        for path in blobs:
            start = data.index(b"\n", at) + 1
            head = data[at:start].split()
            if head[1] == b"missing":
                raise self._lacks(path)
            at = start + int(head[2]) + 1
            found[path] = data[start : at - 1]
        return found

    def _lacks(self, path: str) -> ForkError:
        whole = f"git -C {shlex.quote(str(self.path))} fetch --refetch --no-filter"
        return ForkError(f"{self.path} is a partial clone and lacks a text of {path}: `{whole}` brings all of them")

    def contents_at(self, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
        """What these files hold in a commit, as far as it has them, by one process."""
        known = files_of(self.path, commit)
        return self.contents({path: known[path][1] for path in paths if path in known})

    def read_at(self, commit: str, path: str) -> str | None:
        """The text of a file of a commit, None where the commit has no such file."""
        found = self.contents_at(commit, [path]).get(path)
        return None if found is None else found.decode(errors="surrogateescape")

    def read(self, path: str) -> str | None:
        """The text of a file at `head`, or None."""
        return self.read_at(self.head, path)

    def refuse_dirty(self) -> None:
        """What lies inside a submodule, such as the leftovers of a build, is in nobody's way."""
        flags = ("--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
        status = self.git("status", *flags).splitlines()
        if status:
            raise ForkError(
                f"{self.path} has changes that are not committed ({status[0].strip()}"
                f"{' and others' if len(status) > 1 else ''}): commit or stash them first"
            )

    def commit(self, texts: Mapping[str, str | None], message: str, parent: str, **dates: str) -> str:
        """A commit on `parent` whose tree is that of `head` with these files, None for one less; returns its hash."""
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self.git("read-tree", self.head, **index)
            lines = []
            for path, text in texts.items():
                if text is None:
                    lines.append(f"0 {'0' * 40}\t{path}\n")
                    continue
                blob = self.git("hash-object", "-w", "--stdin", stdin=text).strip()
                mode = files_of(self.path, self.head).get(path, ("100644", ""))[0]
                lines.append(f"{mode} {blob}\t{path}\n")
            self.git("update-index", "--add", "--index-info", stdin="".join(lines), **index)
            tree = self.git("write-tree", **index).strip()
        return self.git("commit-tree", tree, "-p", parent, stdin=message, **dates).strip()


@lru_cache(maxsize=4)
def files_of(path: Path, commit: str) -> Mapping[str, tuple[str, str]]:
    """Path -> mode and blob of every file of a commit, which is told by its hash."""
    listing = _git(path, "ls-tree", "-r", "-z", "--full-tree", commit).decode(errors="surrogateescape").split("\0")
    rows = (line.split("\t", 1) for line in listing if line)
    return {path: (meta.split()[0], meta.split()[2]) for meta, path in rows}


def _git(path: Path, *args: str, stdin: str | None = None, variables: Mapping[str, str] | None = None) -> bytes:
    # The user's configuration must change neither what is read here nor the bytes of an export.
    settings = ("core.quotePath=false", "diff.suppressBlankEmpty=false", "color.ui=false", "format.pretty=medium")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), "-C", str(path), *args]
    try:
        done = subprocess.run(
            command,
            input=None if stdin is None else stdin.encode(errors="surrogateescape"),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **(variables or {})},
        )
    except FileNotFoundError as error:
        raise ForkError("git is not on the PATH: install it") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        ident = [line for line in lines if "tell me who you are" in line]
        if ident:
            raise ForkError(f"git knows no author for {path}: set user.name and user.email")
        # Advice of several lines follows the reason of some errors, as where another user owns the checkout.
        # What names the object comes after the reason why it could not be loaded.
        told = [line for line in lines if line.startswith(("fatal:", "error:"))]
        reason = next((line for line in told if "could not fetch" in line), (told or lines[-1:])[0])
        raise ForkError(f"git {args[0]} failed in {path}: {reason.partition(': ')[2] or reason}")
    return done.stdout
