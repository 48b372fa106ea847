"""A clone of a PyTorch checkout whose files may be changed, and the tool run on it as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.machine import ROOT
from fork import process
from fork.errors import ForkError

# What a full build of PyTorch takes from submodules, which a clone does not have.
SUBMODULES = "third_party"


@dataclass(frozen=True)
class Run:
    """How a command ended, and how long it took."""

    status: int
    seconds: float
    out: str
    err: str

    @property
    def reason(self) -> str:
        """What the tool said last."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if line.startswith("fork: ")), lines[-1] if lines else "")
        rest = lines[lines.index(said) + 1 :] if said in lines else []
        return " ".join([said.removeprefix("fork: "), *rest[:2]]) or f"status {self.status}, and no message"


@dataclass(frozen=True)
class Branch:
    """A clone of `tree` in `folder`, which holds what is not committed, and the builds of it."""

    tree: Path
    folder: Path

    @classmethod
    def of(cls, tree: Path, folder: Path) -> Branch:
        branch = cls(tree.resolve(), folder.resolve())
        if not (branch.checkout / ".git").is_dir():
            branch.folder.mkdir(parents=True, exist_ok=True)
            process.run(["git", "clone", "-q", "--shared", branch.tree, branch.checkout], f"{tree} cannot be cloned")
        branch._bring_submodules()
        branch.reset()
        return branch

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def commit(self) -> str:
        return self._git("rev-parse", "--short=10", "HEAD").strip()

    @property
    def version(self) -> str:
        return (self.checkout / "version.txt").read_text().strip()

    @property
    def libraries(self) -> list[Path]:
        """The libraries of the last build."""
        sites = sorted(self.folder.glob("build/**/current"), key=lambda site: site.resolve().stat().st_mtime)
        if not sites:
            raise ForkError(f"{self.folder} has no build")
        return [*sites[-1].glob("torch/lib/libtorch.so"), *sites[-1].glob("torch/_C*.so")]

    def reset(self) -> None:
        self._git("checkout", "-q", "--", ".")

    def forget(self) -> None:
        """Removes all builds, so that the next one takes as long as the first."""
        shutil.rmtree(self.folder / "build", ignore_errors=True)

    def write(self, path: str, text: str) -> None:
        (self.checkout / path).write_text(text)

    def fork(self, *words: str) -> Run:
        """`fork WORDS` on this branch, with this Python's torch as base."""
        command, *rest = words
        options = ["--checkout", str(self.checkout), command, "--build", str(self.folder / "build")]
        return run([sys.executable, "-m", "fork", *options, *rest])

    def _bring_submodules(self) -> None:
        """Fills them with links to what the tree has; for Git, a folder without a .git is a submodule left out."""
        for theirs in sorted((self.tree / SUBMODULES).glob("*/")):
            ours = self.checkout / SUBMODULES / theirs.name
            if ours.is_dir() and any(ours.iterdir()):
                continue  # PyTorch's own files
            ours.mkdir(parents=True, exist_ok=True)
            for entry in theirs.iterdir():
                if entry.name != ".git":
                    (ours / entry.name).symlink_to(entry)
            with (self.checkout / ".git/info/exclude").open("a") as file:
                file.write(f"/{SUBMODULES}/{theirs.name}/\n")

    def _git(self, *words: str) -> str:
        return process.run(["git", "-C", self.checkout, *words], f"git {words[0]} of {self.checkout} failed")


def run(command: list[str]) -> Run:
    """A command in a folder without a `torch` of its own, where PYTHONPATH leads to this repository's tool."""
    begun = time.monotonic()
    variables = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/", env=variables)
    return Run(done.returncode, time.monotonic() - begun, done.stdout, done.stderr)
