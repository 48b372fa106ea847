"""Which definitions of a C++ source a change can concern, by its words: those it changes, and those that name them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fork.cpp.difference import hunks
from fork.cpp.scan import FRONT, SCOPE, Scan, closing, scan

# A value of a type, whose functions may be called without a word: by `auto`, by a conversion, at the end of a scope.
TYPE = re.compile(
    r"^(?:struct|class|union|enum)\b|\b(?:struct|class|union|enum)\b[^(){};=]*\{|\b(?:using|typedef|namespace)\b"
)
CLASS = re.compile(r"\b(?:struct|class|union)\b[^()]*$")
# A function of which the compiler may make a type or a constant; and what is no function.
MADE_OF = re.compile(r"#|\b(?:constexpr|consteval|auto|decltype)\b")
# What the language calls by itself.
IMPLICIT = {"begin", "end", "swap", "get"}
CALL = re.compile(r"[A-Z][A-Z0-9_]+\((?:[^()]|\([^()]*\))*\)")
NAMED = re.compile(r"(\w+)\s*(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?\s*\(")
BOUNDS = re.compile(r"\b[A-Z][A-Z0-9_]+\s*\([\d\s,]+\)(?=\s*\w)")
UNCLEAR = "#? "
# It defines nothing; an alias does.
NOTHING = re.compile(r"using\b[^=]*;|C10_DIAGNOSTIC_\w+\([^()]*\)$")
# The last word of a head, but for that behind an arrow, which is a type's.
DECLARED = re.compile(r"(?:->[^()]*|\b(\w+)(?:\s*\[[^]]*\])*\s*[{=;]?)$")
QUALIFIERS = {"const", "noexcept", "override", "final", "try"}
KEYWORDS = {"const", "static", "inline", "typename", "struct", "class", "union", "enum", "operator", "using"}
KEYWORDS |= {"void", "bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "auto"}
WORD = re.compile(r"[A-Za-z_]\w*")
ACCESS = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
# A member that code uses without its name, or of which an object or a table is made; and a function's name.
QUIET_MEMBER = re.compile(
    r"\b(?:virtual|override|final|operator|friend|using|typedef|template|auto|decltype|struct|class|enum|union)\b"
    r"|[~#]|\)[\w\s]*="
)
FUNCTION = re.compile(r"[\w:&*<>,\s]*?[\s&*>](\w+)\s*\([^{}]*?\)[\w\s&]*(?:;|\{.*\}$)")
MoreOf = Callable[[str, bool], set[str] | None]


def concerned(
    before: str, after: str, others: Collection[str] = (), more_of: MoreOf = lambda item, added: None
) -> set[str] | None:
    """The names of the definitions that differ, and of those that name such a one or one of `others`; None where that
    cannot be told.

    A compiler may translate an unchanged function in another way; this tells such differences from those that count.
    `more_of` gives the names of an item, perhaps one that was added, whose own text does not tell whom it concerns.
    """
    old, new = _items(before), _items(after)
    found = set(others)
    added: set[int] = set()

    def names_of(item: str, fresh: bool) -> set[str] | None:
        # A header can ask for a macro, too.
        names = None if item.startswith("#") else _names(item)
        return names if names is not None else more_of(_text(item), fresh)

    same: set[int] = set()
    for a, b, c, d in hunks(old, new):
        added |= {*range(c, d)} if a == b else set()
        if b - a == d - c == 1 and (inner := _members(_text(old[a]), _text(new[c]))) is not None:
            found |= inner
            same.add(c)
            continue
        for item in (*old[a:b], *new[c:d]):
            names = names_of(item, a == b)
            if names is None:
                return None
            found |= names
    rest = [
        (set(WORD.findall(_text(item))), names_of(item, True) if n in added else _names(item))
        for n, item in enumerate(new)
        if n not in same
    ]
    while True:
        more = {name for words, names in rest if words & found for name in names or ()} - found
        if any(names is None for words, names in rest if words & found):
            return None
        if not more:
            return found
        found |= more


def _members(before: str, after: str) -> set[str] | None:
    """The functions by whose names alone code can use what differs in a class, and the values that an enumeration has
    beside those of before; None where objects, tables or what the language calls by itself may differ."""
    old, new = (re.fullmatch(r"([^{]*)\{(.*)\};?", item) for item in (before, after))
    if not old or not new or old[1] != new[1] or not TYPE.match(_plain(old[1]).lstrip()):
        return None
    if re.match(r"enum\b", old[1]):
        values = [[value.strip() for value in one[2].split(",") if value.strip()] for one in (old, new)]
        return set(values[1][len(values[0]) :]) if values[1][: len(values[0])] == values[0] else None
    owner = gained(f"{old[1]}{{}};")
    lists = [[ACCESS.sub("", item) for item in _items(one[2])] for one in (old, new)]
    differing = [item for a, b, c, d in hunks(*lists) for item in (*lists[0][a:b], *lists[1][c:d])]
    found: set[str] = set()
    while differing:
        for item in differing:
            name = None if QUIET_MEMBER.search(item.partition("{")[0]) else FUNCTION.match(item)
            if name is None or name[1] in owner | IMPLICIT:
                return None
            found.add(name[1])
        known = {item for item in lists[1] if (name := FUNCTION.match(item)) and name[1] in found}
        differing = [item for item in lists[1] if item not in known and found & set(WORD.findall(item))]
    return found


def only_bodies(before: str, after: str) -> bool:
    """Whether nothing differs but what functions do when they are called, of which no type and no constant is made."""
    old, new = _items(before), _items(after)
    for a, b, c, d in hunks(old, new):
        if b - a != d - c or not all(map(_differ_in_bodies, old[a:b], new[c:d])):
            return False
    return True


def _differ_in_bodies(before: str, after: str) -> bool:
    """Whether two items are one function, or a class whose functions do something else."""
    (head, _, old), (other, _, new) = (_text(item).partition("{") for item in (before, after))
    if CLASS.search(head) and head == other:
        (old, _, end), (new, _, other_end) = old.rpartition("}"), new.rpartition("}")
        return end == other_end and only_bodies(old, new)
    return head == other and not goes_on(head) and not MADE_OF.search(head)


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
        return set(WORD.findall(item)[1:]) if re.match(r"#\s*define\b", item) else set()
    if NOTHING.match(item):
        return set()
    whole = re.split(r"[{;]", _plain(item), maxsplit=1)[0]
    if "operator" in whole:
        return set(WORD.findall(whole))
    if TYPE.search(_head(item)):
        return set(WORD.findall(re.split(r"=|(?<!:):(?!:)", whole)[0]))
    found: set[str] = set()
    for head in (whole.rstrip(" ="), whole.partition("=")[0]):
        names = _declared(head)
        if not names and "(" in head:
            return None
        found |= names or set(WORD.findall(head))
    return found


def _declared(head: str) -> set[str]:
    """What a head declares: what has a list of arguments there, and the word at its end."""
    last = DECLARED.search(head)
    return set().union(*_calls(head), {last[1]} - QUALIFIERS if last and last[1] else ())


def _items(text: str) -> list[str]:
    """The definitions, declarations and directives of a source, outside of and directly in its namespaces, in their
    order; what stands in namespaces begins with their heads, in a line of their own."""
    there = scan(text)
    lines = [(line.start, there.said(line.start, line.end)) for line in there.directives]
    found = [(start, line) for start, line in lines if "#line" not in line]
    for part in parts(there):
        # A directive above it is an item of its own.
        said = [" ".join(part.scopes)] if part.scopes else []
        whole = [(part.start, "\n".join([*said, there.said(part.start, part.end)]))]
        found += whole if part.whole else _rest(there, part.start, part.end)
    return [item for _, item in sorted(found)]


@dataclass(frozen=True)
class Part:
    """A definition, declaration or statement of a source, or, where it is not `whole`, what stands between two that
    ends with neither a brace nor a semicolon; and the heads of the namespaces and blocks in which it stands."""

    start: int
    end: int
    scopes: list[str]
    whole: bool = True


def parts(there: Scan) -> Iterator[Part]:
    """Those outside of and directly in namespaces and blocks, in their order."""
    code, scopes, at, start = there.shape, list[str](), 0, 0
    while brace := re.compile(r"[{};]").search(code, at):
        if brace[0] == "{" and (front := FRONT.match(code[start : brace.start()])):
            yield Part(start, start + front.end(), scopes, False)
            start += front.end()
        at, head = brace.end(), " ".join(code[start : brace.start()].split())
        if brace[0] == "}" and head:
            yield Part(start, brace.start(), scopes, False)
        if brace[0] == "}" or (brace[0] == "{" and SCOPE.fullmatch(head)):
            scopes = [*scopes, head] if brace[0] == "{" else scopes[:-1]
            start = at
            continue
        if brace[0] == "{":
            at = closing(code, at, len(code)) + 1
            if at <= 0:
                break
            if goes_on(head):
                continue
        yield Part(start + len(code[start:at]) - len(code[start:at].lstrip()), at, scopes)
        start = at
    if code[start:].strip():
        yield Part(start, len(code), scopes, False)


def _rest(there: Scan, start: int, end: int) -> list[tuple[int, str]]:
    """What ends with neither a brace nor a semicolon: uses of macros, else one item of which nothing tells more."""
    start += len(there.bare[start:end]) - len(there.bare[start:end].lstrip())
    calls = list(CALL.finditer(there.bare, start, end))
    if CALL.sub("", there.bare[start:end]).strip():
        return [(start, f"{UNCLEAR}{there.said(start, end)}")]
    return [(call.start(), there.said(*call.span())) for call in calls]


def goes_on(head: str) -> bool:
    """Whether what has this before its brace ends with a semicolon: a type or a variable, but no function."""
    head = _plain(head)
    outer = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", head))
    return "(" not in head or bool(re.search(r"(?<![=!<>])=(?!=)", re.sub(r"operator\s*[^\w\s(]+", "", outer)))


def _head(item: str) -> str:
    """What an item has before its body or its value, and the sign that begins it."""
    head = re.match(r"(?:[=!<>]=|[^{=;])*[{=;]?", _plain(item).lstrip())
    assert head
    return head[0]


def _plain(head: str) -> str:
    """A head without the arguments of its template, and without macros that name nothing, such as launch bounds."""
    while found := re.match(r"\s*template\s*<", head):
        close = closing(head, found.end(), len(head), "<>")
        head = head[close + 1 :] if close >= 0 else ""
    return BOUNDS.sub("", head)


def _calls(head: str) -> list[set[str]]:
    """What stands before each list of arguments of a head, since attributes have lists too; of a macro, its words. A
    function can be named as a macro is."""
    found: list[set[str]] = []
    at = 0
    while call := NAMED.search(head, at):
        at = closing(head, call.end(), len(head), "()") + 1 or len(head)
        alone = not head[: call.start()].strip()
        function = not alone and re.fullmatch(r"[\s\w{=;]*", head[at:])
        macro = alone or re.fullmatch(r"[A-Z][A-Z0-9_]+", call[1])
        words = set(WORD.findall(head[call.end() : at])) - {"true", "false"} if macro else set[str]()
        found.append(words | ({call[1]} if function or not macro else set()))
    return found


def _text(item: str) -> str:
    return item.rpartition("\n")[2]


def gained(item: str) -> set[str]:
    """The names by which alone code can use a type or an alias that is new; none where it can be used without."""
    head = re.split(r"[{;=]", item, maxsplit=1)[0]
    if re.search(r"\b(?:friend|operator)\b|template\s*<\s*>|\bnamespace\b(?! \w+ =)", item):
        return set()
    if alias := re.match(r"(?:template\s*<.*>\s*)?using (\w+) =|typedef .*?(\w+);$", item):
        return {alias[1] or alias[2]}
    kind = re.match(r"(enum(?: class| struct)?|struct|class|union)\b", _plain(head).lstrip())
    words = WORD.findall(re.split(r"(?<!:):(?!:)", _plain(head))[0])
    words = [word for word in words if word != "final"]
    if kind is None or len(words) < 2 or "<" in _plain(head).partition(":")[0]:
        return set()
    # What an enumeration without a scope lists is known outside of it.
    return {words[-1], *(WORD.findall(item) if kind[1] == "enum" else ())} - {"enum"}


def _names(item: str) -> set[str] | None:
    """What an item defines; None where it can change the meaning of others that do not name it."""
    item = _text(item)
    if item.startswith("#"):
        macro = re.match(r"#\s*define\s+(\w+)", item)
        return {macro[1]} if macro else None
    head = _head(item)
    if TYPE.search(head) or "operator" in head or "~" in head or re.search(r"\b(\w+)(?:<.*>)?::\1\s*\(", head):
        return None
    found = _declared(head)
    return None if found & IMPLICIT or not (found or not item.strip("; }")) else found
