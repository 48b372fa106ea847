"""The guide's statements stand at the lines that they link to, and no text of ours links to nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [ROOT / "README.md", *sorted((ROOT / "guide").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#L(\d+))?(?: \"([^\"]+)\")?\)")


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.name)
def test_links_lead_where_they_say(text: Path) -> None:
    wrong = []
    for path, line, quoted in LINK.findall(text.read_text()):
        target = (text.parent / path).resolve()
        if not target.exists():
            wrong.append(f"{path} does not exist")
        elif line:
            lines = [line.replace('"', "") for line in target.read_text().splitlines()]
            if quoted not in lines[int(line) - 1]:
                found = [n for n, content in enumerate(lines, 1) if quoted in content]
                wrong.append(f"{path}#L{line} is not {quoted!r}, which stands in lines {found}")
    assert not wrong, "\n".join(wrong)


def test_the_guide_links_every_row_of_its_map() -> None:
    text = (ROOT / "guide/adding_an_operator.md").read_text()
    rows = [row for row in text.splitlines() if re.match(r"\| (?!---|route|what)", row)]
    unlinked = [row for row in rows if "](" not in row]
    assert not unlinked
