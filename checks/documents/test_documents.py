"""Figures are filled in at their markers, in blocks and in sentences, and a marker that cannot be is told."""

from __future__ import annotations

import re

import pytest

from bench.documents import fill, outside_markers, without_markers
from fork.errors import ForkError

TEXT = """\
# Title

* **Fast.** It takes<!--time--> 3 ms<!--/-->, no more.
* Another item, as it was
  written.

<!--table-->
| old |
<!--/-->

| a row | with<!--cell--> 1<!--/--> |
"""


def test_blocks_and_sentences_are_filled() -> None:
    long = "four " * 30
    text = fill(TEXT, {"time": long, "table": "| a |\n| b |\n"}, "x.md")
    assert "<!--table-->\n| a |\n| b |\n<!--/-->" in text
    assert "* Another item, as it was\n  written.\n" in text
    assert "with<!--cell--> 1<!--/--> |" in text
    assert max(map(len, text.splitlines())) <= 120
    (item,) = [part for part in re.split(r"^\* ", without_markers(text), flags=re.MULTILINE) if "Fast" in part]
    assert item.split() == f"**Fast.** It takes {long.strip()}, no more.".split() and "\n  four" in item
    assert fill(text, {"time": long, "table": "| a |\n| b |\n"}, "x.md") == text


def test_what_was_written_by_hand() -> None:
    assert "3 ms" not in outside_markers(TEXT) and "old" not in outside_markers(TEXT)
    assert "no more" in outside_markers(TEXT) and "<!--" not in without_markers(TEXT)


@pytest.mark.parametrize(
    "text,whole,sentence",
    [
        ("Nothing.\n", False, "x.md has no place for 'time': write <!--time--> and <!--/--> there"),
        ("a<!--other--> 1<!--/-->\n", True, "x.md asks for 'other', which nobody measures: use one of time"),
        ("a<!--time--> 1\n\nMore.\n", False, "x.md: <!--/--> does not follow <!--time-->"),
        ("a <!--time--> 1<!--/-->\n", False, "x.md: <!--time--> has to follow a word, without a space between"),
    ],
)
def test_what_cannot_be_filled(text: str, whole: bool, sentence: str) -> None:
    with pytest.raises(ForkError) as error:
        fill(text, {"time": "1"}, "x.md", whole)
    assert str(error.value) == sentence
