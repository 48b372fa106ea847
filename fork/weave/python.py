"""Weaves a Python fragment, whose functions, classes and lists repeat the names of the base's.

A definition or a list that the base has too is a container: what stands inside it goes inside
the base's. Everything else is new, and goes to its container's anchor. The module's docstring,
bare `return NAME`, imports and variables that the base has too, and lines ending in
`# fragment only` are there for the fragment to stand on its own, and stay behind.
"""

from __future__ import annotations

import ast
import re
import symtable
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fork.weave.edit import Edit, line_start, next_line
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
    normal,
    parsed,
    statements,
)

STDLIB = sys.stdlib_module_names
# What stands behind an entry of a list: brackets around it, and perhaps a comma; comments among them.
BEHIND = re.compile(r"((?:(?:\s|\\\n|#[^\n]*\n)*\))*)(?:(?:\s|\\\n|#[^\n]*\n)*(,))?")


def weave(edit: Edit, fragment: str) -> None:
    base, ours = _source(edit, edit.base, "base"), _source(edit, fragment, "fragment")
    if base is None or ours is None:
        return
    weaver = _Weaver(edit, base, ours)
    weaver.imports()
    weaver.scope(base.tree.body, ours.tree.body, "")
    if not edit.problems:
        _source(edit, edit.result(), "woven file")


def _source(edit: Edit, text: str, whose: str) -> Source | None:
    try:
        return parsed(text)
    except SyntaxError as error:
        edit.problem(f"line {error.lineno} of the {whose} does not parse here: {error.msg}")
        return None


@dataclass(frozen=True)
class _Weaver:
    """Puts what a fragment has, `ours`, into the base."""

    edit: Edit
    base: Source
    ours: Source

    def scope(self, base_body: Sequence[ast.stmt], body: Sequence[ast.stmt], scope: str) -> None:
        """What stands in a module, class or function of the fragment goes into the base's."""
        new: list[tuple[str, ast.stmt]] = []
        theirs = list(statements(base_body))
        for node in body:
            if _stays_behind(self.ours, node):
                continue
            name = name_of(node)
            twins = [twin for twin in theirs if type(twin) is type(node) and name_of(twin) == name]
            collection = collection_of(node)
            lists = [c for t in theirs if assigned(t) == name and (c := collection_of(t)) is not None]
            if collection is not None and lists:
                self._entries(lists, collection, scope + name)
            elif isinstance(node, Definition) and len(twins) == 1:
                assert isinstance(twins[0], Definition)
                self.scope(twins[0].body, node.body, f"{scope}{name}.")
            elif isinstance(node, Definition) and twins:
                self.edit.problem(f"container {scope + name!r} found {len(twins)} times")
            elif assigned(node) and name in {assigned(twin) for twin in theirs}:
                # The fragment's own stand-in for a variable of the base, unless entries were to go into it.
                if self.edit.has(scope + name):
                    self.edit.problem(f"container {scope + name!r} is not a list, set, tuple or dict in the base")
                continue
            else:
                own = scope + name
                new.append((own if self.edit.has(own) else scope.rstrip(".") or "file", node))
        for container in dict.fromkeys(place for place, _ in new):
            nodes = [node for place, node in new if place == container]
            if self.edit.has(container):
                self._statements(theirs, [(known_by(node), node) for node in nodes], container)
            else:
                self.edit.problem(f"line {nodes[0].lineno} of the fragment is in no container that has an anchor")

    def _statements(self, theirs: list[ast.stmt], named: list[tuple[str, ast.stmt]], container: str) -> None:
        """New statements go, in the fragment's order and with its spacing, to one place."""

        def find(target: str) -> list[ast.stmt]:
            code = normal(target)
            return [n for n in theirs if name_of(n) == target] or [n for n in theirs if ast.unparse(n) == code]

        for nodes, before, target in self.edit.placed(container, named, find):
            if not theirs:
                self.edit.problem("the base has no statement beside which the fragment's could go")
                return
            target = target or _last(theirs)
            by = target.col_offset - nodes[0].col_offset
            block = ""
            for above, node in zip([None, *nodes], nodes, strict=False):
                if above is not None:
                    block += "\n" * _gap(above, node)
                text = self.ours.reindented(self.ours.first_line(node), self.ours.after_line(node), by)
                block += moved(text, by).rstrip("\n") + "\n"
            gap = "\n" * _gap(target, nodes[0])
            if before:
                self.edit.insert(self.base.first_line(target), block + gap)
            else:
                self.edit.insert(self.base.after_line(target), gap + block)

    def _entries(self, lists: list[Collection], collection: Collection, container: str) -> None:
        found = [(one, elements(one)) for one in lists]

        def find(target: str) -> list[tuple[Collection, int]]:
            code = normal(target)
            spots = [(one, n, key, first) for one, entries in found for n, (key, first, _) in enumerate(entries)]
            return [(one, n) for one, n, key, _ in spots if target == key] or [
                (one, n) for one, n, _, first in spots if code == ast.unparse(first)
            ]

        named = [(entry[0], entry) for entry in elements(collection)]
        for run, before, hit in self.edit.placed(container, named, find):
            if hit is None and len(lists) > 1:
                self.edit.problem(f"container {container!r} found {len(lists)} times")
                continue
            one, n = hit or (lists[0], len(elements(lists[0])) - 1)
            for _, first, last in run:
                self._entry(one, n, before, first, last)

    def _entry(self, collection: Collection | ast.ImportFrom, n: int, before: bool, first: Entry, last: Entry) -> None:
        """Puts one entry before or behind entry n of the base's collection."""
        base, end = self.base, self.base.end(collection)
        close = end - 1 if base.text[end - 1] in ")]}" else end
        entry = self.ours.text[self.ours.start(first) : self.ours.end(last)]
        if n < 0:
            self.edit.insert(close, entry + ", ")
            return
        there = elements(collection)
        _, beside, beside_end = there[n]
        # An entry behind several that share a line stands under the first of them.
        leads_line = base.leads_line(beside)
        margins = [one.col_offset for _, one, _ in there if base.leads_line(one)]
        line = self.ours.on_lines(first, last, beside.col_offset if leads_line else [*margins, beside.col_offset][0])
        if before:
            inline = (base.start(beside), entry + ", ")
            self.edit.insert(*((base.first_line(beside), line) if leads_line else inline))
            return
        behind = BEHIND.match(base.text, base.end(beside_end), close)
        assert behind
        at = behind.end()
        rest = base.text[at : next_line(base.text, at)].strip()
        if not behind[2]:
            alone = leads_line and "\n" in base.text[at:close]
            self.edit.insert(at, ",\n" + line.rstrip(",\n") if alone else ", " + entry)
        elif not rest or rest.startswith("#"):
            self.edit.insert(next_line(base.text, at), line)
        else:
            self.edit.insert(at, f" {entry},")

    def imports(self) -> None:
        """Adds the imports that the base lacks."""
        names = symtable.symtable(self.base.text, self.edit.path, "exec").get_symbols()
        bound = {name.get_name() for name in names if name.is_assigned() or name.is_imported()}
        for node in self.ours.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and not _is_only(self.ours, node):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) not in bound:
                        self._import(node, alias)

    def _import(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        """Adds a name to the base's import from the same module, else a line in sorted place."""
        top = [n for n in self.base.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        if isinstance(node, ast.ImportFrom):
            same = next((n for n in top if isinstance(n, ast.ImportFrom) and _from(n) == _from(node)), None)
            if same:
                names = [other.name.lower() for other in same.names]
                later = next((n for n, name in enumerate(names) if name > alias.name.lower()), None)
                self._entry(same, len(names) - 1 if later is None else later, later is not None, alias, alias)
                return
            line = f"from {_from(node)} import {ast.unparse(alias)}\n"
        else:
            line = f"import {ast.unparse(alias)}\n"
        alike = [n for n in top if type(n) is type(node)]
        kin = [n for n in alike if _root(n) == _root(node)] or [
            n for n in alike if (_root(n) in STDLIB) == (_root(node) in STDLIB)
        ]
        lower = [n for n in kin if _module(n) <= _module(node)]
        if not top:
            self.edit.problem(f"no import stands in the base beside which {line.strip()!r} could go")
        elif kin and not lower:
            self.edit.insert(line_start(self.base.text, self.base.start(kin[0])), line)
        else:
            self.edit.insert(self.base.after_line((lower or kin or top)[-1]), line)


def _stays_behind(ours: Source, node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    bare = isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
    imported = isinstance(node, ast.Import | ast.ImportFrom)
    return docstring or bare or imported or _is_only(ours, node)


def _is_only(ours: Source, node: ast.stmt) -> bool:
    return ours.line_of(node).rstrip().endswith("# fragment only")


def _last(theirs: list[ast.stmt]) -> ast.stmt:
    """The last statement of the outermost ones."""
    margin = min(node.col_offset for node in theirs)
    return [node for node in theirs if node.col_offset == margin][-1]


def _gap(above: ast.stmt, below: ast.stmt) -> int:
    """Blank lines between two statements, by PEP 8."""
    if isinstance(above, Definition) or isinstance(below, Definition):
        return 1 if below.col_offset else 2
    return 0 if above.lineno == above.end_lineno and below.lineno == below.end_lineno else 1


def _from(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def _root(node: ast.Import | ast.ImportFrom) -> str:
    return _module(node).partition(".")[0]


def _module(node: ast.Import | ast.ImportFrom) -> str:
    return (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
