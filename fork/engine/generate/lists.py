"""A branch's list of operators or formulas, brought to the base's release: what it changes there, and in which line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fork.checkout.release_tree import Tree
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.refusals import Refusal
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls


@dataclass(frozen=True)
class List:
    """The wheel's list with the entries that the branch changes, and `whole` with those that it adds for operators of
    its own; the line of each that it changes, by its name; and the branch's text."""

    text: str
    whole: str
    changed: Mapping[str, int] = field(default_factory=dict)
    written: str = ""

    def place(self, path: str, number: int) -> str:
        """The line of the branch's list that says what a line of `text` does; the path alone where none does."""
        rows, listed = self.text.splitlines()[:number], self.written.splitlines()
        start = max((n for n, row in enumerate(rows) if row.startswith("- ")), default=None)
        if start is None or rows[start] not in listed:
            return path
        return f"{path}:{listed.index(rows[start]) + len(rows) - start}"


def of_release(base: Base, tree: Tree, path: str, text: str | None, added: Collection[str]) -> List:
    """A list with the entries alone that the branch changes: another release has others beside them.

    `added` are the operators that the branch adds, whose entries are generated apart.
    """
    shipped = base.read(path) or ""
    if text is None:
        return List(shipped, shipped)
    start, ours, theirs = (yamls.by_name(one) for one in (tree.start(path) or "", text, shipped))
    found, result, whole, known = dict[str, int](), shipped, shipped, yamls.by_name(base.read(NATIVE_FUNCTIONS) or "")
    for name, entry in ours.items():
        line = text.count("\n", 0, text.index(entry)) + 1
        if name in start and yamls.code(start[name]) == yamls.code(entry):
            continue
        if name in start:
            if yamls.code(theirs.get(name, "")) != yamls.code(start[name]):
                raise ForkError(Refusal.OTHER_ENTRY.of(place=f"{path}:{line}", version=base.version))
            found[name] = line
            result, whole = (one.replace(theirs[name], entry) for one in (result, whole))
            continue
        if path == NATIVE_FUNCTIONS and name in known:
            raise ForkError(Refusal.KNOWN_ENTRY.of(place=f"{path}:{line}", name=name, version=base.version))
        whole = f"{whole.rstrip()}\n\n{entry}"
        if path != NATIVE_FUNCTIONS and name not in added:
            result, found[name] = f"{result.rstrip()}\n\n{entry}", line
    return List(result, whole, found, text)
