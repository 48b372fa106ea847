"""What the command line says when the system refuses: one sentence, and no traceback."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, mark, raises

from fork import base as bases
from fork import compat, cuda
from fork.build import Fork
from fork.cli import main
from fork.errors import ForkError
from fork.series import Series
from fork.tests.helpers import QUIET_GIT, committed, write
from fork.tests.tiny import SERIES, STACK, UPSTREAM, stack

ROOT = Path(__file__).resolve().parents[2]


def test_a_build_folder_that_is_a_file(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--root", str(stack(tmp_path / "ours")), "run", "--build", str(tmp_path / "file"), "--", "true"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fork: {tmp_path}/file") and "Not a directory" in error


def test_a_folder_of_patches_that_is_a_file(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    for name, value in QUIET_GIT.items():
        monkeypatch.setenv(name, value)
    root, tree = stack(tmp_path / "ours"), committed(tmp_path / "tree", UPSTREAM)
    (tmp_path / "file").write_text("mine")
    assert main(["--root", str(root), "export", str(tree), str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"fork: {tmp_path}/file: File exists\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_reader_that_has_seen_enough() -> None:
    words = [sys.executable, "-m", "fork", "show", "4"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


@mark.parametrize(
    "old,new,sentence",
    [
        ("name: plain", "name: 2024", "2024 is no text"),
        ("      - torch/overrides.py", "      torch/overrides.py", "introduces of PR fast is no list of paths"),
        ("      - torch/overrides.py", "      - /etc/hostname", "/etc/hostname of PR fast leads out of the stack"),
        ("      - torch/overrides.py", "      - a/../../b", "a/../../b of PR fast leads out of the stack"),
        (SERIES[: SERIES.index("anchors:")], "prs: []\n", "prs is empty"),
    ],
)
def test_a_series_that_says_what_cannot_be(
    tmp_path: Path, capsys: CaptureFixture[str], old: str, new: str, sentence: str
) -> None:
    root = write(tmp_path, STACK | {"stack/series.yaml": SERIES.replace(old, new)})
    assert main(["--root", str(root), "show"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fork: ") and sentence in error


def test_tests_that_fail_on_a_release_fail_compat(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    """And nothing but what was made for a release is removed."""
    kept = write(tmp_path, {"forks/explicit-2.13.0/current": "", "bases/2.7.0/complete": ""})
    monkeypatch.setattr(bases, "obtain", lambda *_: bases.installed())
    monkeypatch.setattr(compat, "build", lambda fork: fork.home)
    failing = subprocess.CompletedProcess([], 1, stdout="1 failed, 41 passed in 2 s\n", stderr="")
    monkeypatch.setattr(compat.subprocess, "run", lambda *_, **__: failing)
    assert Series.load(ROOT).name == "attn"
    assert main(["compat", "2.7", "--build", str(kept)]) == 1
    assert "1 failed, 41 passed" in capsys.readouterr().out
    assert (kept / "forks/explicit-2.13.0/current").exists() and not (kept / "bases/2.7.0").exists()


def test_two_installations_of_a_release_have_forks_of_their_own(tmp_path: Path) -> None:
    base = bases.installed()
    other = dataclasses.replace(base, site=tmp_path)
    series = Series.load(ROOT)
    assert len({Fork(series, series.prs[-1], b, "auto", tmp_path).home for b in (base, other)}) == 2


def test_a_list_of_architectures_that_names_none(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    with raises(ForkError, match="Hopper names no architecture"):
        cuda._architectures(bases.installed())
