"""For the tests of the tool: its command line, a git that goes by nobody's settings, a small library to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fork.tests.helpers import QUIET_GIT, Tool, git

if TYPE_CHECKING:
    from fork.tests.test_replace import Small


@pytest.fixture
def quiet_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's own calls of git, too, have an author, a date, and no configuration of the user's."""
    for name, value in QUIET_GIT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(capsys)


@pytest.fixture
def small(made: Small) -> Iterator[Small]:
    """What a module has `made`, for one test's changes."""
    yield made
    git(made.tree, "checkout", "--quiet", "--force", "main")
    for file in (made.folder / "own").rglob("*.h"):
        file.unlink()
