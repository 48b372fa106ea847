"""What all compilers of a build share: the GPU's half of the base, instruction sets, flags, headers, ccache."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from fork.checkout.release_tree import Tree
from fork.engine.compile import sanitizers, submodules, toolchain
from fork.engine.compile.compiler import Compiler
from fork.engine.compile.device import LISTS, Device, named
from fork.engine.compile.diagnostics import NamesForErrors
from fork.engine.compile.flags import Flags
from fork.engine.compile.toolchain import Toolkit
from fork.engine.wheel.base import Base


class Workshop:
    """Of one base, in a folder of work; `chosen` says why there is no toolkit for the GPU, or which; `tree` has the
    release's list of sources, and the headers of its submodules."""

    def __init__(
        self,
        base: Base,
        work: Path,
        store: Path,
        sanitize: Sequence[str] = (),
        toolkit: Toolkit | None = None,
        chosen: str = "",
        tree: Tree | None = None,
    ) -> None:
        self.base, self.work, self.toolkit, self.chosen = base, work, toolkit, chosen
        self._store, self._words = store, sanitizers.flags(sanitize)
        lists = (tree.checkout.read_at(tree.release, LISTS) if tree else None) or ""
        listed = (frozenset(named(lists, library)) for library in ("libtorch_python", "libtorch_cuda"))
        self._device = Device(base, toolkit, chosen, *listed)
        brought = self._device.includes()
        self._behind = submodules.behind(base, tree.checkout.path, work, brought) if tree else brought
        self._capabilities = toolchain.instruction_sets(base.torch, platform.machine())

    def compiler(self, front: Sequence[Path], names: NamesForErrors | None = None) -> Compiler:
        """One that looks for headers in these folders first, and tells errors by these names."""
        flags = Flags(self.base, self.work, self._capabilities, front, self._behind, self._device)
        return Compiler(flags, self._store, names, self._words)
