"""ccache for a build: the same source with the same headers is compiled once, in whatever folder and state it lies."""

from __future__ import annotations

import os
from pathlib import Path

from fork.engine import toolchain

# What CMake takes a launcher of the user's from, for each language.
LAUNCHERS = ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER")
LOG = "ccache.log"


def launchers() -> list[str]:
    """CMake's options for ccache, where one is installed; a launcher of the user's comes before it."""
    ccache = toolchain.path_of("ccache") or ""
    return [f"-D{name}={os.environ.get(name, ccache)}" for name in LAUNCHERS]


def variables(work: Path, store: Path) -> dict[str, str]:
    """ccache's settings for a build in `work`: all that it reads below `work`'s parent goes by relative paths."""
    found = dict(os.environ)
    if not any(map(os.environ.get, LAUNCHERS)):
        found = {"CCACHE_DIR": _escaped(store)} | found
    # What makes equal builds in two folders the same. In a list of folders a colon separates.
    base = _escaped(work.parent) if ":" not in str(work) else ""
    found |= {"CCACHE_BASEDIR": base, "CCACHE_NOHASHDIR": "1", "CCACHE_ABSSTDERR": "1"}
    # By the dependencies that a compiler lists anyway; no preprocessor runs before it.
    return found | {"CCACHE_DEPEND": "1", "CCACHE_STATSLOG": _escaped(work / LOG)}


def _escaped(path: Path) -> str:
    """A path in ccache's settings, where a dollar begins a variable."""
    return str(path).replace("$", "$$")


def said(work: Path) -> str:
    """How much of the last build in `work` came from ccache; nothing where it did not run."""
    log = work / LOG
    lines = log.read_text().splitlines() if log.is_file() else []
    hits, all_ = sum(line.endswith("_cache_hit") for line in lines), sum(line.startswith("# ") for line in lines)
    return f", {hits} of {all_} objects from ccache" if all_ else ""
