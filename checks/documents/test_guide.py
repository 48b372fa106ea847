"""The guide's statements stand at the lines that they link to, and no text of ours links to nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import report
from bench.operator_map import table
from checks import ROOT
from fork.checkout.operators import operators
from fork.series import Series
from fork.verify import operator_map
from suites.advice import REASONS, ROWS

TEXTS = [path for folder in ("", "guide", "guide/bench", "fork") for path in sorted((ROOT / folder).glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#L(\d+))?(?: \"([^\"]+)\")?\)")


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_where_they_say(text: Path) -> None:
    wrong = []
    for path, line, quoted in LINK.findall(text.read_text()):
        target = (text.parent / path).resolve()
        if not target.exists():
            wrong.append(f"{path} does not exist")
        elif line:
            lines = [line.replace('"', "") for line in target.read_text().splitlines()]
            if quoted not in (lines[int(line) - 1] if int(line) <= len(lines) else ""):
                found = [n for n, content in enumerate(lines, 1) if quoted in content]
                wrong.append(f"{path}#L{line} is not {quoted!r}, which stands in lines {found}")
    assert not wrong, "\n".join(wrong)


def test_the_guides_table_is_made_of_the_map() -> None:
    advice = "guide/map.yaml, or a line that it links to, has changed: run `python -m bench.operator_map`"
    assert table() in operator_map.GUIDE.read_text(), advice


def test_this_stack_has_every_row_of_the_map() -> None:
    series = Series.load(ROOT)
    for commit in (pr.commits[-1] for pr in series.prs):
        for operator in operators(series, commit):
            assert [row.row for row, found in operator_map.entries(series, commit, operator) if not found] == []


def test_a_row_is_found_by_its_operator_alone() -> None:
    """Another operator in the same files, or an empty stack, does not have it."""
    series = Series.load(ROOT)
    state = series.state(series.find())
    for row in operator_map.rows():
        assert operator_map.found(row, {}, "attn") is None
        if all("{op}" in pattern for pattern in row.find.values()):
            assert operator_map.found(row, state, "tanh_attn") is None, row.row


def test_the_suites_name_rows_of_the_map() -> None:
    assert {*ROWS.values(), *REASONS.values()} <= {row.row for row in operator_map.rows()}


def test_the_guide_lists_every_refusal() -> None:
    text = report.REFUSALS.read_text()
    assert report.refusals(text) == text, "run `python -m bench.report`"


def test_the_guide_lists_every_kind_of_path() -> None:
    text = report.BRANCH.read_text()
    assert report.kinds(text) == text, "run `python -m bench.report`"
