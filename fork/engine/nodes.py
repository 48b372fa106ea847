"""Autograd nodes and kernels that PyTorch's generators make of entries that the base has: made again for a change."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from fork import process
from fork.checkout.changed import Text
from fork.engine.base import Base
from fork.engine.callers import Caller
from fork.engine.cause import cause
from fork.engine.objects import HOLDER, readable
from fork.engine.tree import write
from fork.errors import ForkError
from fork.weave.yamls import entries

GENERATED = "torch/csrc/autograd/generated/"
SOURCES = ("Functions.cpp", "VariableTypeEverything.cpp", "python_functionsEverything.cpp")
# The files of the base that hold what those two do, and who in them is a node or a kernel.
FILES = re.compile(r"Functions\.cpp|VariableType_\d+\.cpp")


@dataclass
class Nodes:
    """Generates for the operators of `wanted`; `native` and `derivatives` are the texts that the fork has."""

    base: Base
    stage: Path
    work: Path
    native: str
    derivatives: str
    wanted: set[str] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return self.work / "generated/autograd"

    def calling(self, word: str) -> set[str]:
        """The operators whose formulas name a function."""
        named = re.compile(rf"\b{re.escape(word)}\b")
        return {operator(name) for name, text in entries(self.derivatives).items() if named.search(text)}

    def texts(self) -> list[Text]:
        """The generated sources of the wanted operators and their variants."""
        native, derivatives = (
            "\n".join(text for name, text in entries(whole).items() if operator(name) in self.wanted)
            for whole in (self.native, self.derivatives)
        )
        write(self.work, "native_functions.yaml", native)
        write(self.work, "derivatives.yaml", derivatives)
        files = [self.work / name for name in ("native_functions.yaml", "derivatives.yaml")]
        command = [self.base.python, Path(__file__).with_name("generate.py"), *files, self.work / "generated"]
        done = process.attempt(command, env=os.environ | {"PYTHONPATH": str(self.stage), "TORCH_FORK": str(self.stage)})
        if done.returncode:
            write(self.work, "generate.log", done.stdout + done.stderr)
            raise ForkError(f"PyTorch's generators reject {cause(done.stderr, *files)}")
        made = {name: (self.folder / GENERATED / name).read_text() for name in SOURCES}
        # Of its own name beside that of the operators that the stack adds.
        again = {name: text.replace("functionsEverything(", "functionsAgain(") for name, text in made.items()}
        return [Text(GENERATED + name, None, text) for name, text in again.items()]


def holder(caller: Caller) -> set[str]:
    """The nodes and kernels whose code a generated function of the base is part of."""
    return {name for found in HOLDER.findall(readable(caller.name)) for name in found if name}


def operator(schema: str) -> str:
    """The name that an operator shares with its variants: of `_foreach_exp_(...)` and `exp.out(...)`, `exp`."""
    name = re.split(r"[.(]", schema)[0].removeprefix("_foreach_")
    return re.sub(r"(?<=\w)(?:_copy)?_?$", "", name) if not name.startswith("__") else name
