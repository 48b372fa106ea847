"""Small mutations of the stack, each behind a switch, so that one build has them all, and the test that each fails."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from checks import ROOT
from fork import process
from fork.errors import ForkError

TABLE = Path(__file__).parent / "table.yaml"


@dataclass(frozen=True)
class Mutant:
    """One mutation: in the text `where`, which the file has once, the expression `old` becomes `new`; `test` fails."""

    name: str
    file: str
    where: str
    old: str
    new: str
    test: str
    at_import: bool = False
    """Whether the expression is evaluated when its Python module is imported, so that the switch needs that again."""
    needs: str = ""
    """What a processor has that alone runs the expression, as torch.cpu calls it."""

    @property
    def switch(self) -> str:
        """The environment variable that turns the mutation on."""
        return "MUTANT_" + re.sub(r"\W+", "_", self.name)

    @property
    def switched(self) -> bool:
        """Whether it is behind its switch in a build; for a test that reads or compiles the file the text changes."""
        return self.test.startswith("test/")

    def place(self, text: str) -> tuple[int, int]:
        """Where `old` begins and ends in the file's text."""
        if text.count(self.where) != 1 or self.where.count(self.old) != 1:
            raise ForkError(
                f"mutant {self.name!r}: {self.file} has its text {text.count(self.where)} times, not once: "
                f"write in {TABLE.relative_to(ROOT)} what stands there now"
            )
        start = text.index(self.where) + self.where.index(self.old)
        return start, start + len(self.old)


def table() -> list[Mutant]:
    """The mutants of table.yaml."""
    loaded = yaml.safe_load(TABLE.read_text())
    return [
        Mutant(entry.pop("mutant"), file, entry.pop("where", entry["old"]), **entry)
        for file, entries in loaded.items()
        for entry in entries
    ]


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with this mutation alone."""
    start, end = mutant.place(text)
    return text[:start] + mutant.new + text[end:]


def project() -> dict[str, bytes]:
    """The contents of its files by their paths, of those that git does not know yet too."""
    listed = process.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], "git ls-files failed", cwd=ROOT)
    return {path: (ROOT / path).read_bytes() for path in listed.split("\0") if path and (ROOT / path).is_file()}


def fill(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Brings a copy of the project up to date; what has its content stays, so that nothing is compiled again for it."""
    for path, content in contents.items():
        file = folder / path
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    for top in {path.partition("/")[0] for path in contents if "/" in path}:
        for left in (folder / top).rglob("*"):
            if left.is_file() and left.relative_to(folder).as_posix() not in contents and left.suffix != ".pyc":
                left.unlink()


def with_switches(text: str, mutants: Sequence[Mutant]) -> str:
    """The file's text with all these mutations, each behind its switch."""
    places: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants:
        places.setdefault(mutant.place(text), []).append(mutant)
    following = len(text)
    for (start, end), here in sorted(places.items(), reverse=True):
        if end > following:
            raise ForkError(f"mutant {here[0].name!r}: it overlaps another one of {here[0].file}")
        choice = f"({text[start:end]})"
        for mutant in here:
            choice = _choice(mutant, choice)
        text, following = text[:start] + choice + text[end:], start
    return text


def _choice(mutant: Mutant, old: str) -> str:
    """An expression in the language of the file; derivatives.yaml holds C++, in which YAML wants no `: `."""
    if mutant.file.endswith((".py", ".md")):
        return f'(({mutant.new}) if __import__("os").environ.get("{mutant.switch}") else {old})'
    return f'(std::getenv("{mutant.switch}") ? ({mutant.new}) :{old})'
