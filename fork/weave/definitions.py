"""Which definitions of a C++ source a change can concern, by its words: those it changes, and those that name them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from fork.weave.cpp import DIRECTIVE, _closing, code_of
from fork.weave.cpp_inverse import SCOPE, without_comments

# A value of a type, whose functions may be called without a word: by `auto`, by a conversion, at the end of a scope.
TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:struct|class|union|enum|using|typedef|namespace)\b")
# What the language calls by itself.
IMPLICIT = {"begin", "end", "swap", "get"}
WORD = re.compile(r"[A-Za-z_]\w*")


def concerned(before: str, after: str, others: Collection[str] = ()) -> set[str] | None:
    """The names of the definitions that differ, and of those that name such a one or one of `others`; None where that
    cannot be told.

    A compiler may translate an unchanged function in another way; this tells such differences from those that count.
    """
    old, new = Counter(_items(before)), Counter(_items(after))
    found = set(others)
    for item in [*(new - old), *(old - new)]:
        names = _names(item)
        if names is None or item.startswith("#"):  # a header can ask for a macro, too
            return None
        found |= names
    rest = [(set(WORD.findall(item)), _names(item)) for item in new]
    while True:
        more = {name for words, names in rest if words & found for name in names or ()} - found
        if any(names is None for words, names in rest if words & found):
            return None
        if not more:
            return found
        found |= more


def _items(text: str) -> list[str]:
    """The definitions, declarations and directives of a source, outside of and directly in its namespaces."""
    plain, code = without_comments(text), code_of(text)
    items = [" ".join(line[0].split()) for line in DIRECTIVE.finditer(code) if "#line" not in line[0]]
    code = DIRECTIVE.sub(lambda line: re.sub(r"[^\n]", " ", line[0]), code)
    at = start = 0
    while found := re.compile(r"[{};]").search(code, at):
        at = found.end()
        if found[0] == "{" and not SCOPE.fullmatch(" ".join(code[start : found.start()].split())):
            at = _closing(code, at, len(code)) + 1
            if at <= 0:
                break
            if _goes_on(code[start : found.start()]):
                continue
        elif found[0] != ";":
            start = at
            continue
        items.append(" ".join(plain[start:at].split()))
        start = at
    return items


def _goes_on(head: str) -> bool:
    """Whether what has this before its brace ends with a semicolon: a type or a variable, but no function."""
    outer = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", head))
    return "(" not in head or bool(re.search(r"=(?!=)", outer.replace("operator=", "")))


def _names(item: str) -> set[str] | None:
    """What an item defines; None where it can change the meaning of others that do not name it."""
    if item.startswith("#"):
        macro = re.match(r"#\s*define\s+(\w+)", item)
        return {macro[1]} if macro else None
    head = re.split(r"[{=;]", item, maxsplit=1)[0]
    if TYPE.search(item) or "operator" in head or "~" in head or re.search(r"\b(\w+)(?:<.*>)?::\1\s*\(", head):
        return None
    called = re.search(r"(\w+)\s*\(", head)
    if called and re.fullmatch(r"[A-Z][A-Z0-9_]+", called[1]):
        inside = head[called.end() :].partition(")")[0]
        return set(WORD.findall(inside)) or None
    if called and called[1] in IMPLICIT:
        return None
    last = called or re.search(r"(\w+)(?:\s*\[[^]]*\])*\s*$", head)
    return {last[1]} if last else None if item.strip("; }") else set()
