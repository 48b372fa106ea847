"""A build: one state of the stack on one base; where its build lies, what it is made of, how a program runs with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fork.checkout.whole_branch import Branch
from fork.digest import digest, tool_files
from fork.engine.compile import device, sanitizers, toolchain
from fork.engine.wheel.base import Base
from fork.series import Commit, Series, State
from fork.tree import HEADERS, Kind, kind_of
from fork.weave.cpp_inverse import has_code
from fork.weave.file_kinds import Fragment, New, Whole

# The variable that tells the suites by which command their fork was chosen, for the line that repeats a failed test.
COMMAND = "TORCH_FORK_COMMAND"

# What a compiler reads; a C++ test of a stack is not of them.
SOURCE_KINDS = (Kind.SOURCE, Kind.KERNEL, Kind.HEADER)

# What Python runs when it starts, before it searches the current folder for torch.
START = Path(__file__).with_name("start")


@dataclass(frozen=True)
class Build:
    """One state of the stack on one base; `home` keeps its build, `site` is the folder to import from."""

    series: Series
    commit: Commit
    base: Base
    cuda: str
    folder: Path
    sanitize: tuple[str, ...] = ()  # those that it is built with
    most_sources: int = 40  # how many of PyTorch's own sources may be compiled for what the branch changes

    @property
    def state(self) -> State:
        return self.series.state(self.commit)

    @property
    def compiled(self) -> State:
        """The files that are compiled beside PyTorch's: headers, and sources that hold code."""
        moved = self.series.moved(self.commit).values() if isinstance(self.series, Branch) else ()
        return {
            path: file
            for path, file in self.series.of_kind(self.state, New, Fragment).items()
            if kind_of(path) in SOURCE_KINDS and (path.endswith(HEADERS) or has_code(file.read_text()))
            if path not in moved
        }

    @property
    def described(self) -> str:
        """Of what it is built, as a phrase."""
        series = self.series
        name = f"branch {series.called}" if isinstance(series, Branch) else self.commit.name
        return f"{name} of {series.described}"

    @property
    def home(self) -> Path:
        suffix = "-cuda" if self.cuda == "on" else "-nocuda" if self.cuda == "off" and self.base.cuda else ""
        if not self.base.site.is_relative_to(self.series.root / ".venv"):
            # Another Python's torch of the same version must not take the place of this one's fork.
            suffix += f"-{digest(str(self.base.site).encode())[:6]}"
        suffix += "".join(f"-{name}" for name in self.sanitize)
        return self.folder / "forks" / f"{self.series.build_name(self.commit)}-{self.base.version}{suffix}"

    @property
    def site(self) -> Path:
        return self.home / "current"

    def digest(self) -> str:
        """Changes when anything that goes into the build does."""
        parts = [f"{path}\n".encode() + file.read_bytes() for path, file in sorted(self.state.items())]
        parts += [file.read_bytes() for file in tool_files()]
        parts += [self.series.settings(self.commit), self.base.record_text.encode()]
        gpu = self.base.cuda and self.cuda != "off"
        nvcc = [str(toolchain.compiler(self.base) or "")] if gpu else []
        nvcc += device.at_hand() if gpu and self.series.of_kind(self.state, Whole) else ()
        chosen = (self.base.python, self.base.site, self.cuda, self.sanitize, nvcc)
        around = (toolchain.settings(), os.environ.get("TORCH_CUDA_ARCH_LIST"), sys.version)
        return digest(*parts, repr(chosen + around).encode())

    def stale(self) -> bool:
        """Whether there is no good build, or one of something else."""
        try:
            return str(json.loads((self.site / "fork.json").read_text())["digest"]) != self.digest()
        except (FileNotFoundError, ValueError, KeyError):
            return True


def environment(fork_site: Path, python: Path, sanitize: Sequence[str] = ()) -> dict[str, str]:
    """The environment in which `python` and all its children import that fork, built with these sanitizers.

    It lacks what the fork was compiled with: a program that compiles, such as Inductor, goes by its own.
    """
    # A build that finishes meanwhile does not change what is imported; and by the path, which no other build has,
    # Inductor's caches tell what they compiled with this one's headers.
    fork_site = fork_site.resolve()
    path = os.pathsep.join(filter(None, [str(START), str(fork_site), os.environ.get("PYTHONPATH", "")]))
    search = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    kept = {name: value for name, value in os.environ.items() if name not in toolchain.VARIABLES}
    found = kept | {"PYTHONPATH": path, "TORCH_FORK": str(fork_site), "PATH": search}
    return found | (sanitizers.variables(sanitize, toolchain.cxx()) if sanitize else {})


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
