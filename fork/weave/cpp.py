"""Weaves a C++ fragment, whose namespaces, blocks and list macros repeat those of the base.

Includes that the base lacks are merged in their sorted place. `namespace X {`, a block such as
`TORCH_LIBRARY_IMPL(...) {` and a list macro that the base has too are containers. What the base
has already, and lines ending in `// fragment only`, are there for the fragment to compile on its
own, and stay behind.
"""

from __future__ import annotations

import os
import re

from fork.cpp.definitions import parts
from fork.cpp.scan import Block, code_of, scan
from fork.weave.edit import Edit, above_comments, line_start, next_line

INCLUDE = re.compile(r'^#include ([<"][^>"]+[>"])[^\n]*\n', re.MULTILINE)
DEFINE = re.compile(r"^#define (\w+)\(_\)((?:[^\n]*\\\n)*[^\n]*\n)", re.MULTILINE)
ENTRY = re.compile(r"\b_\((?:[^()]|\([^()]*\))*\)")
ONLY = re.compile(r"^[^\n]*// fragment only\n", re.MULTILINE)
HEAD = re.compile(r"namespace [\w:]+|[A-Z_]{4,}\([^(){};]*\)")


def weave(edit: Edit, fragment: str) -> None:
    fragment = ONLY.sub("", fragment)
    _includes(edit, fragment)
    for macro in DEFINE.finditer(fragment):
        _macro(edit, macro[1], macro[2])
    rest = list(scan(fragment).bare)
    blocks = named_blocks(fragment)
    while blocks:
        block, *blocks = blocks
        inner = [one for one in blocks if block.has(one.start)]
        if inner and not edit.has(block.head):  # The blocks inside of it have the anchors.
            rest[block.start : block.open], rest[block.close] = " " * (block.open - block.start), " "
            continue
        rest[block.start : block.close + 1] = " " * (block.close + 1 - block.start)
        blocks = blocks[len(inner) :]
        twins = [one for one in named_blocks(edit.base) if one.head == block.head]
        if len(twins) == 1:
            _content(edit, twins[0], fragment[block.open : block.close].strip("\n").rstrip() + "\n")
        else:
            edit.problem(f"container {block.head!r} found {len(twins)} times")
    if lost := re.search(r"\S", "".join(rest)):
        line = fragment.count("\n", 0, lost.start()) + 1
        edit.problem(f"line {line} of the fragment is in no block that has an anchor")


def named_blocks(text: str) -> list[Block]:
    """The containers of a text, each before those inside of it."""
    return [block for block in scan(text).blocks if HEAD.fullmatch(block.head)]


def loose(block: Block) -> bool:
    """Whether it is a namespace, whose members are set off by blank lines."""
    return block.head.startswith("namespace")


def _content(edit: Edit, block: Block, content: str) -> None:
    """Functions into a namespace, set off by blank lines; plain lines into any other block."""
    named = [(known_by(content, loose(block)), content)]
    gap = "\n" if loose(block) else ""
    for _, before, span in edit.placed(block.head, named, lambda target: _called(edit.base, block, target)):
        if span is None:
            close = line_start(edit.base, block.close)
            edit.insert(close, (content if edit.base[:close].endswith("\n\n") else gap + content) + gap)
        elif before:
            edit.insert(above_comments(edit.base, span[0], ("//",)), content + gap)
        else:
            at = next_line(edit.base, span[1] - 1)
            edit.insert(at, gap + content + (gap if edit.base[at : at + 1] != "\n" else ""))


def known_by(content: str, loose: bool) -> str:
    """The name of the first function of a namespace's piece, else the piece's first line."""
    named = re.search(r"(\w+)\s*\(", code_of(content)) if loose else None
    return named[1] if named else content.strip().partition("\n")[0].rstrip(";")


def _called(text: str, block: Block, target: str) -> list[tuple[int, int]]:
    """The declarations and definitions of a function directly inside the namespace, or the lines that say this."""
    if not loose(block):
        return [span for span in members(text, block) if line_of(text[slice(*span)]) == target]
    named = re.compile(rf"\b{re.escape(target)}\s*\(")
    code = code_of(text)
    return [span for span in members(text, block) if named.search(code[slice(*span)].partition("{")[0])]


def members(text: str, block: Block) -> list[tuple[int, int]]:
    """The declarations and blocks directly in a namespace, or the lines of any other block."""
    there = scan(text)
    if not loose(block):
        return [line.span() for line in re.compile(r"\S.*\n?").finditer(there.code, block.open, block.close)]
    inner = [(one.start, one.close + 1) for one in there.blocks if one.heads[:-1] == block.heads]
    own = [(part.start, part.end) for part in parts(there) if part.whole and tuple(part.scopes) == block.heads]
    return [span for span in sorted([*own, *inner]) if block.has(span[0])]


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
    theirs = [*INCLUDE.finditer(edit.base)]
    names = {include[1] for include in theirs}
    new = [ours[1] for ours in INCLUDE.finditer(fragment) if ours[1] not in names]
    if new and not theirs:
        edit.problem(f"no include stands in the base beside which {new[0]} could go")
        return
    gap = "\n"
    for name in new:
        near = [_nearness(edit.base, include, name) for include in theirs]
        kin = [include for include, value in zip(theirs, near) if value == max(near)]
        lower = [include for include in kin if include[1] < name]
        if "/" in name or max(near)[2]:
            edit.insert(lower[-1].end() if lower else kin[0].start(), f"#include {name}\n")
        else:  # The first of the system's headers, in a group of their own.
            edit.insert(kin[-1].end(), f"{gap}#include {name}\n")
            gap = ""


def _nearness(base: str, include: re.Match[str], name: str) -> tuple[int, int, bool]:
    """How many folders an include shares with a new one, on how few conditions it stands, and whether both have any."""
    folders = os.path.commonprefix([include[1].split("/")[:-1], name.split("/")[:-1]])
    return len(folders), -len(scan(base).conditions(include.start())), ("/" in include[1]) == ("/" in name)
