"""What a fix changes: our own words for a bug that was reported to pytorch/pytorch, or mended there.

An edit replaces text inside one function, or anywhere in the file where no function is named. Each pattern has to be
found, so a checkout in which the bug is mended already, or looks different, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fork.errors import ForkError

NATIVE = "aten/src/ATen/native"


@dataclass(frozen=True)
class Edit:
    """A regular expression and what takes its place, everywhere between `begin` and the next `end`."""

    path: str
    begin: str
    pattern: str
    text: str
    end: str = "\n}"

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        before = file.read_text()
        start = before.find(self.begin)
        end = before.find(self.end, start)
        if start < 0 or end < 0:
            raise ForkError(f"{file} has no {self.begin!r}: these fixes are for PyTorch 2.7")
        inside, count = re.subn(self.pattern, self.text, before[start:end])
        if not count:
            raise ForkError(f"{self.begin!r} of {file} has no {self.pattern!r}: these fixes are for PyTorch 2.7")
        file.write_text(before[:start] + inside + before[end:])


@dataclass(frozen=True)
class Fix:
    """The number of a pull request or an issue, what was wrong, and what kind of code the fix touches.

    Where the tool has to be told how to build it, `options` are what it is told.
    """

    name: str
    number: int
    wrong: str
    kind: str
    edits: tuple[Edit, ...]
    options: tuple[str, ...] = ()

    @property
    def test(self) -> Path:
        """It has the fix's name."""
        return Path(__file__).parent / "tests" / f"{self.name}.py"
