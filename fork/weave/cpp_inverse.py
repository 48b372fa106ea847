"""The inverse of the C++ weaver: what a file gained, in the namespaces and blocks that it went into.

A source's fragment is compiled on its own, so it repeats the directives of the file and the
`using` lines of those namespaces; they stay behind when it is woven.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from fork.cpp.difference import Hunk, hunks
from fork.cpp.scan import SCOPE, Block, Scan, Span, code_of, scan
from fork.weave import pieces
from fork.weave.cpp import DEFINE, ENTRY, HEAD, INCLUDE, known_by, line_of, loose, members, named_blocks
from fork.weave.edit import Spots
from fork.weave.file_kinds import Place, beside

USING = re.compile(
    r"^[ \t]*(?:using namespace [^;\n]*|(?:using|namespace) (\w+) =[^;{}\n]*|using [\w:]*?(\w+));\n", re.M
)
MACRO = re.compile(r"\s*#\s*(?:define|undef)\s+(\w+)\S*[ \t]*(.*)", re.DOTALL)
ONLY = " // fragment only"
# What a switch lists, inside a function.
LABELS = re.compile(r"(?:\s*case [\w:]+:\s*)+")
# A piece that no compiler reads: a comment, with the code beside it, or labels.
UNREAD = re.compile(rf"^#if 0{ONLY}\n.*?^#endif{ONLY}\n", re.M | re.S)


@dataclass(frozen=True)
class Gain:
    """Lines that the base lacks: where they go, and the heads of the braces around them, outermost first."""

    at: int
    text: str
    heads: tuple[str, ...]


@dataclass(frozen=True)
class Changes:
    """What a branch did to a file: what it inserted, entries of list macros with the places of each, what no compiler
    reads (changed comments, and labels of a switch), and all else by its line."""

    gains: list[Gain]
    macros: list[str]
    spots: Spots
    unread: list[Hunk]
    others: list[tuple[int, str]]


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """Functions and lines in blocks that the base has once, entries of its list macros, and includes."""
    made = changes(base, woven)
    if made.unread or made.others:
        return None
    found, spots = made.gains, {**made.spots}
    parts = [_directives(woven, found)] if any(gain.heads for gain in found) else []
    for gain in found:
        if not INCLUDE.sub("", gain.text).strip():
            if not parts or gain.text not in parts[0]:
                parts.append(gain.text)
            continue
        blocks = [block for block in named_blocks(base) if gain.heads and block.head == gain.heads[-1]]
        if len(blocks) != 1:
            return None
        spots[blocks[0].head, known_by(gain.text, loose(blocks[0]))] = _places(base, blocks[0], gain.at)
        gap = "\n" if loose(blocks[0]) else ""
        parts.append(_framed(base, gain, f"{gap}{gain.text.strip(chr(10))}\n{gap}", ONLY))
    return "\n".join([*parts, *made.macros]), spots


def by_lines(base: str, woven: str, number: Callable[[tuple[Place, ...]], int]) -> tuple[str, Spots] | None:
    """The same, with each piece marked and its place told by the lines beside it."""
    made = changes(base, woven)
    if made.others or made.macros:
        return None
    stripped, new = [line.strip() for line in base.splitlines()], woven.splitlines(keepends=True)
    spots: Spots = {}

    def marked(hunk: Hunk, text: str) -> str:
        places = pieces.spot(stripped, hunk)
        name = f"piece {number(places)}"
        spots[name, ""] = places
        return f"// {name}\n{text}// end of piece\n"

    parts = [_directives(base, made.gains)] if made.gains else []
    for hunk in pieces.told_apart(stripped, made.unread):
        parts.append(f"#if 0{ONLY}\n{marked(hunk, ''.join(new[hunk[2] : hunk[3]]))}#endif{ONLY}\n")
    for gain in made.gains:
        line = base.count("\n", 0, gain.at)
        parts.append(_framed(base, gain, marked((line, line, 0, 0), gain.text), ""))
    return "\n".join(parts), spots


def pieces_inside_functions(source: str) -> list[tuple[str, str]]:
    """The pieces that no compiler reads, by their names."""
    return [(f"piece {n}", text) for held in UNREAD.findall(source) for n, text in pieces.MARK.findall(held)]


def has_code(source: str) -> bool:
    """Whether a source, or a fragment of one, holds anything for a compiler."""
    return bool(scan(UNREAD.sub("", source)).bare.strip())


@lru_cache(maxsize=4)
def changes(base: str, woven: str, source: bool = False) -> Changes:
    """Of a `source`, which is compiled in fragments, what uses a name that no header declares is none of the gains."""
    macros, spots, woven = _macros(base, woven)
    old, new = base.splitlines(keepends=True), woven.splitlines(keepends=True)
    theirs, ours = scan(base), scan(woven)
    said = [one.plain.splitlines() for one in (theirs, ours)]
    found, unread, others = [], [], []
    for a, b, c, d in hunks(old, new):
        held = _held((theirs, a, b), (ours, c, d))
        same = _same(said[0][a:b], said[1][c:d]) and (held is None or held.kind == "comment")
        if same and (a < b or not theirs.outside(theirs.lines[a])):
            unread.append((a, b, c, d))
            continue
        if a < b:
            others.append((min(c + 1, len(new)), f"{'changes' if c < d else 'removes'} `{_short(old[a])}`"))
            if d - c <= b - a:
                continue
            # As many lines as there were are the changed ones; the others came with them.
            a, c = b, c + b - a
        a, c, d = _slid(old, new, a, c, d)
        text, at = "".join(new[c:d]), theirs.lines[a]
        heads = theirs.heads(at)
        inside = next((head for head in heads if not SCOPE.fullmatch(head)), None)
        held = _held((theirs, a, a), (ours, c, d))
        if held is None and inside is not None and LABELS.fullmatch(text):
            unread.append((a, a, c, d))
            continue
        if held:
            inside = (theirs if held in theirs.directives + theirs.quiet else ours).text[held.start : held.end]
        if inside is not None or not _whole(text):
            others.append((c + 1, f"stands inside `{_short((inside or new[c]).partition(chr(10))[0])}`"))
        else:
            found.append(Gain(at, text, heads))
    hidden = _hidden(base, found) if source and found else []
    others += [(woven.count("\n", 0, woven.find(gain.text)) + 1, why) for gain, why in hidden]
    return Changes([gain for gain in found if gain not in dict(hidden)], macros, spots, unread, others)


def _held(*places: tuple[Scan, int, int]) -> Span | None:
    """What goes on where lines begin or end that differ: a macro, a raw string or a comment of several lines."""
    spans = (one.around(one.lines[line]) for one, first, last in places for line in (first, last))
    return next(filter(None, spans), None)


def _same(old: list[str], new: list[str]) -> bool:
    return [line.strip() for line in old if line.strip()] == [line.strip() for line in new if line.strip()]


def _hidden(base: str, found: list[Gain]) -> list[tuple[Gain, str]]:
    """The gains that use a function or type of the file that is static, or in a namespace without a name, and what."""
    there, texts = scan(base), [(gain, code_of(gain.text)) for gain in found]
    own = {
        name
        for name, (at, prefix) in _declared(base).items()
        if there.outside(at) and ("namespace" in there.heads(at) or re.search(r"\bstatic\b", prefix))
    }
    # What the branch declares itself is its own.
    names = own - {name for gain in found for name in _declared(gain.text)}
    return [
        (gain, f"calls `{name}`, which only this file sees, and would be compiled without it")
        for gain, text in texts
        for name in sorted(names)
        if re.search(rf"(?<![\w.])(?<!->)(?<!at::){name}\b", text)
    ]


def _declared(text: str) -> dict[str, tuple[int, str]]:
    """Name -> offset, and what stands before it, of what looks like the declaration of a function or type."""
    found: dict[str, tuple[int, str]] = {}
    code = scan(text).bare
    for name in re.finditer(r"\b(\w+)\s*\(|\b(?:struct|class)\s+(\w+)[^;(){}]*\{", code):
        prefix = code[max(code.rfind(mark, 0, name.start()) for mark in ";{}()") + 1 : name.start()]
        if name[2] or re.search(r"\w[\w>]*[\s&*]+$", prefix) and not re.search(r"\breturn\s+$", prefix):
            found.setdefault(name[1] or name[2], (name.start(), prefix))
    return found


def _slid(old: list[str], new: list[str], a: int, c: int, d: int) -> tuple[int, int, int]:
    """The same insertion where its braces are balanced: lines that repeat before or behind it leave a choice."""
    for step in (-1, 1):
        at, first, last = a, c, d
        while not _whole("".join(new[first:last])):
            if step < 0 and not (at and old[at - 1] == new[last - 1]):
                break
            if step > 0 and not (at < len(old) and last < len(new) and old[at] == new[first]):
                break
            at, first, last = at + step, first + step, last + step
        else:
            return at, first, last
    return a, c, d


def _short(line: str) -> str:
    return line.strip()[:60]


def _whole(text: str) -> bool:
    """Whether every brace that the text closes was opened in it, and the other way round."""
    braces = "".join(re.findall(r"[{}]", code_of(text)))
    while "{}" in braces:
        braces = braces.replace("{}", "")
    return not braces


def _places(base: str, block: Block, at: int) -> tuple[Place, ...]:
    """The function, or the line, behind and before an offset directly inside a block."""
    if not code_of(base)[at : block.close].strip():
        return (Place("last"),)
    inside = members(base, block)
    texts = [base[start:end] for start, end in inside]
    names = [known_by(text, True) if loose(block) else line_of(text) for text in texts]
    once = [name if names.count(name) == 1 else "" for name in names]
    return beside(once[: sum(end <= at for _, end in inside)], once[sum(start < at for start, _ in inside) :])


def _macros(base: str, woven: str) -> tuple[list[str], Spots, str]:
    """The entries that list macros gained, each macro with its own; their places; and the woven text without them."""
    parts: list[str] = []
    spots: Spots = {}
    for old in DEFINE.finditer(base):
        twins = [new for new in DEFINE.finditer(woven) if new[1] == old[1]]
        theirs, ours = (ENTRY.findall(macro[2]) for macro in (old, *(twins if len(twins) == 1 else [old])))
        gained = []
        for a, b, c, d in hunks(theirs, ours):
            if a < b:
                return parts, spots, woven
            names = [entry[2:-1] for entry in theirs]
            for entry in ours[c:d]:
                spots[old[1], entry[2:-1]] = beside(names[:a], names[a:])
                gained.append(entry)
        if gained:
            woven = woven.replace(twins[0][0], old[0], 1)
            # What autocast does with its lists names the operators of the entries.
            names = [re.split(r"[,.]", entry[2:-1])[0] for entry in gained]
            parts += [f"#include <ATen/ops/{name}_ops.h>{ONLY}\n" for name in names]
            parts.append(f"#define {old[1]}(_) {' '.join(gained)}\n")
    return parts, spots, woven


def _directives(text: str, found: list[Gain]) -> str:
    """The directives outside of functions, but for list macros, the guard, and macros that the pieces do not use."""
    there = scan(text)
    kept: list[str] = []
    words = set(re.findall(r"\w+", " ".join(gain.text for gain in found)))
    for directive in reversed(there.directives):
        line = text[directive.start : directive.end]
        macro = MACRO.fullmatch(line)
        if DEFINE.match(line) or "#pragma once" in line or (macro and macro[2] and macro[1] not in words):
            continue
        if there.outside(directive.start):
            kept.append(line)
            words |= set(re.findall(r"\w+", macro[2])) if macro else set()
    return "".join(reversed(kept))


def _framed(base: str, gain: Gain, text: str, only: str) -> str:
    """A piece inside the heads of its namespaces and blocks, with the `using` lines above it."""
    opening, closing = "", ""
    words = set(re.findall(r"\w+", gain.text))
    usings = [u for u in USING.finditer(base, 0, gain.at) if not u.lastindex or u[u.lastindex] in words]
    for depth, head in enumerate(gain.heads, 1):
        known = HEAD.fullmatch(head)
        head = 'extern "C"' if head == "extern" else head
        end = "" if known and depth == len(gain.heads) else only
        opening += f"{head} {{{end}\n"
        closing = f"}}{f' // {head}' if head.startswith('namespace') else ''}{end}\n{closing}"
        opening += "".join(
            f"{found[0].rstrip()}{only}\n" for found in usings if scan(base).heads(found.start()) == gain.heads[:depth]
        )
    return opening + text + closing
