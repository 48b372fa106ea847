"""Runs programs of `checks.memory.programs` with the guarding allocator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from checks import ROOT
from checks.built import built
from fork.engine.build import environment


def guarded(folder: Path) -> dict[str, str]:
    """The environment in which the last PR's fork runs with the guarding allocator, which is built in the folder."""
    library = folder / "libguard.so"
    source = ROOT / "checks/memory/guard.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True)
    return environment(built(), Path(sys.executable)) | {"LD_PRELOAD": str(library), "OMP_WAIT_POLICY": "passive"}


def run(variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "checks.memory.programs", *words]
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
