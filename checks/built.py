"""The build of a state of this stack, the last one if none is named, and how tests run a program on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from checks import ROOT
from fork.engine.build import Build, environment
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.series import Series


def built(cuda: str = "auto", folder: Path = ROOT / "build", pr: str | None = None) -> Path:
    """The folder to import a state's fork from, brought up to date."""
    series = Series.load(ROOT)
    return make(Build(series, series.find(pr), bases.installed(), cuda, folder))


def run(
    *words: str | Path,
    site: Path | None = None,
    seconds: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What a program prints that imports the build; one that fails, or takes more seconds, fails the test.

    Threads that wait do not spin, since tests share the processors.
    """
    around = environment(site or built(), Path(sys.executable)) | {"OMP_WAIT_POLICY": "passive", **(variables or {})}
    done = subprocess.run(words, env=around, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout
