"""Registrations of a C++ source that a process can make only once: a copy of the source leaves them to the base."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fork.cpp.scan import closing, code_of, lines, scan, spliced

# What of a block, a macro or a variable is known to be made again: kernels, which take the place of the base's.
BLOCK = re.compile(r"^[ \t]*(TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\s*\([^()]*?(\w*)\s*\))\s*\{", re.MULTILINE)
FLAG = re.compile(r"^[ \t]*C10_DEFINE_(bool|int|int32|int64|double|string)\s*\(\s*(\w+)", re.MULTILINE)
CALL = re.compile(r"^[ \t]*(C10_REGISTER_\w+|REGISTER_ALLOCATOR|REGISTER_CONTEXT)\s*\(", re.MULTILINE)
OBJECT = re.compile(
    r"^[ \t]*(?:static\s+|const\s+)*"
    r"(?:[\w:]*Regist\w*(?:<[^;{}()]*>)?\s+\w+\s*(?=[({=])|auto\s+\w+\s*=\s*[\w:]*[rR]egist\w*)",
    re.MULTILINE,
)
# A constant that is filled by a list, such as one of registrations; and a lambda up to its body.
TABLE = re.compile(r"^[ \t]*(?:static\s+)?const\s+[\w:]+(?:<[^;{}()=]*>)?\s+\w+\s*(?=[={])", re.MULTILINE)
LAMBDA = re.compile(r"(?<![\w\])[])\[[\w\s&=,*:]*\]\s*(?:\([^{};]*\))?[\w\s]*(?:->[^{};()]*)?\{")
IMPL = re.compile(r"\bm\w*\s*\.\s*impl\w*\(\s*([^,;]+)")
NAME = re.compile(r"fork_left_(\d+)")
# What the preprocessor makes of a block of kernels, and of each registration there.
MADE = re.compile(r"\bTORCH_LIBRARY_IMPL_init_(\w+)_(\w+?)_\d+\s*\(\s*torch::Library\s*&\s*\w+\s*\)\s*\{")
NAMED = re.compile(r'\.\s*impl\w*\s*\([^";]*((?:"[^"]*"\s*)+)')


@dataclass(frozen=True)
class Registration:
    """Where it begins and ends, the words that it is known by, and what stands in its place."""

    start: int
    end: int
    head: str
    text: str


def left(text: str, others: str) -> tuple[str, list[tuple[int, str]]]:
    """The text without the registrations that the other text has too; the line and the head of each that was left.

    In the place of each stands a function `fork_left_N`, which nobody calls and which leads to what it would register.
    """
    there = Counter(found.head for found in _registrations(others))
    parts: list[tuple[int, int, str]] = []
    told: list[tuple[int, str]] = []
    for found in _registrations(text):
        if there[found.head] > 0:
            there[found.head] -= 1
            old = text[found.start : found.end]
            new = found.text.replace("fork_left_", f"fork_left_{len(told)}")
            told.append((text.count("\n", 0, found.start) + 1, found.head))
            # Every line keeps its number.
            parts.append((found.start, found.end, new + "\n" * (old.count("\n") - new.count("\n"))))
    return spliced(text, parts), told


def dropped(before: str, after: str, gained: Mapping[str, int] | None = None) -> list[str]:
    """The registrations that a text no longer has; none of a kernel that another text has `gained`."""
    gone = Counter(_heads(before)) - Counter(_heads(after))
    return [head for head in gone if (gained or {}).get(head, -1) < 0]


def gained(before: str, after: str) -> Counter[str]:
    """How many more kernels of each name a text registers now; less than none where they are fewer."""
    found = Counter(_kernels(after))
    found.subtract(_kernels(before))
    return found


def kernels(preprocessed: str) -> Counter[str]:
    """The kernels that a text registers behind its macros: each operator's name, and for which key."""
    found: Counter[str] = Counter()
    for block in MADE.finditer(preprocessed):
        body = preprocessed[block.end() : closing(preprocessed, block.end(), len(preprocessed))]
        names = ("".join(one.replace('"', "").split()) for one in NAMED.findall(body))
        found.update(f"`{name.removeprefix(f'{block[1]}::')}` for {block[2]}" for name in names)
    return found


def blocks_of_kernels(text: str) -> list[str]:
    """What the blocks say that register kernels, and the macros of the text; nothing where there is no such block."""
    there = scan(text)
    blocks = [block for block in BLOCK.finditer(there.code) if "_IMPL" in block[1]]
    said = [there.said(block.start(), closing(there.code, block.end(), len(there.code))) for block in blocks]
    return [*said, *macros(text)] if said else []


def macros(text: str) -> list[str]:
    """What a text defines for the preprocessor, and on which conditions."""
    there = scan(text)
    return [there.said(one.start, one.end) for one in there.directives if one.kind not in ("include", "pragma", "line")]


def altered(before: str, after: str) -> list[tuple[int, str]]:
    """The registrations that both texts have, and that say something else now, each with its line."""
    there = {(found.head, " ".join(lines(before[found.start : found.end]))) for found in _registrations(before)}
    heads = {head for head, _ in there}
    return [
        (after.count("\n", 0, found.start) + 1, found.head)
        for found in _registrations(after)
        if found.head in heads and (found.head, " ".join(lines(after[found.start : found.end]))) not in there
    ]


def alike(before: str, after: str) -> set[str]:
    """The registered objects and tables, by name, that both texts fill in the same way, but for what lambdas do."""
    (macros, old), (others, new) = _filled(before), _filled(after)
    return {name for name, said in new.items() if old.get(name) == said} if macros == others else set()


def _filled(text: str) -> tuple[list[str], dict[str, str]]:
    """The directives, and of each object or table what fills it; none whose text a condition divides."""
    text = re.sub(r"^#line .*\n", "", text, flags=re.MULTILINE)
    bare, made = scan(_without_bodies(text)), dict[str, list[str]]()
    for one in (one for pattern in (OBJECT, TABLE) for one in pattern.finditer(bare.code) if bare.outside(one.start())):
        made.setdefault(one[0].split()[-1], []).append(bare.said(one.start(), _statement(bare.code, one.end())))
    directives = [scan(text).said(one.start, one.end) for one in scan(text).directives]
    return directives, {name: said[0] for name, said in made.items() if len(said) == 1 and "#if" not in said[0]}


def _without_bodies(text: str) -> str:
    """A text without what its lambdas do, but for those of macros."""
    code, bodies, at = scan(text).shape, list[tuple[int, int, str]](), 0
    while found := LAMBDA.search(code, at):
        at = max(closing(code, found.end(), len(code)), found.end())
        bodies.append((found.end(), at, ""))
    return spliced(text, bodies)


def object_of(head: str) -> str:
    """What a registration names its object."""
    found = OBJECT.match(head)
    return found[0].split()[-1] if found else ""


def _heads(text: str) -> Iterator[str]:
    """The words of each kernel and each registration. Those of the base stay that a text lacks."""
    yield from _kernels(text)
    yield from (found.head for found in _registrations(text))


def _kernels(text: str) -> Iterator[str]:
    code = code_of(text)
    for block in BLOCK.finditer(code):
        close = closing(code, block.end(), len(code))
        head = " ".join(text[block.start(1) : block.end(1)].split())
        yield from (f"{head}: {kernel[1]}" for kernel in IMPL.finditer(text, block.end(), close))


def _registrations(text: str) -> Iterator[Registration]:
    code = code_of(text)
    found = [*_blocks(text, code), *_flags(text, code), *_statements(text, code)]
    return iter(sorted(found, key=lambda one: one.start))


def _blocks(text: str, code: str) -> Iterator[Registration]:
    for block in BLOCK.finditer(code):
        close = closing(code, block.end(), len(code))
        body = code[block.end() : close]
        if close < 0 or ("_IMPL" in block[1] and not re.search(r"\bm\w*\s*\.\s*fallback\s*\(", body)):
            continue
        said = text[block.end() - 1 : close + 1]
        instead = f"[[gnu::used]] static void fork_left_(::torch::Library& {block[2] or 'm'}) {said}"
        head = " ".join(text[block.start(1) : block.end(1)].split())
        yield Registration(block.start(1), close + 1, head, instead)


def _flags(text: str, code: str) -> Iterator[Registration]:
    for flag in FLAG.finditer(code):
        end = _behind(code, flag.end())
        head = f"C10_DEFINE_{flag[1]}({flag[2]})"
        # Its words stay in the function, so that another default is seen.
        said = " ".join(text[flag.end() : end].rstrip("; \n").removesuffix(")").strip(", \n").split())
        instead = f"C10_DECLARE_{flag[1]}({flag[2]}); [[gnu::used]] static auto fork_left_() {{ return ({said}); }}"
        yield Registration(flag.start(), end, head, instead)


def _statements(text: str, code: str) -> Iterator[Registration]:
    objects = [found for found in OBJECT.finditer(code) if not _is_function(code, found.end())]
    calls = [(found, _behind(code, found.end())) for found in CALL.finditer(code)]
    for found, end in [*calls, *((found, _statement(code, found.end())) for found in objects)]:
        if scan(text).outside(found.start()):
            said = text[found.start() : end].strip().rstrip(";")
            if said.startswith("REGISTER_ALLOCATOR"):  # It opens a namespace, which no function can hold.
                said = "(void)(" + said.partition(",")[2].removesuffix(")").strip() + ")"
            head = " ".join(_without_bodies(said).split())[:60]
            yield Registration(found.start(), end, head, f"[[gnu::used]] static void fork_left_() {{ {said}; }}")


def _is_function(code: str, at: int) -> bool:
    """Whether what has its name before `at` is a function, whose body stands behind its arguments."""
    behind = _behind(code, at + 1) if code[at : at + 1] == "(" else at
    return behind > at and bool(re.compile(r"[\w\s]*\{").match(code, behind)) and code[behind - 1] == ")"


def _behind(code: str, at: int) -> int:
    """Behind the bracket that closes the one before `at`, and behind the semicolon if one follows."""
    behind = closing(code, at, len(code), "()") + 1 or len(code)
    rest = re.compile(r"\s*;").match(code, behind)
    return rest.end() if rest else behind


def _statement(code: str, at: int) -> int:
    """Behind the semicolon that ends a statement."""
    depth = 0
    for sign in re.finditer(r"[(){};]", code[at:]):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(sign[0], 0)
        if depth <= 0 and sign[0] == ";":
            return at + sign.end()
    return len(code)
