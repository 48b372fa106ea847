"""The inverse of the Python weaver: what a file gained, nested in the definitions and lists that it went into."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from fork.cpp.difference import hunks
from fork.weave.edit import Spots
from fork.weave.file_kinds import beside
from fork.weave.source import (
    Collection,
    Definition,
    Entry,
    Source,
    assigned,
    collection_of,
    elements,
    known_by,
    moved,
    name_of,
    parsed,
    statements,
)

BODIES = ("body", "orelse", "finalbody")
INDENT = 4


class Changed(Exception):
    """A node is another than it was, so insertions alone do not give the new file."""


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The fragment, and for each of its pieces the neighbours beside which it stands."""
    try:
        inverse = _Inverse(parsed(base), parsed(woven))
        text = inverse.scope(inverse.old.tree.body, inverse.new.tree.body, "", 0)
    except (SyntaxError, Changed):
        return None
    return "".join(inverse.imports) + ("\n\n" if inverse.imports and text else "") + text, inverse.spots


class _Inverse:
    def __init__(self, old: Source, new: Source) -> None:
        self.old, self.new = old, new
        self.spots: Spots = {}
        self.imports: list[str] = []

    def scope(self, olds: list[ast.stmt], news: list[ast.stmt], scope: str, depth: int) -> str:
        """What a module, class or function gained, as the text of a fragment at this depth of nesting."""
        named = Counter(name for node in statements(olds) for name in {name_of(node), _one_line(node)})
        blocks = self._body(olds, news, scope, depth, named)
        return ("\n\n" if depth == 0 else "\n").join(blocks)

    def _body(
        self, olds: list[ast.stmt], news: list[ast.stmt], scope: str, depth: int, named: Counter[str]
    ) -> list[str]:
        blocks = []
        for a, b, c, d in hunks([ast.dump(node) for node in olds], [ast.dump(node) for node in news]):
            for old in olds[a:b]:
                twin = next((n for n in range(c, d) if _alike(old, news[n])), None)
                if twin is None:
                    raise Changed
                blocks += self._statements(news, c, twin, scope, depth, named)
                blocks += self._inside(old, news[twin], scope, depth, named)
                c = twin + 1
            blocks += self._statements(news, c, d, scope, depth, named)
        return blocks

    def _statements(
        self, news: list[ast.stmt], start: int, end: int, scope: str, depth: int, named: Counter[str]
    ) -> list[str]:
        """The statements that are new in a row, and beside which others they stand."""
        if not scope:
            imports = [node for node in news[start:end] if isinstance(node, ast.Import | ast.ImportFrom)]
            self.imports += [ast.unparse(node) + "\n" for node in imports]
        run = [node for node in news[start:end] if scope or not isinstance(node, ast.Import | ast.ImportFrom)]
        if not run:
            return []
        places = beside(*([_target(node, named) for node in near] for near in (news[:start][-1:], news[end : end + 1])))
        container = scope.rstrip(".") or "file"
        for node in run:
            self.spots[container, known_by(node)] = places
        by = depth * INDENT - run[0].col_offset
        first = self.new.first_line(run[0])
        text = self.new.reindented(first, self.new.after_line(run[-1]), by)
        return [moved(text, by)]

    def _inside(self, old: ast.stmt, new: ast.stmt, scope: str, depth: int, named: Counter[str]) -> list[str]:
        """What a statement gained that the base has too."""
        name, collection = name_of(new), collection_of(new)
        if isinstance(old, Definition) and isinstance(new, Definition):
            inner = self.scope(old.body, new.body, f"{scope}{name}.", depth + 1)
            return [f"{' ' * INDENT * depth}{_head(new)}\n{inner}"]
        if isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
            there = {ast.dump(alias) for alias in old.names}
            gained = [alias for alias in new.names if ast.dump(alias) not in there]
            module = "." * new.level + (new.module or "")
            self.imports += [f"from {module} import {', '.join(map(ast.unparse, gained))}\n"]
            return []
        theirs = collection_of(old)
        if collection is not None and theirs is not None:
            return [self._entries(theirs, collection, name, scope, depth)]
        blocks = []
        for field in BODIES:
            blocks += self._body(getattr(old, field, []), getattr(new, field, []), scope, depth, named)
        return blocks

    def _entries(self, old: Collection, new: Collection, name: str, scope: str, depth: int) -> str:
        """The list with its new entries alone. The weaver asks neither for its type nor for a call around it."""
        theirs, ours = elements(old), elements(new)
        keys = Counter(key for key, _, _ in theirs)
        called = [key if keys[key] == 1 else ast.unparse(first) for key, first, _ in theirs]
        lines = ""
        for a, b, c, d in hunks(_dumps(theirs), _dumps(ours)):
            if a < b:
                raise Changed
            for key, first, last in ours[c:d]:
                self.spots[scope + name, key] = beside(called[:a], called[a:])
                lines += self.new.on_lines(first, last, (depth + 1) * INDENT)
        opening, closing = "{}" if isinstance(new, ast.Dict | ast.Set) else "[]"
        margin, head = " " * INDENT * depth, name if name == "return" else f"{name} ="
        return f"{margin}{head} {opening}\n{lines}{margin}{closing}\n"


def _alike(old: ast.stmt, new: ast.stmt) -> bool:
    """Whether one statement can be the other with something put into it."""
    if type(old) is not type(new) or name_of(old) != name_of(new):
        return False
    if isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
        return (old.module, old.level) == (new.module, new.level) and _within(old.names, new.names)
    if isinstance(old, Definition) or (assigned(old) and collection_of(old) is not None):
        return True
    fields = [name for name in old._fields if name not in BODIES]
    return any(hasattr(old, field) for field in BODIES) and all(
        _text(getattr(old, name)) == _text(getattr(new, name)) for name in fields
    )


def _within(old: Sequence[ast.AST], new: Sequence[ast.AST]) -> bool:
    rest = iter(map(ast.dump, new))
    return all(node in rest for node in map(ast.dump, old))


def _text(value: object) -> str:
    nodes = value if isinstance(value, list) else [value]
    return repr([ast.dump(node) if isinstance(node, ast.AST) else node for node in nodes])


def _dumps(entries: list[tuple[str, Entry, Entry]]) -> list[str]:
    return [ast.dump(first) + ast.dump(last) for _, first, last in entries]


def _target(node: ast.stmt, named: Counter[str]) -> str:
    """What an anchor can call a statement that no other one is called."""
    return next((name for name in (name_of(node), _one_line(node)) if name and named[name] == 1), "")


def _one_line(node: ast.stmt) -> str:
    """The code of a statement that stands on one line."""
    return ast.unparse(node) if node.lineno == node.end_lineno else ""


def _head(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    arguments = [*node.args.posonlyargs, *node.args.args]
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{kind} {node.name}({', '.join(argument.arg for argument in arguments)}):"
