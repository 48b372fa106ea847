"""For the tests of the tool: a git that goes by nobody's settings."""

import pytest

from fork.tests.helpers import QUIET_GIT


@pytest.fixture
def quiet_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool's own calls of git, too, have an author, a date, and no configuration of the user's."""
    for name, value in QUIET_GIT.items():
        monkeypatch.setenv(name, value)
