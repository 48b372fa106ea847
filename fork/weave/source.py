"""A Python file with its tree, and where the nodes of the tree stand in its text."""

from __future__ import annotations

import ast
import contextlib
import io
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache

from fork.weave.edit import above_comments, line_start, line_starts, next_line

Collection = ast.List | ast.Set | ast.Tuple | ast.Dict
Node = ast.stmt | ast.expr | ast.alias
Entry = ast.expr | ast.alias
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

BODIES = ("body", "orelse", "finalbody")


def moved(text: str, by: int) -> str:
    """A text with its first line moved by columns."""
    return " " * by + text if by >= 0 else text[-by:]


class Source:
    """Offsets are characters from the start of `text`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = line_starts(text)

    def offset(self, line: int, column: int) -> int:
        """`column` counts bytes of UTF-8, as the tree does."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def start(self, node: Node) -> int:
        decorators = node.decorator_list if isinstance(node, Definition) else []
        first = decorators[0].lineno if decorators else node.lineno
        return self.offset(first, node.col_offset)

    def end(self, node: Node) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def first_line(self, node: Node) -> int:
        """Where the lines of a node begin, the comments directly above them included."""
        return above_comments(self.text, self.start(node), ("#",))

    def after_line(self, node: Node) -> int:
        return next_line(self.text, self.end(node))

    def leads_line(self, node: Node) -> bool:
        start = self.start(node)
        return not self.text[line_start(self.text, start) : start].strip()

    def line_of(self, node: Node) -> str:
        return self._lines[node.lineno - 1]

    def reindented(self, start: int, end: int, by: int) -> str:
        """The text with its lines, but for the first and those inside a string, moved by columns."""
        text = self.text[start:end]
        as_they_are = {1}
        # In brackets, so that the range may begin at any column. It may open a bracket that it leaves open.
        with contextlib.suppress(tokenize.TokenError):
            for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline):
                if token.type == tokenize.STRING:
                    as_they_are |= {*range(token.start[0] + 1, token.end[0] + 1)}
        lines = enumerate(io.StringIO(text), 1)
        return "".join(line if n in as_they_are or not line.strip() else moved(line, by) for n, line in lines)

    def on_lines(self, first: Entry, last: Entry, column: int) -> str:
        """An entry of a list, with the comments above it, as lines that begin at a column."""
        start = self.start(first)
        above = self.text[self.first_line(first) : line_start(self.text, start)] if self.leads_line(first) else ""
        entry = self.reindented(start, self.end(last), column - first.col_offset)
        return "".join(" " * column + line.lstrip() for line in [*above.splitlines(keepends=True), f"{entry},\n"])


# The last few files are kept: one is woven several times in a row.
parsed = lru_cache(maxsize=4)(Source)


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, those under its `if`, `with`, `for` and `try` included."""
    for node in body:
        yield node
        if not isinstance(node, Definition):
            for field in BODIES:
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def name_of(node: ast.stmt) -> str:
    """What a statement is known by: the name it binds, or the first argument of its call."""
    if isinstance(node, Definition):
        return node.name
    target = assigned(node)
    if target:
        return target
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return key_of(node.value)
    return ""


def known_by(node: ast.stmt) -> str:
    """The name of a statement, else its first line."""
    return name_of(node) or ast.unparse(node).partition("\n")[0]


def assigned(node: ast.stmt) -> str:
    """The name that a statement gives its value; a function's result is `return`."""
    if isinstance(node, ast.Return):
        return "return"
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""


def collection_of(node: ast.stmt) -> Collection | None:
    """The list, set, tuple or dict that an assignment writes out, also inside a call."""
    value = getattr(node, "value", None)
    if not assigned(node) or value is None:
        return None
    inside = (value, *value.args) if isinstance(value, ast.Call) else (value,)
    return next((node for node in inside if isinstance(node, Collection)), None)


def elements(collection: Collection | ast.ImportFrom) -> list[tuple[str, Entry, Entry]]:
    """Key, first and last node of every entry, or of every name that is imported."""
    if isinstance(collection, ast.ImportFrom):
        return [(alias.name, alias, alias) for alias in collection.names]
    if isinstance(collection, ast.Dict):
        pairs = zip(collection.keys, collection.values, strict=True)
        return [(key_of(k or v), k or v, v) for k, v in pairs]
    return [(key_of(e), e, e) for e in collection.elts]


def key_of(node: ast.expr) -> str:
    """What an entry is known by: a string's text, else the first thing in a call or list."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Call):
        first = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        first = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    if first:
        return key_of(first[0])
    return ast.unparse(node)


def normal(code: str) -> str:
    """Code as `ast.unparse` writes it, where it is code, without the comma behind an entry."""
    try:
        return "\n".join(map(ast.unparse, ast.parse(code.rstrip(",")).body))
    except SyntaxError:
        return code
