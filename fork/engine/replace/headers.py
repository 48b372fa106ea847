"""Which names a branch changes in headers, so that whoever includes one and names none of them needs no compiler."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from fork.cpp.definitions import concerned, gained
from fork.cpp.scan import code_of, scan
from fork.tree import HEADERS

WORD = re.compile(r"[A-Za-z_]\w*")
MACRO = re.compile(r"# ?(?:define|undef) (\w+)")
STANDARD = re.compile(r"# ?include <(?:[a-z_0-9]+|stdint\.h|stddef\.h|string\.h)>")
PARAMETERS = re.compile(r"# ?define \w+(?:\(([^)]*)\))?")
PASTED = re.compile(r"(\w+) ?##|## ?(\w+)")


class HeaderNames:
    """What the names in the headers of a tree tell: whether one is known, and whether a macro's is made of parts."""

    def __init__(
        self, read: Callable[[str], str | None], naming: Callable[[str], Collection[str]], texts: Mapping[str, str]
    ) -> None:
        self.read, self._naming, self._texts = read, naming, texts
        self._parts: tuple[set[str], set[str]] | None = None
        self._macros: set[str] = set()

    def more_of(self, item: str, added: bool) -> set[str] | None:
        """By which names code uses what `concerned` cannot tell of."""
        if macro := MACRO.match(item):
            self._macros.add(macro[1])
            return None if self._is_pasted(macro[1]) else {macro[1]}
        if added and STANDARD.fullmatch(item):
            return set()
        names = gained(item) if added else set()
        return None if not names or any(map(self._naming, names)) else names

    def in_macros(self, names: Iterable[str], headers: Collection[str]) -> bool:
        """Whether a header, beside those that change, has one of these names in a macro, or uses a macro of them.

        Such a header needs no include: what it says means something only where the macro is used.
        """
        for name in names:
            for path in self._naming(name):
                if path.endswith(HEADERS) and path not in headers:
                    there = scan(self.read(path) or "")
                    said = " ".join(there.code[one.start : one.end] for one in there.directives)
                    if name in WORD.findall(there.code if name in self._macros else said):
                        return True
        return False

    def _is_pasted(self, name: str) -> bool:
        """Whether a macro of PyTorch could make this name of parts."""
        if self._parts is None:
            self._parts = set(), set()
            for text in (text for text in self._texts.values() if "##" in text):
                there = scan(text)
                for said in (there.said(one.start, one.end) for one in there.directives if one.kind == "define"):
                    given = PARAMETERS.match(said)
                    own = set(WORD.findall(given[1] or "")) if given else set()
                    for head, tail in PASTED.findall(said):
                        self._parts[0].update({head} - own)
                        self._parts[1].update({tail} - own)
        heads, tails = ({part for part in parts if part.strip("_")} for parts in self._parts)
        return name.startswith(tuple(heads)) or name.endswith(tuple(tails))


def changed_names(
    headers: Mapping[str, tuple[str, str]], including: Iterable[str], names_of: HeaderNames
) -> set[str] | None:
    """What the declarations that differ declare; None where the change can concern code that does not name it.

    `headers` has the text before and after of each; `including`, who includes them, also by other headers.
    """
    texts, names = dict(headers), set[str]()
    passing = [path for path in including if path.endswith(HEADERS)]
    while True:
        found = names
        for before, after in texts.values():
            more = concerned(before, after, found, names_of.more_of)
            if more is None:
                return None
            found = more
        # Another header may pass a name on by an inline function.
        others = {path: names_of.read(path) or "" for path in passing if path not in texts}
        further = {path: (text, text) for path, text in others.items() if found & words(text)}
        if found == names and not further:
            return None if names_of.in_macros(names, headers) else names
        names = found
        texts |= further


@cache
def words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(code_of(text)))


def generated(names: Iterable[str], files: Sequence[Path]) -> bool:
    """Whether code that PyTorch's generators make of these files may have a name, or join one of its parts."""
    made = {word for file in files for word in WORD.findall(file.read_text())}
    return any(part in made for name in names for part in _parts(name))


def _parts(name: str) -> set[str]:
    """`THPVariable_add` can be made of `add`, and `add_stub` too."""
    cuts = [at for at, sign in enumerate(name) if sign == "_"]
    found = {name[at + 1 :] for at in cuts} | {name[:at] for at in cuts}
    return {name, *(part for part in found if part.strip("_"))}
