"""A source that is compiled in the place of the base's: its texts, its objects, and which of their parts differ."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from fork.checkout.release_tree import Text
from fork.cpp.definitions import concerned, defined
from fork.cpp.registrations import NAME, left, object_of
from fork.cpp.scan import code_of
from fork.engine.binary.objects import GLOBAL, Object, changed_sections, plain, readable
from fork.engine.compile.compiler import Compiler, Unit
from fork.engine.generate.generated import AUTOGRAD

CHANGED = "changed"
NAMES = "names a function that a generated header declares otherwise"
# The names of what no other file sees.
NODES = re.compile(r"/(?:python_functions_?\w*|Functions|ViewFuncs)\.cpp$")
LEFT = re.compile(rf"{NAME.pattern}\(\)")
INTERNAL = re.compile(r"_GLOBAL__N_|L\d+[A-Za-z_]")


@dataclass
class Source:
    """A file that is compiled whole: why, its text before and after, and the objects of both."""

    text: Text
    why: str
    compiler: Compiler
    declared: Collection[str] = ()  # functions that a header declares otherwise
    new: list[Object] = field(default_factory=list)
    old: list[Object | None] = field(default_factory=list)
    alike: Collection[str] = ()  # the objects and tables that a change of lambdas leaves as they are
    generated: bool = False  # whether PyTorch's generators write it; then this is a part of it

    @property
    def nodes(self) -> bool:
        """Whether it has the code of nodes; compilers let equal functions of them run one another."""
        return self.path.startswith(AUTOGRAD) and bool(NODES.search(self.path))

    @property
    def binds(self) -> bool:
        """Whether it has what Python calls of operators."""
        return self.generated and not self.nodes and self.path.startswith(f"{AUTOGRAD}python_")

    @property
    def path(self) -> str:
        return self.text.path

    def units(self) -> list[Unit]:
        """The runs of the compiler for the text to be."""
        return self.compiler.units(self.path, self._divided[0])

    @property
    def left(self) -> list[tuple[int, str]]:
        """The registrations that stay the base's."""
        return self._divided[1]

    def original(self, name: str) -> str:
        """A symbol's name in words; what a registration holds is named as in the base, by the object."""
        objects = [object_of(head) for _, head in self.left]
        return LEFT.sub(lambda found: objects[int(found[1])] or found[0], readable(plain(name)))

    @cached_property
    def _divided(self) -> tuple[str, list[tuple[int, str]]]:
        return (self.text.after, []) if self.text.before is None else left(self.text.after, self.text.before)

    def is_as_before(self) -> bool:
        """Whether a compiler makes nothing else of it, as of a user of a header that does not use what changes."""
        return bool(self.old) and all(old and not self.differing(n, False) for n, old in enumerate(self.old))

    @cached_property
    def code(self) -> str:
        return code_of(self.text.after)

    @cached_property
    def words(self) -> set[str]:
        return set(re.findall(r"\w+", self.code))

    @cached_property
    def gone(self) -> set[str]:
        """The words of the text before, in strings too, that it has no longer."""
        before, after = (set(re.findall(r"\w+", text or "")) for text in (self.text.before, self.text.after))
        return before - after

    @cached_property
    def _defined(self) -> set[str] | None:
        return defined(self.text.before or "", self.text.after)

    @cached_property
    def _concerned(self) -> set[str] | None:
        return concerned(self.text.before or "", self.text.after, self.declared)

    def differing(self, n: int, alone: bool) -> set[str]:
        """The sections of an object that the branch changes; with `alone`, no header can change what has no word of
        it."""
        one, old = self.new[n], self.old[n] if self.old else self.new[n]
        if old is None and self.text.before is None:
            return set(one.nodes)
        # Without an object to compare with, what a header has is left to all that include it.
        found = changed_sections(one, old) if old else {name for name in one.nodes if not self.inherits(name, one)}
        known = self.why == NAMES or (alone and self.why == CHANGED)
        return {section for section in found if not known or self.concerns(section, one)}

    def concerns(self, section: str, one: Object) -> bool:
        """Whether the change of the text can concern a section: the function or variable that it holds."""
        symbol = re.search(r"\b_Z\w+", section)
        if symbol is None:
            return True
        if self._concerned is None:
            return not self.inherits(section, one)
        said = self.original(symbol[0])
        return any(word in said for word in self._concerned)

    def inherits(self, section: str, one: Object) -> bool:
        """Whether a section holds a function of a header that is not made of what the source itself defines."""
        symbol = re.search(r"\b_Z\w+", section)
        found = one.defined.get(symbol[0]) if symbol else None
        # Of such a function, the compiler may have left a part of its own alone.
        shared = found.binding != GLOBAL if found else symbol and not INTERNAL.search(symbol[0])
        if not symbol or not shared or self._defined is None:
            return False
        said = readable(plain(symbol[0])).rpartition(" for ")[2]  # "typeinfo name for" a class
        # A macro can make `add_kernel` of `add`.
        return not any(re.search(rf"(?<![^\W_]){word}(?![^\W_])", said) for word in self._defined)
