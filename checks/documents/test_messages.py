"""The stack's commit messages: as short as a maintainer reads, and without a command that upstream has not."""

from __future__ import annotations

import re

import pytest

from checks import ROOT
from fork.series import Commit, PullRequest, Series

SERIES = Series.load(ROOT)
MOST_WORDS = {
    "gradient": 200,
    "custom-function": 300,
    "composite": 400,
    "explicit": 400,
    "explicit.generic": 450,
    "explicit.cpu": 500,
    "explicit.cuda": 350,
}
OURS = re.compile(r"\bmake [a-z]|python -m (?:fork|bench|checks)|\bchecks[./]|\bguide/|bench/|this repository")


@pytest.mark.parametrize("one", SERIES.outline(), ids=lambda one: one.name)
def test_a_message_is_short_and_names_what_upstream_has(one: PullRequest | Commit) -> None:
    text = SERIES.description(one)
    assert len(re.findall(r"\S*\w\S*", text)) <= MOST_WORDS[one.name]
    assert not OURS.findall(text)
