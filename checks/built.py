"""This stack's own fork, with which tests run their programs."""

from __future__ import annotations

from pathlib import Path

from checks import ROOT
from fork.engine.fork import Fork
from fork.engine.pipeline import build
from fork.engine.wheel import base as bases
from fork.series import Series


def built(cuda: str = "auto", folder: Path = ROOT / "build") -> Path:
    """The folder to import the last PR's fork from, brought up to date."""
    series = Series.load(ROOT)
    return build(Fork(series, series.find(), bases.installed(), cuda, folder))
