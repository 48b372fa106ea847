"""`python -m bench.operator_map`: the guide's table of the map, and the lines of its other links, as they are now."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fork.arguments import Parser, status
from fork.errors import ForkError
from fork.verify.operator_map import GUIDE, LINK, MAP, Row, rows

NUMBERED = re.compile(r'\((?P<path>[^)#\s]+)#L(?P<line>\d+) "(?P<quote>[^"]+)"\)')
HEAD = "| what | where | without it |\n| --- | --- | --- |\n"


def table() -> str:
    """The guide's table."""
    return HEAD + "".join(map(_line, rows()))


def _line(row: Row) -> str:
    """A row in it, with the lines that its links lead to."""
    why = f"{row.without}. {row.note[:1].upper()}{row.note[1:]}" if row.note else row.without
    return f"| {row.row} | {_linked(row.ours)} | {_linked(why)} |\n"


def _linked(text: str) -> str:
    """The links of a text with the number of the first line that has the quoted words."""

    def with_line(link: re.Match[str]) -> str:
        hits = _lines(MAP.parent / link["path"], link["quote"])
        if not hits:
            raise ForkError(f"{MAP}: {link['path']} has no line with {link['quote']!r}")
        return f'[{link["text"]}]({link["path"]}#L{hits[0]} "{link["quote"]}")'

    return LINK.sub(with_line, " ".join(text.split()))


def _lines(path: Path, quote: str) -> list[int]:
    """The lines of a file that have the quoted words; quotes have no quotation marks in them."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [n for n, line in enumerate(lines, 1) if quote in line.replace('"', "")]


def renumbered(text: str) -> str:
    """A text of the guide with the lines that its quotes stand at now: of several, the one nearest to the old line."""

    def moved(found: re.Match[str]) -> str:
        hits = _lines(GUIDE.parent / found["path"], found["quote"])
        line = min(hits, key=lambda hit: abs(hit - int(found["line"])), default=int(found["line"]))
        return f'({found["path"]}#L{line} "{found["quote"]}")'

    return NUMBERED.sub(moved, text)


def main() -> None:
    Parser(prog="python -m bench.operator_map", description=__doc__).parse_args()
    text = GUIDE.read_text()
    start = text.index(HEAD)
    end = text.index("\n\n", start) + 1
    GUIDE.write_text(renumbered(text[:start]) + table() + renumbered(text[end:]))


if __name__ == "__main__":
    sys.exit(status("bench.operator_map", main))
