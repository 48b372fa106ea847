"""`make test` fails where one of its parts does, and makes no further part."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import parts


def test_a_failure_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, make = tmp_path / "made", tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$2" >> {log}\n[ "$2" != no ] || exit 7\n')
    make.chmod(0o755)
    monkeypatch.setenv("MAKE", str(make))
    monkeypatch.setattr(parts, "RUNS", tmp_path)
    monkeypatch.setattr("sys.argv", ["bench.parts", "test", "lint", "no", "unit"])
    assert parts.main() == 7
    assert log.read_text().split() == ["lint", "no"]
