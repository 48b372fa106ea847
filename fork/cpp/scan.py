"""Reads C++ as a compiler's first passes do: comments, literals, directives, and which braces are open where.

A digit separator begins no literal, what a raw string holds is no code, and a directive ends where its continued lines
do. All that looks at C++ by patterns of its own looks at what this gives. (tree-sitter's grammar of C++ finds errors in
more than half of PyTorch's headers, since it does not know their macros, and then tells nothing of what stands there.)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

QUIET = re.compile(
    r"""(?<!\w)(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"
    |//[^\n\\]*(?:\\(?:[ \t]*\n)?[^\n\\]*)*
    |/\*.*?\*/
    |"(?:\\.|[^"\\\n])*"
    |(?<!\w)\d[\w.]*(?:'[\w.]+)+
    |'(?:\\.|[^'\\\n])+'""",
    re.DOTALL | re.VERBOSE,
)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)([^\n\\]*(?:\\(?:[ \t]*\n)?[^\n\\]*)*)(?:\n|\Z)", re.MULTILINE)
OPENS, TURNS = ("if", "ifdef", "ifndef"), ("elif", "elifdef", "elifndef", "else")
UNLIKE = str.maketrans(" \t\n", "\1\2\3")
# What opens a brace in which declarations stand as outside of all: namespaces, and blocks of registrations.
SCOPE = re.compile(r"namespace(?: [\w:]+)?|inline namespace \w+|extern\s*|[A-Z_]{4,}\([^(){};]*\)")
# What can stand in front of such a one without a semicolon: macros.
FRONT = re.compile(r"\A\s*(?!inline\b)\S.*?(?=(?<!\w)(?:inline\s+)?namespace\b[\w\s:]*$|(?<!\w)extern\s*$)", re.DOTALL)


@dataclass(frozen=True)
class Span:
    """A stretch of a text; of a directive, `kind` is its word, and it ends behind its line's end."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class Block:
    """What stands in braces: the heads of all braces around it and its own, outermost first; where its own begins; the
    offset behind the `{` and that of the `}`."""

    heads: tuple[str, ...]
    start: int
    open: int
    close: int = -1

    @property
    def head(self) -> str:
        return self.heads[-1]

    def has(self, at: int) -> bool:
        return self.open <= at < self.close


class Scan:
    """What a text is made of, by offsets."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def quiet(self) -> list[Span]:
        """The comments and literals."""
        found = ((one.start(), one.end(), one[0]) for one in QUIET.finditer(self.text))
        return [
            Span(start, end, "comment" if said.startswith(("//", "/*")) else "literal")
            for start, end, said in found
            if not said[0].isdigit()
        ]

    @cached_property
    def code(self) -> str:
        """The text with comments and literals blanked out, line for line."""
        return _blanked(self.text, self.quiet)

    @cached_property
    def plain(self) -> str:
        """The text with its comments blanked out, line for line."""
        return _blanked(self.text, [one for one in self.quiet if one.kind == "comment"])

    @cached_property
    def kept(self) -> str:
        """The same, where what is a space in a literal looks like none: neither its lines nor its words come apart."""
        literals = [one for one in self.quiet if one.kind == "literal"]
        return spliced(
            self.plain, ((one.start, one.end, self.plain[one.start : one.end].translate(UNLIKE)) for one in literals)
        )

    def said(self, start: int, end: int) -> str:
        """A stretch without comments, and with one space wherever there are several or a line ends."""
        return " ".join(self.kept[start:end].split())

    @cached_property
    def bare(self) -> str:
        """The code without directives, line for line: a macro is one, to its last continued line."""
        return _blanked(self.code, self.directives)

    @cached_property
    def shape(self) -> str:
        """The bare code, in which every brace has its counterpart: of the branches of a condition that open or close
        one, the first has them."""
        found = list(self.bare)
        branches: list[list[int]] = []  # of each open condition, where its branches begin
        for one in self.directives:
            if one.kind in OPENS:
                branches.append([one.end])
            elif one.kind in TURNS and branches:
                branches[-1].append(one.end)
            elif one.kind == "endif" and branches:
                begins = branches.pop()
                parts = ["".join(found[a:b]) for a, b in pairwise([*begins, one.start])]
                if any(part.count("{") != part.count("}") for part in parts):
                    later = begins[1] if begins[1:] else one.start
                    found[later : one.start] = re.sub("[{}]", " ", "".join(found[later : one.start]))
        return "".join(found)

    @cached_property
    def directives(self) -> list[Span]:
        # In a comment of several lines a directive goes on.
        flat = _blanked(self.text, self.quiet, r"(?s:.)")
        return [Span(one.start(), one.end(), one[1]) for one in DIRECTIVE.finditer(flat)]

    @cached_property
    def lines(self) -> list[int]:
        """Where each line begins, and where the text ends."""
        return [0, *(found.end() for found in re.finditer(r"\n", self.text))]

    def around(self, at: int) -> Span | None:
        """The comment, literal or directive in whose middle an offset is, where no line of its own can stand."""
        for spans in (self.directives, self.quiet):
            n = bisect_right(spans, at, key=lambda one: one.start) - 1
            if n >= 0 and spans[n].start < at < spans[n].end:
                return spans[n]
        return None

    def conditions(self, at: int) -> list[Span]:
        """The directives on which it depends whether the line of an offset is compiled, outermost first."""
        found: list[Span] = []
        for one in self.directives:
            if one.start > at:
                break
            if one.kind in OPENS:
                found.append(one)
            elif one.kind in TURNS and found:
                found[-1] = one
            elif one.kind == "endif" and found:
                found.pop()
        return found

    def heads(self, at: int) -> tuple[str, ...]:
        """What stands before each brace that is open at an offset, outermost first."""
        offsets, heads, _ = self._nesting
        return heads[bisect_right(offsets, at)]

    def outside(self, at: int) -> bool:
        """Whether only namespaces and blocks of registrations are open at an offset, and it is in no directive."""
        return self.around(at) is None and all(SCOPE.fullmatch(head) for head in self.heads(at))

    @property
    def blocks(self) -> list[Block]:
        """The namespaces and blocks of registrations, by where they begin."""
        return sorted((one for one in self._nesting[2] if SCOPE.fullmatch(one.head)), key=lambda one: one.start)

    @cached_property
    def _nesting(self) -> tuple[list[int], list[tuple[str, ...]], list[Block]]:
        """The offsets behind all braces, semicolons and directives; the heads before the first and after each; and
        what is closed."""
        opened: list[Block] = []
        closed: list[Block] = []
        offsets: list[int] = []
        heads: list[tuple[str, ...]] = [()]
        last = 0
        marks = [Span(found.start(), found.end(), found[0]) for found in re.finditer("[{};]", self.shape)]
        for mark in sorted([*marks, *self.directives], key=lambda one: one.start):
            if mark.kind == "{":
                head = FRONT.sub("", self.shape[last : mark.start], count=1).lstrip()
                opened.append(Block((*heads[-1], " ".join(head.split())), mark.start - len(head), mark.end))
            elif mark.kind == "}" and opened:
                closed.append(replace(opened.pop(), close=mark.start))
            last = mark.end
            offsets.append(last)
            heads.append(opened[-1].heads if opened else ())
        return offsets, heads, closed


def _blanked(text: str, spans: Sequence[Span], what: str = r"[^\n]") -> str:
    return spliced(text, ((one.start, one.end, re.sub(what, " ", text[one.start : one.end])) for one in spans))


def spliced(text: str, parts: Iterable[tuple[int, int, str]]) -> str:
    """A text with something else from one offset to another, for each part in their order."""
    found, at = list[str](), 0
    for start, end, new in parts:
        found += [text[at:start], new]
        at = end
    return "".join([*found, text[at:]])


# The last files are kept: one is looked at several times in a row.
scan = lru_cache(maxsize=64)(Scan)


def code_of(text: str) -> str:
    return scan(text).code


def lines(text: str) -> list[str]:
    """What a compiler reads of a text, line by line: without comments and without empty lines."""
    return [" ".join(line.split()) for line in scan(text).kept.splitlines() if line.strip()]


def closing(code: str, at: int, end: int, pair: str = "{}") -> int:
    """The offset of the brace, or other bracket, that closes the one before `at`, -1 where there is none."""
    depth = 1
    for brace in re.finditer(f"[{re.escape(pair)}]", code[at:end]):
        depth += 1 if brace[0] == pair[0] else -1
        if not depth:
            return at + brace.start()
    return -1
