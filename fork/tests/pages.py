"""What tests ask of a review page: of its elements, and of what a browser makes of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

WIDTHS = (390, 1400)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1500,900"
)
LOADS = ("src", "srcset", "poster", "data", "background", "xlink:href")
VOID = ("meta", "link", "img", "br", "hr")


@dataclass
class Elements(HTMLParser):
    """Fails where a tag is not closed in its turn; keeps what the page would load, its ids, links and words."""

    open: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    formulas: int = 0
    words: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in LOADS or (tag, name) == ("link", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [unquote(value or "") for name, value in attrs if (tag, name) == ("a", "href")]
        self.formulas += tag == "math"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"code", "pre", "script", "style"} & set(self.open) and "td" not in self.open[-2:]:
            self.words += data


def elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser


def whole(text: str) -> Elements:
    """The page's elements: each closed, each id once, each link within the page led somewhere, nothing loaded."""
    found = elements(text)
    assert found.open == []
    assert found.loads == []
    assert "@import" not in text and "url(" not in text
    assert "Content-Security-Policy\" content=\"default-src 'none'" in text
    assert sorted(found.ids) == sorted(set(found.ids))
    assert [link for link in found.links if link.startswith("#") and link[1:] not in found.ids] == []
    assert [link for link in found.links if not re.match("#|https?://", link)] == []
    return found


def measured(page: Path, folder: Path) -> dict[str, Any]:
    """What measure.js finds in a browser, for each width. A frame is as narrow as it must be; a window is not."""
    script = (Path(__file__).parent / "measure.js").read_text()
    data = json.dumps({"page": page.read_text(), "widths": WIDTHS}).replace("</", "<\\/")
    wrapper = folder / "measure.html"
    wrapper.write_text(f"<!doctype html><body><script>const {{ page, widths }} = {data};\n{script}</script>")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000"]
    done = subprocess.run(
        [*command, "--dump-dom", wrapper.as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    result = re.search(r'data-measured="([^"]*)"', done.stdout)
    assert result, f"{done.stdout[-500:]}\n{done.stderr[-500:]}"
    return dict(json.loads(html.unescape(result[1])))


def faults(measures: dict[str, Any]) -> list[str]:
    """What a reader would be annoyed by, at any width, folded or unfolded, dark or light."""
    assert sorted(map(int, measures)) == sorted(WIDTHS)
    return [
        f"at {width} pixels, {kind}: {fault}"
        for width, kinds in measures.items()
        for kind, found in kinds.items()
        for fault in found
    ]
