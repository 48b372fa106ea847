"""Which definitions of a C++ source a change can concern, by its words: those it changes, and those that name them."""

from __future__ import annotations

import re
from collections.abc import Collection

from fork.weave.cpp import DIRECTIVE, _closing, code_of
from fork.weave.cpp_inverse import SCOPE, without_comments
from fork.weave.difference import hunks

# A value of a type, whose functions may be called without a word: by `auto`, by a conversion, at the end of a scope.
TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:struct|class|union|enum|using|typedef|namespace)\b")
# What the language calls by itself.
IMPLICIT = {"begin", "end", "swap", "get"}
CALL = re.compile(r"[A-Z][A-Z0-9_]+\((?:[^()]|\([^()]*\))*\)")
NAMED = re.compile(r"(\w+)\s*(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?\s*\(")
BOUNDS = re.compile(r"\b[A-Z][A-Z0-9_]+\s*\([\d\s,]+\)(?=\s*\w)")
UNCLEAR = "#? "
KEYWORDS = {"const", "static", "inline", "typename", "struct", "class", "union", "enum", "operator", "using"}
WORD = re.compile(r"[A-Za-z_]\w*")


def concerned(before: str, after: str, others: Collection[str] = ()) -> set[str] | None:
    """The names of the definitions that differ, and of those that name such a one or one of `others`; None where that
    cannot be told.

    A compiler may translate an unchanged function in another way; this tells such differences from those that count.
    """
    old, new = _items(before), _items(after)
    found = set(others)
    for a, b, c, d in hunks(old, new):
        for item in (*old[a:b], *new[c:d]):
            names = _names(item)
            if names is None or item.startswith("#"):  # a header can ask for a macro, too
                return None
            found |= names
    rest = [(set(WORD.findall(item)), _names(item)) for item in map(_text, new)]
    while True:
        more = {name for words, names in rest if words & found for name in names or ()} - found
        if any(names is None for words, names in rest if words & found):
            return None
        if not more:
            return found
        found |= more


def defined(before: str, after: str) -> set[str] | None:
    """The words in the names of what a source defines, before a change or after it; None where that cannot be told.

    A function of a header has the same definition everywhere, by the language's rule. So a change of a source alone can
    concern it only where it is made of what the source defines: a template's instance for a type of the source.
    """
    old, new = _items(before), _items(after)
    changed = [item for a, b, c, d in hunks(old, new) for item in (*old[a:b], *new[c:d])]
    if any(item.startswith("#") and not re.match(r"#\s*include\b", item) for item in changed):
        return None  # a header may ask for the macro
    found: set[str] = set()
    for item in map(_text, (*old, *new)):
        names = _said(item)
        if names is None:
            return None
        found |= names
    return found - KEYWORDS


def _said(item: str) -> set[str] | None:
    """The words in the name of what an item defines, or more; None where nothing tells it."""
    if item.startswith(UNCLEAR):
        return None
    if item.startswith("#"):
        return set(WORD.findall(item)) if re.match(r"#\s*define\b", item) else set()
    whole = re.split(r"[{;]", _plain(item), maxsplit=1)[0]
    if "operator" in whole:
        return set(WORD.findall(whole))
    if TYPE.search(item):
        return set(WORD.findall(re.split(r"=|(?<!:):(?!:)", whole)[0]))
    found: set[str] = set()
    for head in (whole.rstrip(" ="), whole.partition("=")[0]):
        if calls := _calls(head):
            names = set().union(*calls)
            if not names:
                return None
            found |= names
        else:
            last = re.findall(r"(\w+)(?:\s*\[[^]]*\])*\s*$", head)
            found |= set(last if last and "(" not in head else WORD.findall(head))
    return found


def _items(text: str) -> list[str]:
    """The definitions, declarations and directives of a source, outside of and directly in its namespaces, in their
    order; what stands in namespaces begins with their heads, in a line of their own."""
    plain, code = without_comments(text), code_of(text)
    lines = DIRECTIVE.finditer(code)
    found = [(line.start(), " ".join(line[0].split())) for line in lines if "#line" not in line[0]]
    code = DIRECTIVE.sub(lambda line: re.sub(r"[^\n]", " ", line[0]), code)
    scopes: list[str] = []
    at = start = 0
    while brace := re.compile(r"[{};]").search(code, at):
        at, head = brace.end(), " ".join(code[start : brace.start()].split())
        if brace[0] == "}" and head:
            found += [(start, item) for item in _rest(plain[start : brace.start()])]
        if brace[0] == "}" or (brace[0] == "{" and SCOPE.fullmatch(head)):
            scopes = [*scopes, head] if brace[0] == "{" else scopes[:-1]
            start = at
            continue
        if brace[0] == "{":
            at = _closing(code, at, len(code)) + 1
            if at <= 0:
                break
            if _goes_on(head):
                continue
        # A directive above it is an item of its own.
        begin = start + len(code[start:at]) - len(code[start:at].lstrip())
        found.append((begin, "\n".join([*filter(None, [" ".join(scopes)]), " ".join(plain[begin:at].split())])))
        start = at
    if code[start:].strip():
        found += [(start, item) for item in _rest(plain[start:])]
    return [item for _, item in sorted(found)]


def _rest(text: str) -> list[str]:
    """What ends with neither a brace nor a semicolon: uses of macros, else one item of which nothing tells more."""
    plain = " ".join(DIRECTIVE.sub("", text).split())
    calls = CALL.findall(plain)
    return calls if "".join(calls) == plain.replace(") ", ")") else [f"{UNCLEAR}{plain}"]


def _goes_on(head: str) -> bool:
    """Whether what has this before its brace ends with a semicolon: a type or a variable, but no function."""
    head = _plain(head)
    outer = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", head))
    return "(" not in head or bool(re.search(r"=(?!=)", re.sub(r"operator\s*[^\w\s(]+", "", outer)))


def _plain(head: str) -> str:
    """A head without the arguments of its template, and without macros that name nothing, such as launch bounds."""
    while found := re.match(r"\s*template\s*<", head):
        depth, at = 1, found.end()
        while depth and at < len(head):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[at:]
    return BOUNDS.sub("", head)


def _calls(head: str) -> list[set[str]]:
    """What stands before each list of arguments of a head, since attributes have lists too; of a macro, its words."""
    found: list[set[str]] = []
    at = 0
    while call := NAMED.search(head, at):
        depth, at = 1, call.end()
        while depth and at < len(head):
            depth += {"(": 1, ")": -1}.get(head[at], 0)
            at += 1
        macro = re.fullmatch(r"[A-Z][A-Z0-9_]+", call[1])
        found.append(set(WORD.findall(head[call.end() : at])) if macro else {call[1]})
    return found


def _text(item: str) -> str:
    return item.rpartition("\n")[2]


def _names(item: str) -> set[str] | None:
    """What an item defines; None where it can change the meaning of others that do not name it."""
    item = _text(item)
    if item.startswith("#"):
        macro = re.match(r"#\s*define\s+(\w+)", item)
        return {macro[1]} if macro else None
    head = re.split(r"[{=;]", _plain(item), maxsplit=1)[0]
    if TYPE.search(item) or "operator" in head or "~" in head or re.search(r"\b(\w+)(?:<.*>)?::\1\s*\(", head):
        return None
    if calls := _calls(head):
        found = set().union(*calls)
        return None if found & IMPLICIT or not found else found
    last = re.search(r"(\w+)(?:\s*\[[^]]*\])*\s*$", head)
    return {last[1]} if last else None if item.strip("; }") else set()
