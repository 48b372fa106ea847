"""Autograd nodes and kernels that PyTorch's generators make of entries that the base has: made again for a change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from fork.checkout.release_tree import Text, Tree
from fork.engine.binary.libraries import Caller
from fork.engine.binary.objects import HOLDER, readable
from fork.engine.generate import generators
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError
from fork.refusals import Refusal
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave import yamls

GENERATED = "torch/csrc/autograd/generated/"
HEADER = GENERATED + "Functions.h"
KERNELS = "VariableTypeEverything.cpp"
SOURCES = ("Functions.cpp", KERNELS, "python_functionsEverything.cpp")
# The files of the base that hold the kernels; those of VariableTypeManual.cpp are written by hand.
FILES = re.compile(r"VariableType_\d+\.cpp")
STRUCT = re.compile(r"^struct TORCH_API (\w+Backward\d+) : .*?^};\n", re.MULTILINE | re.DOTALL)
MAKES = re.compile(r"vtable for torch::autograd::generated::(\w+Backward\d+)")


@dataclass
class Nodes:
    """Generates for the operators of `reasons`, which says why; `derivatives` is the list as the fork has it, and
    `changed` the schemas of its entries that the branch changes, each with its line there."""

    base: Base
    stage: Path
    work: Path
    derivatives: str
    written: Path  # the list that somebody edits
    changed: Mapping[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    unlike: dict[str, str] = field(default_factory=dict)  # the nodes that hold other values than the base's

    def __post_init__(self) -> None:
        self.reasons |= {operator(schema): f"changed in {Path(DERIVATIVES).name}" for schema in self.changed}

    @property
    def folders(self) -> list[Path]:
        """Where the generated sources and their headers lie."""
        folder = self.work / "generated/autograd"
        return [folder, folder / GENERATED]

    def calling(self, word: str) -> set[str]:
        """The operators whose formulas name a function."""
        named = re.compile(rf"\b{re.escape(word)}\b")
        return {operator(name) for name, text in self._formulas.items() if named.search(text)}

    @cached_property
    def _formulas(self) -> dict[str, str]:
        """The entries of operators that the base has; those that the stack adds have their nodes made beside these."""
        native = {schema.partition("(")[0] for schema in yamls.entries(self.base.read(NATIVE_FUNCTIONS) or "")}
        found = yamls.entries(self.derivatives)
        return {schema: text for schema, text in found.items() if schema.partition("(")[0] in native}

    def texts(self) -> list[Text]:
        """The generated sources of the operators and their variants."""
        lists = {NATIVE_FUNCTIONS: yamls.entries(self.base.read(NATIVE_FUNCTIONS) or ""), DERIVATIVES: self._formulas}
        files = []
        for path, entries in lists.items():
            own = [text for name, text in entries.items() if operator(name) in self.reasons]
            files.append(self.work / Path(path).name)
            write(self.work, files[-1].name, "\n".join(own))
        self._generate(*files)
        made = {name: (self.folders[1] / name).read_text() for name in SOURCES}
        # Of its own name beside that of the operators that the stack adds.
        again = {name: text.replace("functionsEverything(", "functionsAgain(") for name, text in made.items()}
        self._refuse_manual(made[KERNELS])
        released = structs(self.base.read(HEADER) or "")
        fresh = structs((self.work / "generated/autograd" / HEADER).read_text())
        self.unlike = {name: text for name, text in fresh.items() if released.get(name) != text}
        return [Text(GENERATED + name, None, text) for name, text in again.items()]

    def _generate(self, native: Path, derivatives: Path) -> None:
        generators.run(self.base, self.stage, self.work, native, derivatives, self.written)

    def _refuse_manual(self, kernels: str) -> None:
        registered = set(re.findall(r'\bm\.impl\("([\w.]+)"', kernels))
        for schema, line in self.changed.items():
            name = schema.partition("(")[0]
            if name not in registered:
                raise ForkError(Refusal.NO_AUTOGRAD_KERNEL.of(place=f"{DERIVATIVES}:{line}", name=name))


def structs(header: str) -> dict[str, str]:
    """The nodes that a generated header declares, each with what it holds."""
    return {found[1]: found[0] for found in STRUCT.finditer(header)}


def node_of(symbol: str) -> str:
    """The node whose table of functions a symbol names, which whoever makes the node uses; else nothing."""
    found = MAKES.fullmatch(readable(symbol)) if symbol.startswith("_ZTV") else None
    return found[1] if found else ""


@cache
def holder(caller: Caller) -> frozenset[str]:
    """The generated nodes and kernels whose code a function of the base is part of."""
    parts = HOLDER.findall(readable(caller.name))
    return frozenset(node or kernel for kernel, node in parts if node or FILES.fullmatch(caller.file))


def operator(schema: str) -> str:
    """The name that an operator shares with its variants and whatever else has nodes of this name, which PyTorch
    numbers: of `_foreach_exp_(...)` and `exp.out(...)`, `exp`; of `_convolution(...)`, `convolution`."""
    name = re.split(r"[.(]", schema)[0].removeprefix("_foreach_").strip("_")
    return re.sub(r"(?<=\w)_copy$", "", name)


def changed_list(base: Base, tree: Tree, path: str, text: str | None) -> tuple[str, dict[str, int]]:
    """A list of operators as the fork has it, and of its entries those that the branch changes, with their lines.

    The wheel's list gets the entries alone that the branch changes: another release has others beside them.
    """
    shipped = base.read(path) or ""
    if text is None:
        return shipped, {}
    start, ours = (yamls.entries(one) for one in (tree.start(path) or "", text))
    theirs, native = yamls.entries(shipped), yamls.entries(base.read(NATIVE_FUNCTIONS) or "")
    operators = {schema.partition("(")[0] for schema in native}
    found: dict[str, int] = {}
    merged = shipped
    for schema, entry in ours.items():
        line = text.count("\n", 0, text.index(entry)) + 1
        if schema in start and yamls.code(start[schema]) == yamls.code(entry):
            continue
        if schema not in start:
            merged = f"{merged.rstrip()}\n\n{entry}"
            if (name := schema.partition("(")[0]) in operators:
                if path == NATIVE_FUNCTIONS:
                    raise ForkError(Refusal.KNOWN_ENTRY.of(place=f"{path}:{line}", name=name, version=base.version))
                found[schema] = line
            continue
        if yamls.code(theirs.get(schema, "")) != yamls.code(start[schema]):
            raise ForkError(Refusal.OTHER_ENTRY.of(place=f"{path}:{line}", version=base.version))
        merged, found[schema] = merged.replace(theirs[schema], entry), line
    return merged, found
