"""What the command line says when the system refuses: one sentence, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, mark, raises

from fork.cli import main
from fork.engine import base as bases
from fork.engine import toolchain
from fork.errors import ForkError
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


def test_a_list_of_architectures_that_names_none(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    with raises(ForkError, match="Hopper names no architecture"):
        toolchain._architectures(bases.installed())
