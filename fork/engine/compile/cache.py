"""ccache for a build: the same source with the same headers is compiled once, in whatever folder and state it lies."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from fork.engine.compile import toolchain

# What names a launcher of the user's, as for CMake: of the C++ compiler, and of nvcc.
LAUNCHERS = ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER")
LOG = "ccache.log"


def launcher(nvcc: bool) -> list[str]:
    """The words before a compiler: the user's launcher, or ccache where it is installed."""
    return shlex.split(os.environ.get(LAUNCHERS[nvcc], toolchain.path_of("ccache") or ""))


def variables(work: Path, store: Path) -> dict[str, str]:
    """ccache's settings for a build in `work`: all that it reads below goes by relative paths."""
    own = {} if any(map(os.environ.get, LAUNCHERS)) else {"CCACHE_DIR": _escaped(store)}
    # What makes equal builds in two folders the same. In a list of folders a colon separates.
    base = _escaped(work) if ":" not in str(work) else ""
    same = {"CCACHE_BASEDIR": base, "CCACHE_NOHASHDIR": "1", "CCACHE_ABSSTDERR": "1"}
    # By the dependencies that a compiler lists anyway; no preprocessor runs before it.
    return {**own, **os.environ, **same, "CCACHE_DEPEND": "1", "CCACHE_STATSLOG": _escaped(work / LOG)}


def _escaped(path: Path) -> str:
    """A path in ccache's settings, where a dollar begins a variable."""
    return str(path).replace("$", "$$")


def said(work: Path) -> str:
    """How much of the last build in `work` came from ccache; nothing where it did not run."""
    log = work / LOG
    lines = log.read_text().splitlines() if log.is_file() else []
    hits, all_ = sum(line.endswith("_cache_hit") for line in lines), sum(line.startswith("# ") for line in lines)
    return f", {hits} of {all_} objects from ccache" if all_ else ""
