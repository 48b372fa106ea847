"""What a branch changes in files of PyTorch, for a wheel: their text in the wheel's release, and the files around."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from fork.checkout.git import Checkout, files_of
from fork.cpp.difference import hunks
from fork.cpp.scan import Scan, scan
from fork.errors import ForkError
from fork.tree import ELSEWHERE, HEADERS, KERNEL, LIBRARIES, SOURCES, TOPS, on_device
from fork.weave.merge import merged

UPSTREAM = "https://github.com/pytorch/pytorch"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">]+)', re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """A source to compile: as the release has it (None: a new one) and as it is to be, with lines as in the branch."""

    path: str
    before: str | None
    after: str

    def line(self, place: int) -> int:
        """The line of the branch's file that stands at a line of `after`."""
        above = self.after.splitlines()[: place - 1]
        mark = max((n for n, text in enumerate(above) if text.startswith("#line ")), default=None)
        return place if mark is None else int(above[mark].split()[1]) + place - mark - 2


@dataclass(frozen=True)
class Tree:
    """The files of a checkout that a branch did not change, in the release of the wheel as far as it is known."""

    checkout: Checkout
    since: str
    release: str
    known: bool
    device: bool = False  # whether the wheel has libraries for the GPU, and they are to change
    moved: Mapping[str, str] = field(default_factory=dict)  # where the branch has files of PyTorch's now
    _naming: dict[str, list[str]] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(
        cls, checkout: Checkout, since: str, version: str, commit: str, device: bool, moved: Mapping[str, str]
    ) -> Tree:
        """The tree of the wheel's commit, or of its release tag, else of the commit where the branch began."""
        found = checkout.commit_of(commit) or checkout.commit_of(f"v{version.partition('+')[0]}")
        return cls(checkout, since, found or since, bool(found), device, moved)

    def lacking(self, version: str, commit: str) -> str:
        """What a build says where the release is not known, and what mends it."""
        where, wished = shlex.quote(str(self.checkout.path)), commit or f"tag v{version.partition('+')[0]}"
        shallow = self.checkout.git("rev-parse", "--is-shallow-repository").strip() == "true"
        fetch = f"git -C {where} fetch {'--depth 1 ' if shallow else ''}{UPSTREAM} {wished}"
        return (
            f"{self.checkout.path} lacks torch {version}'s commit, so the text of {self.release[:10]}, where the "
            f"branch begins, stands in for the release's: `{fetch}` brings it"
        )

    @property
    def doubt(self) -> str:
        """What a refusal adds that may be false where the release is not known."""
        return "" if self.known else "; the release's text is not known here, see the warning above"

    def read(self, path: str) -> str | None:
        return self.texts.get(path) or self.checkout.read_at(self.release, path)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The files of PyTorch's libraries, read at once: a process for each takes longer than the compiler."""
        there = (path for path in files_of(self.checkout.path, self.release) if path.startswith(LIBRARIES))
        sources = [path for path in there if path.endswith((*SOURCES, KERNEL, *HEADERS))]
        found = self.checkout.contents_at(self.release, sources)
        return {path: text.decode(errors="replace") for path, text in found.items()}

    def text(self, path: str, branch: str | None = None) -> Text:
        """The source of a path: unchanged, or with what the branch changed in it brought to the release."""
        before = self.read(path)
        branch = before if branch is None else branch
        if branch is None:
            raise ForkError(f"{path} is not in {self.checkout.path} at {self.release[:10]}")
        # Both name the same file in messages, so that two objects differ in code alone.
        old = None if before is None else self._numbered(path, before, branch)
        return Text(path, old, self._numbered(path, self.merged(path, branch), branch))

    def merged(self, path: str, branch: str) -> str:
        """The branch's file with what else the release has in it."""
        if branch == self.read(path):
            return branch
        start, release = (None if text is None else text.encode() for text in (self.start(path), self.read(path)))
        return merged(branch.encode(), start, release, self.moved.get(path, path)).decode()

    def start(self, path: str) -> str | None:
        """The text of a file where the branch began."""
        return self.checkout.read_at(self.since, path)

    def _numbered(self, path: str, text: str, branch: str) -> str:
        """The text with directives that give each line the number that it has in the branch's file."""
        name = str(self.checkout.path / self.moved.get(path, path))
        lines = text.splitlines(keepends=True)
        marks = {0: 1}
        for a, b, c, d in hunks(lines, branch.splitlines(keepends=True)):
            if d - c != b - a:
                line = _safe(scan(text), b)
                marks[line] = d + 1 + line - b
        return "".join((f'#line {marks[n]} "{name}"\n' if n in marks else "") + line for n, line in enumerate(lines))

    def naming(self, word: str) -> list[str]:
        """The files of PyTorch's libraries that name something."""
        if word not in self._naming:
            named = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
            files = (path for path, text in self.texts.items() if word in text and named.search(text))
            self._naming[word] = sorted(path for path in files if not self.elsewhere(path))
        return self._naming[word]

    def elsewhere(self, path: str) -> bool:
        """Whether no library of such a wheel has what this file would become."""
        return bool(ELSEWHERE.search(path)) or (not self.device and on_device(path))

    def namesakes(self, path: str) -> int:
        """How many sources of such a wheel have the name of one that it need not have."""
        return self._names[PurePosixPath(path).name] if self.elsewhere(path) else 0

    @cached_property
    def _names(self) -> Counter[str]:
        return Counter(PurePosixPath(path).name for path in self.texts if not self.elsewhere(path))

    def includers(self, headers: Iterable[str], more: Mapping[str, Set[str]] | None = None) -> list[str]:
        """The files that include one of these headers, or a header that does, and the headers themselves; `more` tells
        who includes a file of those that are not in the tree."""
        seen, todo = set(headers), list(headers)
        while todo:
            header = todo.pop()
            for path in self._including[header] | (more or {}).get(header, set()):
                if path not in seen:
                    seen.add(path)
                    todo.append(path)
        return sorted(seen)

    @cached_property
    def _including(self) -> dict[str, set[str]]:
        return including_of(self.texts)


def including_of(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Who of these files includes a file, by the paths that its name may mean."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, text in texts.items():
        for name in INCLUDE.findall(text):
            found[name].add(file)
            found[f"aten/src/{name}"].add(file)
            if not name.startswith(("ATen/", "c10/", "torch/csrc/")):
                for top in TOPS:
                    found[f"{top}/{name}"].add(file)
                found[str(PurePosixPath(file).with_name(PurePosixPath(name).name))].add(file)
    return found


def _safe(there: Scan, line: int) -> int:
    """The first line from here on before which a directive can stand: in no macro, literal, comment or list of
    arguments."""
    lines, code = there.lines, there.bare
    depth = code.count("(", 0, lines[line]) - code.count(")", 0, lines[line])
    while line < len(lines) - 1 and (depth or there.around(lines[line])):
        depth += code.count("(", lines[line], lines[line + 1]) - code.count(")", lines[line], lines[line + 1])
        line += 1
    return line
