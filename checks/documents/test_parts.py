"""The parts of a test command are made in turn; a failure ends them with its status, and leaves no record to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import parts


@pytest.mark.parametrize("targets, made, status", [("lint unit", "lint unit", 0), ("lint no unit", "lint no", 7)])
def test_a_failure_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: str, made: str, status: int
) -> None:
    """The stand-in of make fails to make `no`."""
    log, make = tmp_path / "made", tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$2" >> {log}\n[ "$2" != no ] || exit 7\n')
    make.chmod(0o755)
    (tmp_path / "test.json").write_text("of an earlier run")
    monkeypatch.setenv("MAKE", str(make))
    monkeypatch.setattr(parts, "RUNS", tmp_path)
    monkeypatch.setattr("sys.argv", ["bench.parts", "test", *targets.split()])
    assert parts.main() == status
    assert log.read_text().split() == made.split()
    assert (tmp_path / "test.json").exists() == (status == 0)
