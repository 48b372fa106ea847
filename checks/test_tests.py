"""No test of ours is empty: a body that an edit has moved away leaves a docstring, which passes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from checks import ROOT

FOLDERS = ("bench", "checks", "fork", "suites", "test")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_says_more_than_its_name(file: Path) -> None:
    tests = (f for f in ast.walk(ast.parse(file.read_text())) if isinstance(f, ast.FunctionDef))
    empty = [f.name for f in tests if f.name.startswith("test_") and all(map(is_empty, f.body))]
    assert empty == []


def is_empty(statement: ast.stmt) -> bool:
    """A docstring or `pass`; who writes `...` means it."""
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant(str())):
            return True
    return False
