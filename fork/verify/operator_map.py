"""The map of what an operator touches (guide/map.yaml): which rows a stack has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from fork.checkout.operators import operators
from fork.folders import BROUGHT, PROJECT
from fork.series import Commit, Series
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave.file_kinds import File

MAP = BROUGHT / "guide/map.yaml"
GUIDE = BROUGHT / "guide/adding_an_operator.md"
LINK = re.compile(r'\[(?P<text>[^\]]+)\]\((?P<path>[^)#\s]+) "(?P<quote>[^"]+)"\)')


@dataclass(frozen=True)
class Row:
    """One row: for which operators it is (`of`), how it is found, where ours does it, what breaks without it."""

    row: str
    of: str
    find: Mapping[str, str]
    ours: str
    without: str
    note: str = ""

    def mark(self, found: str | None) -> str:
        return "has" if found else "choose" if self.of == "choice" else "lacks"

    def example(self) -> str:
        """The path of the first file in which ours does it."""
        found = LINK.search(self.ours)
        assert found is not None
        return str((MAP.parent / found["path"]).resolve().relative_to(BROUGHT))


def rows() -> list[Row]:
    return [Row(**entry) for entry in yaml.safe_load(MAP.read_text())]


def entries(series: Series, commit: Commit, operator: str) -> list[tuple[Row, str | None]]:
    """The rows that an operator of a state is due, in the map's order, and where the state has each, or None."""
    state = series.state(commit)
    kinds = _kinds(state[NATIVE_FUNCTIONS].read_text(), operator)
    return [(row, found(row, state, operator)) for row in rows() if row.of in kinds]


def report(series: Series, commit: Commit) -> Iterator[str]:
    """What `fork check` prints: for each operator the rows it has, those it lacks, and those that are its choice."""
    for operator in operators(series, commit):
        guide = GUIDE if PROJECT is None else GUIDE.relative_to(PROJECT)
        yield f"the map of {operator} in {commit.name} ({guide} says more)"
        for row, place in entries(series, commit, operator):
            without = " ".join(LINK.sub(r"\g<text>", row.without).split())
            where = place or f"without it: {without}; torch.attn's: {row.example()}"
            yield f"  {row.mark(place):7} {row.row.replace('`', ''):30} {where}"


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
