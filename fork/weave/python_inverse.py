"""The inverse of the Python weaver: what a file gained, nested in the definitions and lists that it went into."""

from __future__ import annotations

import ast
from collections import Counter

from fork.cpp.difference import hunks
from fork.weave.edit import Spots
from fork.weave.file_kinds import beside
from fork.weave.source import (
    BODIES,
    Collection,
    Definition,
    Entry,
    Source,
    collection_of,
    elements,
    known_by,
    moved,
    name_of,
    parsed,
    statements,
)

INDENT = " " * 4


def unweave(base: str, woven: str) -> tuple[str, Spots] | None:
    """The fragment, and for each of its pieces the neighbours beside which it stands; where more than insertions gives
    the woven text, it is found out when the fragment is woven."""
    try:
        inverse = _Inverse(parsed(base), parsed(woven))
    except SyntaxError:
        return None
    text = inverse.scope(inverse.old.tree.body, inverse.new.tree.body, "")
    return "".join(inverse.imports) + ("\n\n" if inverse.imports and text else "") + text, inverse.spots


class _Inverse:
    def __init__(self, old: Source, new: Source) -> None:
        self.old, self.new = old, new
        self.spots: Spots = {}
        self.imports: list[str] = []
        # For each definition that holds others, as in `Class.method.`, how often each statement's name stands there.
        self.named: dict[str, Counter[str]] = {}

    def scope(self, olds: list[ast.stmt], news: list[ast.stmt], scope: str) -> str:
        """What a module, class or function gained, as the text of a fragment, in which only those are nested."""
        self.named[scope] = Counter(name for node in statements(olds) for name in {name_of(node), _one_line(node)})
        return ("\n" if scope else "\n\n").join(self._body(olds, news, scope))

    def _body(self, olds: list[ast.stmt], news: list[ast.stmt], scope: str) -> list[str]:
        blocks = []
        for a, b, c, d in hunks([ast.dump(node) for node in olds], [ast.dump(node) for node in news]):
            for old in olds[a:b]:
                twin = next((n for n in range(c, d) if _alike(old, news[n])), None)
                if twin is not None:
                    blocks += self._statements(news, c, twin, scope)
                    blocks += self._inside(old, news[twin], scope)
                    c = twin + 1
            blocks += self._statements(news, c, d, scope)
        return blocks

    def _statements(self, news: list[ast.stmt], start: int, end: int, scope: str) -> list[str]:
        """The statements that are new in a row, and beside which others they stand."""
        imports = [node for node in news[start:end] if isinstance(node, ast.Import | ast.ImportFrom)]
        self.imports += [ast.unparse(node) + "\n" for node in imports]
        run = [node for node in news[start:end] if node not in imports]
        if not run:
            return []
        near = (news[:start][-1:], news[end : end + 1])
        places = beside(*([_target(node, self.named[scope]) for node in nodes] for nodes in near))
        for node in run:
            self.spots[scope.rstrip(".") or "file", known_by(node)] = places
        by = scope.count(".") * len(INDENT) - run[0].col_offset
        return [moved(self.new.reindented(self.new.first_line(run[0]), self.new.after_line(run[-1]), by), by)]

    def _inside(self, old: ast.stmt, new: ast.stmt, scope: str) -> list[str]:
        """What a statement gained that the base has too."""
        name, margin = name_of(new), INDENT * scope.count(".")
        theirs, ours = collection_of(old), collection_of(new)
        if isinstance(old, Definition) and isinstance(new, Definition):
            return [f"{margin}{_head(new)}\n{self.scope(old.body, new.body, f'{scope}{name}.')}"]
        if isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
            there = {ast.dump(alias) for alias in old.names}
            gained = [alias for alias in new.names if ast.dump(alias) not in there]
            self.imports.append(ast.unparse(ast.ImportFrom(new.module, gained, new.level)) + "\n")
            return []
        if theirs is not None and ours is not None:
            # The weaver asks neither for the list's type nor for a call around it.
            head = name if name == "return" else f"{name} ="
            opening, closing = "{}" if isinstance(ours, ast.Dict | ast.Set) else "[]"
            return [f"{margin}{head} {opening}\n{self._entries(theirs, ours, scope, name)}{margin}{closing}\n"]
        bodies = [(getattr(old, field, []), getattr(new, field, [])) for field in BODIES]
        return [block for olds, news in bodies for block in self._body(olds, news, scope)]

    def _entries(self, old: Collection, new: Collection, scope: str, name: str) -> str:
        theirs, ours = elements(old), elements(new)
        keys = Counter(key for key, _, _ in theirs)
        called = [key if keys[key] == 1 else ast.unparse(first) for key, first, _ in theirs]
        lines = ""
        for a, _, c, d in hunks(_dumps(theirs), _dumps(ours)):
            for key, first, last in ours[c:d]:
                self.spots[scope + name, key] = beside(called[:a], called[a:])
                lines += self.new.on_lines(first, last, (scope.count(".") + 1) * len(INDENT))
        return lines


def _alike(old: ast.stmt, new: ast.stmt) -> bool:
    """Whether one statement can be the other with something put into it."""
    if isinstance(old, ast.ImportFrom) and isinstance(new, ast.ImportFrom):
        return (old.module, old.level) == (new.module, new.level)
    holds = hasattr(old, "body") or collection_of(old) is not None
    return holds and type(old) is type(new) and known_by(old) == known_by(new)


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
