"""Passes pytest's -k expression on to test/test_ops.py and its workers, before it builds its tests."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    os.environ["SUITES_PYTEST_K"] = config.getoption("keyword") or ""
