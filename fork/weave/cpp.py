"""Weaves a C++ fragment, whose namespaces, blocks and list macros repeat those of the base.

Includes that the base lacks are merged in their sorted place. `namespace X {`, a block such as
`TORCH_LIBRARY_IMPL(...) {` and a list macro that the base has too are containers. What the base
has already, and lines ending in `// fragment only`, are there for the fragment to compile on its
own, and stay behind.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fork.cpp.scan import closing, code_of, scan
from fork.weave.edit import Edit, above_comments, line_start, next_line

INCLUDE = re.compile(r'^#include ([<"][^>"]+[>"])[^\n]*\n', re.MULTILINE)
DEFINE = re.compile(r"^#define (\w+)\(_\)((?:[^\n]*\\\n)*[^\n]*\n)", re.MULTILINE)
ENTRY = re.compile(r"\b_\((?:[^()]|\([^()]*\))*\)")
ONLY = re.compile(r"^[^\n]*// fragment only\n", re.MULTILINE)
HEAD = re.compile(r"(namespace [\w:]+|[A-Z_]{4,}\([^(){};]*\))\s*\{")


@dataclass(frozen=True)
class Block:
    """`HEAD { ... }`; start is HEAD's, open the offset behind the `{`, close that of the `}`."""

    head: str
    start: int
    open: int
    close: int

    @property
    def loose(self) -> bool:
        """A namespace, whose members are set off by blank lines."""
        return self.head.startswith("namespace")


def weave(edit: Edit, fragment: str) -> None:
    fragment = ONLY.sub("", fragment)
    base = code_of(edit.base)
    _includes(edit, fragment)
    for macro in DEFINE.finditer(fragment):
        _macro(edit, macro[1], macro[2])
    _scope(edit, base, fragment, 0, len(fragment))


def _blocks(code: str, start: int, end: int) -> list[Block]:
    """The containers of a range that do not lie in one another."""
    blocks: list[Block] = []
    at = start
    while found := HEAD.search(code, at, end):
        close = closing(code, found.end(), end)
        if close < 0:
            return blocks
        if not code[line_start(code, found.start()) : found.start()].strip():
            head = re.sub(r"\s+", " ", found[1])
            blocks.append(Block(head, found.start(), found.end(), close))
            at = close
        else:
            at = found.end()
    return blocks


def named_blocks(code: str) -> list[Block]:
    """The containers of a text, those inside of others too, the outer ones first."""
    found = _blocks(code, 0, len(code))
    for block in found:
        found += _blocks(code, block.open, block.close)
    return found


def _scope(edit: Edit, base: str, fragment: str, start: int, end: int) -> None:
    """Descends to the fragment's blocks that have an anchor; those hold what is to be inserted."""
    code = code_of(fragment)
    blocks = _blocks(code, start, end)
    lost = _outside(fragment, blocks, start, end)
    if lost is not None:
        edit.problem(f"line {fragment.count(chr(10), 0, lost) + 1} of the fragment is in no block that has an anchor")
    for block in blocks:
        if not edit.has(block.head) and _blocks(code, block.open, block.close):
            _scope(edit, base, fragment, block.open, block.close)
            continue
        twins = [b for b in named_blocks(base) if b.head == block.head]
        if len(twins) != 1:
            edit.problem(f"container {block.head!r} found {len(twins)} times")
            continue
        content = fragment[block.open : block.close].strip("\n")
        _content(edit, base, twins[0], content.rstrip() + "\n")


def _outside(fragment: str, blocks: list[Block], start: int, end: int) -> int | None:
    """Where code of a range stands that is in none of its blocks, and no preprocessor's."""
    rest = list(scan(fragment).bare[start:end])
    for block in blocks:
        rest[block.start - start : block.close + 1 - start] = " " * (block.close + 1 - block.start)
    at = start
    for line in "".join(rest).splitlines(keepends=True):
        if line.strip():
            return at + len(line) - len(line.lstrip())
        at += len(line)
    return None


def _content(edit: Edit, base: str, block: Block, content: str) -> None:
    """Functions into a namespace, set off by blank lines; plain lines into any other block."""
    loose = block.loose
    named = [(known_by(content, loose), content)]
    gap = "\n" if loose else ""
    for _, before, span in edit.placed(block.head, named, lambda target: _called(base, edit.base, block, target)):
        if span is None:
            close = line_start(base, block.close)
            blank = edit.base[:close].endswith("\n\n")
            edit.insert(close, (content + gap) if blank or not loose else gap + content + gap)
        elif before:
            edit.insert(above_comments(edit.base, span[0], ("//",)), content + gap)
        else:
            at = next_line(edit.base, span[1] - 1)
            close = loose and edit.base[at : at + 1] != "\n"
            edit.insert(at, gap + content + (gap if close else ""))


def known_by(content: str, loose: bool) -> str:
    """The name of the first function of a namespace's piece, else the piece's first line."""
    named = re.search(r"(\w+)\s*\(", code_of(content)) if loose else None
    return named[1] if named else content.strip().partition("\n")[0].rstrip(";")


def _called(code: str, text: str, block: Block, target: str) -> list[tuple[int, int]]:
    """The declarations and definitions of a function directly inside the namespace, or the lines that say this."""
    if not block.loose:
        return [span for span in members(text, block) if line_of(text[slice(*span)]) == target]
    named = re.compile(rf"\b{re.escape(target)}\s*\(")
    return [span for span in members(code, block) if named.search(code[slice(*span)].partition("{")[0])]


def members(code: str, block: Block) -> list[tuple[int, int]]:
    """The declarations of a namespace, or the lines of any other block."""
    spans, depth, start = [], 0, block.open
    for mark in re.finditer(r"[{};]" if block.loose else r"\n", code[block.open : block.close]):
        end = block.open + mark.end()
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if not depth:
            if code[start:end].strip():
                spans.append((start + len(code[start:end]) - len(code[start:end].lstrip()), end))
            start = end
    return spans


def line_of(text: str) -> str:
    return re.sub(r"\s+", " ", text.strip().rstrip(";"))


def _macro(edit: Edit, name: str, entries: str) -> None:
    """Adds `_(entry)` lines to a list macro, with the backslash where the others have it."""
    twins = [m for m in DEFINE.finditer(edit.base) if m[1] == name]
    if lost := ENTRY.sub("", entries).replace("\\", "").strip():
        edit.problem(f"the fragment has {lost!r} in {name}, where only entries such as _(name) can stand")
    if len(twins) != 1:
        edit.problem(f"list macro {name} found {len(twins)} times")
        return
    start, end = twins[0].start(2), twins[0].end(2)
    lines = list(re.finditer(r"([^\n]*)\n", edit.base[start:end]))

    def named(target: str) -> list[re.Match[str]]:
        return [m for m in lines if m[1].rstrip("\\ ").strip() == f"_({target})"]

    for run, before, beside in edit.placed(name, [(entry[2:-1], entry) for entry in ENTRY.findall(entries)], named):
        beside = beside or lines[-1]
        for entry in run:
            line = f"  {entry}"
            if beside[1].endswith("\\"):
                line = f"{line:<{len(beside[1]) - 1}}\\"
            elif not before:
                edit.insert(start + beside.end(1), f" \\\n{line}")
                continue
            edit.insert(start + (beside.start() if before else beside.end()), line + "\n")


def _includes(edit: Edit, fragment: str) -> None:
    theirs = list(INCLUDE.finditer(edit.base))
    names = {include[1] for include in theirs}
    new = [ours[1] for ours in INCLUDE.finditer(fragment) if ours[1] not in names]
    if new and not theirs:
        edit.problem(f"no include stands in the base beside which {new[0]} could go")
        return
    group = False
    for name in new:
        kin, begun = _beside(edit.base, theirs, name)
        lower = [include for include in kin if include[1] < name]
        if begun:
            at = lower[-1].end() if lower else kin[0].start()
            edit.insert(at, f"#include {name}\n")
        else:
            edit.insert(kin[-1].end(), f"{'' if group else chr(10)}#include {name}\n")
            group = True


def _beside(base: str, theirs: list[re.Match[str]], name: str) -> tuple[list[re.Match[str]], bool]:
    """The includes that a new one belongs to, and whether they are its kind already."""
    if "/" not in name:
        depths = [len(scan(base).conditions(include.start())) for include in theirs]
        plain = [include for include, depth in zip(theirs, depths) if depth == min(depths)]
        system = [include for include in plain if "/" not in include[1]]
        return (system, True) if system else (plain[-1:], False)
    depth = max(_common_folders(include[1], name) for include in theirs)
    return [include for include in theirs if _common_folders(include[1], name) == depth], True


def _common_folders(one: str, other: str) -> int:
    return len(os.path.commonprefix([one.split("/")[:-1], other.split("/")[:-1]]))
