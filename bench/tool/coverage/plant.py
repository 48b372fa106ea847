"""Plants a change into every function of a C++ source: when it first runs, it says so on standard error."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fork.cpp.scan import scan

MARK = "planted"
# What a release has: its code stands behind the `#else`.
ABSENT = re.compile(r"[ \t]*#[ \t]*if[ \t]*!AT_\w+_ENABLED\(\)")
# Of `extern "C"` the literal is blank by then.
NAMESPACE = re.compile(r"(^|\s)(namespace\b[\w\s:\[\]]*|extern\s*)$")
# Not changed: functions that callers may inline, those of the GPU, which print nothing, and what is no function.
OTHER = re.compile(
    r"\b(template|constexpr|consteval|inline|struct|class|union|enum|requires|typedef|using|\w+_INLINE|__global__|__device__)\b"
)
ENDING = re.compile(r"\s*(?:(?:const|noexcept|override|final|&|&&|->[\w\s:<>,*&]+)\s*)*$")
NAMED = re.compile(r"([~\w:]+)\s*$")
OPERATOR = re.compile(r"\boperator\s*\S+\s*$")


@dataclass(frozen=True)
class Function:
    """A function that a source defines at the level of a namespace: its name, and the offset behind its `{`."""

    name: str
    body: int


def functions(text: str) -> list[Function]:
    """The functions of a source that are neither templates nor inline, in their order."""
    code = _plain(text)
    found: list[Function] = []
    at = start = 0
    while brace := re.compile(r"[{};]").search(code, at):
        at = brace.end()
        if brace[0] == "{":
            head = code[start : brace.start()].strip()
            if not NAMESPACE.search(head):
                if name := _defined(head):
                    found.append(Function(name, at))
                at = _closed(code, at)
        start = at
    return found


def plant(text: str, path: str) -> tuple[str, list[str]]:
    """The source with a change in each of its functions, and the lines that these print."""
    lines, parts, at = [], ["#include <cstdio>\n"], 0
    for number, function in enumerate(functions(text)):
        line = f"{MARK} {path} {number} {function.name}"
        parts += [text[at : function.body], _statement(line)]
        at = function.body
        lines.append(line)
    return "".join([*parts, text[at:]]), lines


def _statement(line: str) -> str:
    # `[[maybe_unused]]` leaves nothing for a warning to say.
    return f' [[maybe_unused]] static const bool planted_here = ::std::fputs("{line}\\n", stderr) >= 0;'


def _plain(text: str) -> str:
    """The text, offset for offset, without comments, literals, preprocessor lines, and what stands behind `#else`, or
    before it where a release is built with that."""
    there = scan(text)
    kept, at, depth, dead, absent = [], 0, 0, 0, 0
    for line in there.directives:
        part = there.bare[at : line.start]
        kept += [re.sub(r"[^\n]", " ", part) if dead else part, there.bare[line.start : line.end]]
        at = line.end
        if line.kind.startswith("if"):
            depth += 1
            if not dead and ABSENT.match(text, line.start):
                dead = absent = depth
        elif line.kind == "else" and dead == depth == absent:
            dead = absent = 0
        elif line.kind in ("else", "elif"):
            dead = dead or depth
        elif line.kind == "endif":
            dead = 0 if dead == depth else dead
            depth -= 1
    return "".join([*kept, there.bare[at:]])


def _defined(head: str) -> str:
    """The name of the function whose body follows this head; empty where none does."""
    if OTHER.search(head) or "(" not in head:
        return ""
    groups = _groups(head)
    ending = ENDING.match(head, groups[-1][1])
    if not ending or ending.end() != len(head):
        return ""
    before = head[: groups[-1][0]]
    if len(groups) > 1 and not head[groups[-2][1] : groups[-1][0]].strip():
        before = head[: groups[-2][0]]  # TORCH_IMPL_FUNC(name)(arguments)
        macro = NAMED.search(before)
        return head[slice(*groups[-2])].strip("()") if macro and macro[1].isupper() else ""
    name = NAMED.search(before)
    if not name or "=" in before or OPERATOR.search(before):
        return ""
    # A macro such as TORCH_LIBRARY(aten, m) has neither a type before it nor a class.
    return "" if before.strip() == name[1] and "::" not in name[1] else name[1]


def _groups(head: str) -> list[tuple[int, int]]:
    """Where the parentheses of a head that lie in no others open and close."""
    found, depth, opened = [], 0, 0
    for mark in re.finditer(r"[()]", head):
        if mark[0] == "(":
            opened = mark.start() if not depth else opened
            depth += 1
        else:
            depth -= 1
            if not depth:
                found.append((opened, mark.end()))
    return found or [(0, 0)]


def _closed(code: str, at: int) -> int:
    """The offset behind the brace that closes; the end where none does."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(code, at):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    return len(code)
