"""What a test of a state reads: one that passed and reads the same again need not run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from fork.checkout.whole_branch import Branch
from fork.digest import digest
from fork.engine.wheel.base import Base
from fork.series import Series, State
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.file_kinds import File, New

# Settings by which the same program computes in another way.
SETTINGS = ("ATEN_", "MKL", "OMP_", "ONEDNN_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_")
OURS = ("TORCH_FORK", "TORCH_FORK_COMMAND")


def machine(base: Base) -> bytes:
    """The interpreter, its packages with torch, the processor, and the settings that change what they compute."""
    packages = sorted(folder.name for folder in base.site.glob("*.dist-info"))
    processor = re.findall(r"^(?:model name|flags)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[:2]
    settings = sorted(item for item in os.environ.items() if item[0].startswith(SETTINGS) and item[0] not in OURS)
    return repr((sys.version, base.record_text, packages, processor, settings)).encode()


def built(site: Path, base: Base, state: Mapping[str, File]) -> bytes:
    """The fork as a program sees it: its libraries, and the Python files that the state changes."""
    woven = {path: base.wheel_path(path) or base.new_path(path) for path in state}
    names = [name for name in woven.values() if name and name.endswith(".py")]
    libraries = [
        *site.glob("torch/_C.*.so"),
        *site.glob("torch/lib/libtorch.so"),
        *site.glob("torch/lib/libtorch_fork*"),
    ]
    files = sorted({*libraries, *(site / name for name in names), *site.glob("test/*.py")})
    return contents({str(file.relative_to(site)): file for file in files})


def contents(files: Mapping[str, File]) -> bytes:
    """One name for all these files, as of a state."""
    return digest(
        *(part for name, file in sorted(files.items()) for part in (name.encode(), file.read_bytes()))
    ).encode()


def beside(series: Series, state: Mapping[str, File], text: str) -> State:
    """The files of a state that a test, which runs in a folder with all that are new, names."""

    def named(path: Path) -> bool:
        return _names(text, [path.name, f"{path.stem} import", f"import {path.stem}"])

    return {path: file for path, file in series.of_kind(state, New).items() if named(Path(path))}


def calls(series: Series, state: Mapping[str, File], text: str) -> bool:
    """Whether a test may reach what a state adds: its text has an operator of the stack.

    A stack of fragments and new files only adds. A branch may change what any test calls.
    """
    if isinstance(series, Branch) or NATIVE_FUNCTIONS not in state:
        return True
    places = ("torch.", "aten.", "aten::", "at::", "_VF.", "_VariableFunctions.", "_nn.", "_special.", 'torch, "')
    names = yamls.operators(state[NATIVE_FUNCTIONS].read_text())
    return _names(text, [place + name for place in places for name in names])


def _names(text: str, words: Iterable[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)
