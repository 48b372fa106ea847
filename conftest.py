"""For all tests: one compiler cache, and pytest's -k expression for test/test_ops.py and its workers."""

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # The tests' own stacks lie elsewhere, and are nearly the same objects.
    os.environ.setdefault("CCACHE_DIR", str(Path(__file__).parent / "build/ccache"))
    # test_ops.py needs the expression before it builds its tests.
    os.environ["SUITES_PYTEST_K"] = config.getoption("keyword") or ""
