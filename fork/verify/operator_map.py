"""The map of what an operator touches (guide/map.yaml): which rows a stack has, and the guide's table of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from fork.checkout.operators import operators
from fork.errors import ForkError
from fork.folders import BROUGHT, PROJECT
from fork.series import Commit, Series
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave.file_kinds import File

MAP = BROUGHT / "guide/map.yaml"
GUIDE = BROUGHT / "guide/adding_an_operator.md"
KINDS = ("every", "named", "explicit", "backward", "choice")
LINK = re.compile(r'\[(?P<text>[^\]]+)\]\((?P<path>[^)#\s]+) "(?P<quote>[^"]+)"\)')
NUMBERED = re.compile(r'\((?P<path>[^)#\s]+)#L(?P<line>\d+) "(?P<quote>[^"]+)"\)')
HEAD = "| what | where | without it |\n| --- | --- | --- |\n"


@dataclass(frozen=True)
class Row:
    """One row: for which operators it is (`of`), how it is found, where ours does it, what breaks without it."""

    row: str
    of: str
    find: Mapping[str, str]
    ours: str
    without: str
    note: str = ""

    def line(self) -> str:
        """The row in the guide's table, with the lines that its links lead to."""
        why = f"{self.without}. {self.note[:1].upper()}{self.note[1:]}" if self.note else self.without
        return f"| {self.row} | {_linked(self.ours)} | {_linked(why)} |\n"

    def example(self) -> str:
        """The first place where ours does it, as path:line; only the path where our stack is not here."""
        found = LINK.search(self.ours)
        assert found is not None
        path = (MAP.parent / found["path"]).resolve().relative_to(BROUGHT)
        return f"{path}:{_target(found)[1]}" if PROJECT else str(path)


@dataclass(frozen=True)
class Entry:
    """One row for one operator: where the stack has it, or None."""

    row: Row
    found: str | None

    @property
    def mark(self) -> str:
        return "has" if self.found else "choose" if self.row.of == "choice" else "lacks"


def rows() -> list[Row]:
    loaded = [Row(**entry) for entry in yaml.safe_load(MAP.read_text())]
    for row in loaded:
        if row.of not in KINDS:
            raise ForkError(f"{MAP}: {row.row} is of {row.of!r}: write one of {', '.join(KINDS)}")
    return loaded


def table() -> str:
    """The guide's table."""
    return HEAD + "".join(row.line() for row in rows())


def entries(series: Series, commit: Commit, operator: str) -> list[Entry]:
    """The rows that an operator of a state is due, in the map's order."""
    state = series.state(commit)
    kinds = _kinds(state[NATIVE_FUNCTIONS].read_text(), operator)
    return [Entry(row, found(row, state, operator)) for row in rows() if row.of in kinds]


def report(series: Series, commit: Commit) -> Iterator[str]:
    """What `fork check` prints: for each operator the rows it has, those it lacks, and those that are its choice."""
    for operator in operators(series, commit):
        guide = GUIDE if PROJECT is None else GUIDE.relative_to(PROJECT)
        yield f"the map of {operator} in {commit.name} ({guide} says more)"
        for entry in entries(series, commit, operator):
            name = entry.row.row.replace("`", "")
            where = entry.found or f"without it: {_plain(entry.row.without)}; torch.attn's: {entry.row.example()}"
            yield f"  {entry.mark:7} {name:30} {where}"


def _kinds(native: str, operator: str) -> set[str]:
    entries = {re.split(r"[.(]", entry["func"])[0]: entry for entry in reversed(yaml.safe_load(native))}
    entry = entries[operator]  # of its overloads the first
    kinds = {"every"}
    returns = entry["func"].rpartition("->")[2].strip()
    if "," in returns and re.search(r"Tensor[^,\s]* \w", returns):
        kinds.add("named")
    if any("CompositeImplicitAutograd" not in keys for keys in entry.get("dispatch") or ()):
        kinds |= {"explicit", "choice"}
    if {f"{operator}_backward", f"_{operator}_backward"} & set(entries):
        kinds.add("backward")
    return kinds


def found(row: Row, state: Mapping[str, File], operator: str) -> str | None:
    """Where a state has the row for an operator, as path:line."""
    for path, pattern in row.find.items():
        wanted = re.compile(pattern.replace("{op}", operator), re.MULTILINE)
        for name in sorted(state):
            text = state[name].read_text() if re.fullmatch(path, name) else ""
            if hit := wanted.search(text):
                return f"{name}:{text.count(chr(10), 0, hit.start()) + 1}"
    return None


def _linked(text: str) -> str:
    """The links of a text with the number of the first line that has the quoted words."""

    def with_line(found: re.Match[str]) -> str:
        _, line = _target(found)
        return f'[{found["text"]}]({found["path"]}#L{line} "{found["quote"]}")'

    return LINK.sub(with_line, " ".join(text.split()))


def _target(link: re.Match[str]) -> tuple[Path, int]:
    path = (MAP.parent / link["path"]).resolve()
    hits = _lines(path, link["quote"])
    if not hits:
        raise ForkError(f"{MAP}: {link['path']} has no line with {link['quote']!r}")
    return path, hits[0]


def _lines(path: Path, quote: str) -> list[int]:
    """The lines of a file that have the quoted words; quotes have no quotation marks in them."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [n for n, line in enumerate(lines, 1) if quote in line.replace('"', "")]


def _plain(text: str) -> str:
    return " ".join(LINK.sub(lambda found: found["text"], text).split())


def renumbered(text: str) -> str:
    """A text of the guide with the lines that its quotes stand at now: of several, the one nearest to the old line."""

    def moved(found: re.Match[str]) -> str:
        hits = _lines(GUIDE.parent / found["path"], found["quote"])
        line = min(hits, key=lambda hit: abs(hit - int(found["line"])), default=int(found["line"]))
        return f'({found["path"]}#L{line} "{found["quote"]}")'

    return NUMBERED.sub(moved, text)


def main() -> None:
    """Writes the table into the guide, and brings the lines of its other links up to date."""
    text = GUIDE.read_text()
    start = text.index(HEAD)
    end = text.index("\n\n", start) + 1
    try:
        GUIDE.write_text(renumbered(text[:start]) + table() + renumbered(text[end:]))
    except ForkError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
