"""This stack's own fork, with which tests run their programs."""

from __future__ import annotations

from pathlib import Path

from checks import ROOT
from fork.buildable import Buildable
from fork.engine.build import Build
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.series import Series


def built(cuda: str = "auto", folder: Path = ROOT / "build") -> Path:
    """The folder to import the last PR's fork from, brought up to date."""
    series = Series.load(ROOT)
    return make(Build(Buildable(series, series.find()), bases.installed(), cuda, folder))
