"""This stack's own review pages: whole, with every PR and every formula, and right in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from checks import ROOT
from fork.cli import main
from fork.series import Series
from fork.tests.pages import CHROMIUM, faults, measured, whole

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = pytest.mark.xdist_group("page")
SERIES = Series.load(ROOT)
PAGES = ["", *(one.name for one in SERIES.outline())]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of one PR, or under no name that of the whole stack, written when a test first asks for it."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def write(name: str) -> Path:
        assert main(["show", *filter(None, [name]), "--html", str(folder / f"{name}.html")]) == 0
        return folder / f"{name}.html"

    return write


def is_document(path: str) -> bool:
    """Whether the page shows a file as text: a document of the stack's own, not a piece of upstream's."""
    return path.endswith((".md", ".rst")) and path not in SERIES.anchors


def formulas(text: str) -> list[str]:
    """The formulas of a document, found without a parser of Markdown."""
    prose = re.sub(r"^```.*?^```$|`[^`]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^```math$", text, re.MULTILINE) + re.findall(r"\$[^$]+\$", prose)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_its_mathematics_is_there(page: Callable[[str], Path], name: str) -> None:
    text = page(name).read_text()
    found = whole(text)
    shown = [commit for commit in SERIES.commits if not name or name in (commit.name, commit.name.partition(".")[0])]
    documents = [SERIES.state(one)[path].read_text() for one in shown for path in one.introduces if is_document(path)]
    documents += map(SERIES.description, SERIES.outline())
    assert found.formulas == sum(len(formulas(document)) for document in documents)
    assert "$" not in found.words and 'class="math-core-error"' not in text


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed to look at the pages with")
@pytest.mark.parametrize("name", (PAGES[0], PAGES[-1]))
def test_a_browser_shows_a_page_without_fault(page: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    assert faults(measured(page(name), tmp_path)) == []
