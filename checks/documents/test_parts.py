"""The parts of a test command: each is made in turn, a failure ends them, and the documents show runs that passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import parts
from fork.errors import ForkError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of make, it fails to make `broken`; the file has what it was asked for."""
    log, make = tmp_path / "made", tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$2" >> {log}\n[ "$2" != broken ] || exit 7\n')
    make.chmod(0o755)
    monkeypatch.setenv("MAKE", str(make))
    monkeypatch.setattr(parts, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(parts, "FILE", tmp_path / "parts.json")
    return log


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | None:
    monkeypatch.setattr("sys.argv", ["bench.parts", *words])
    return parts.main()


def test_every_part_has_its_seconds(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "test", "lint", "unit") == 0
    assert program.read_text().split() == ["lint", "unit"]
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["lint", "unit", "make"] and "make test passed after 0 s" in lines[-1]


def test_a_failure_ends_the_command_and_leaves_no_record(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "test", "lint") == 0
    assert run(monkeypatch, "test", "lint", "broken", "unit") == 7
    assert program.read_text().split() == ["lint", "lint", "broken"]
    assert "make test failed in broken" in capsys.readouterr().out
    with pytest.raises(ForkError, match="`make test` has not passed here"):
        run(monkeypatch, "--write")


def test_what_the_documents_show(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Not measured yet" in parts.values()["minutes"]
    runs = {"test": {"lint": 60.0, "unit": 400.0}, "test-all": {"long": 1200.4}}
    parts.FILE.write_text(json.dumps({"where": "A processor, commit 1234567.", "runs": runs}))
    assert parts.values()["minutes"] == "`make test` took 8 minutes and `make test-all` 20 more: " + (
        "A processor, commit 1234567."
    )
    assert "| `make test` | `make unit` | 400 |\n| `make test-all` | `make long` | 1200 |\n" in parts.values()["parts"]


def test_write_keeps_the_runs_of_both_commands(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.cpu import report

    # No record and no document is written again here.
    monkeypatch.setattr(report, "folders", list)
    monkeypatch.setattr(report, "DOCUMENTS", ())
    assert run(monkeypatch, "test", "lint") == run(monkeypatch, "test-all", "long") == 0
    assert run(monkeypatch, "--write") is None
    assert list(json.loads(parts.FILE.read_text())["runs"]["test-all"]) == ["long"]
