"""This stack through the tool's commands: its files are sound, and its review page has every PR."""

from __future__ import annotations

import dataclasses
import subprocess
from argparse import Namespace
from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, raises

from checks import ROOT
from fork.checkout.operators import operators
from fork.cli import main
from fork.commands import check, compat
from fork.engine.build import Build
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.series import Commit, Series
from fork.tests.helpers import write
from fork.verify import soundness
from fork.verify.prefix import Result, Run


def test_every_prefix_is_tested_and_a_failure_is_a_fault(capsys: CaptureFixture[str], monkeypatch: MonkeyPatch) -> None:
    """Whether the files are sound is what `make test` shows by `fork check` itself."""
    monkeypatch.setattr(soundness, "problems", lambda *_: [])
    seen: list[str] = []

    def prefix(series: Series, commit: Commit, folder: Path, everything: bool) -> Result:
        seen.append(commit.name)
        run = Run("test/test_x.py", "Ran 2 tests, OK", 1.0, passed=commit.name != "custom-function")
        return Result(commit.name, "2.13.0", (run,))

    monkeypatch.setattr(check, "build_and_test", prefix)
    args = Namespace(
        command="check", typed=["check"], root=ROOT, pr=None, static=False, build=None, lint=None, all=False
    )
    with raises(ForkError, match="custom-function: test/test_x.py failed"):
        check.run(args)
    assert seen == [commit.name for commit in Series.load(ROOT).commits]


def test_tests_that_fail_on_a_release_fail_compat(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    """And nothing but what was made for a release is removed."""
    kept = write(tmp_path, {"forks/explicit-2.13.0/current": "", "bases/2.7.0/complete": ""})
    monkeypatch.setattr(bases, "obtain", lambda *_: bases.installed())
    monkeypatch.setattr(compat, "build", lambda build: build.home)
    failing = subprocess.CompletedProcess([], 1, stdout="1 failed, 41 passed in 2 s\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failing)
    assert operators(Series.load(ROOT), "explicit") == ["attn"]
    assert main(["compat", "2.7", "--build", str(kept)]) == 1
    assert "1 failed, 41 passed" in capsys.readouterr().out
    assert (kept / "forks/explicit-2.13.0/current").exists() and not (kept / "bases/2.7.0").exists()


def test_two_installations_of_a_release_have_forks_of_their_own(tmp_path: Path) -> None:
    base = bases.installed()
    other = dataclasses.replace(base, site=tmp_path)
    series = Series.load(ROOT)
    assert len({Build(series, series.find(), b, "auto", tmp_path).home for b in (base, other)}) == 2
