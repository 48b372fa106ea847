"""Leads what compiled sources call, and the base's libraries hide, to the base's own: by its place in the library.

So a source that calls such a function needs no copy of it, whose variables would be another's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fork.engine.binary.libraries import Place
from fork.engine.binary.objects import readable
from fork.engine.compile import toolchain

# The compiler's own libraries have these, and the linker finds them there, the C library's part that is not shared too.
# What PyTorch adds to `std`, as to_string of a type of its own, is its own.
UNSHARED = r"(?:atexit|at_quick_exit|pthread_atfork|[fl]?stat(?:64)?|fstatat(?:64)?|mknod(?:at)?)$"
STD = r"std::(?!.*\b(?:c10d?|at|torch|caffe2)::)"
LIBC_AND_LIBSTDCXX = re.compile(
    rf"__(?!numpy_)|_[A-Y]|{STD}|operator (?:new|delete)|__gnu_cxx::|__cxxabiv1::|{UNSHARED}"
)


def leading(places: Mapping[str, Place], work: Path) -> Path:
    """An object that defines these functions; each leads to its place in a library of the base."""
    names = sorted(places)
    rows = "".join(f'    {{"{places[name].library}", {places[name].offset}ul}},\n' for name in names)
    jumps = "".join(
        f'    ".globl {name}\\n.hidden {name}\\n.type {name},@function\\n"\n'
        f'    "{name}: jmp *fork_hidden_places+{8 * n}(%rip)\\n"\n'
        for n, name in enumerate(names)
    )
    text = f"const Hidden fork_hidden[] = {{\n{rows}}};\nconst size_t fork_hidden_count = {len(names)};\n"
    text += f'char* fork_hidden_places[{len(names)}];\nasm(".text\\n"\n{jumps});\n'
    return toolchain.glued(work, "hidden", text)


def is_other(name: str) -> bool:
    """Whether a function is of a library that every C++ program has."""
    return bool(LIBC_AND_LIBSTDCXX.match(readable(name) if name.startswith("_Z") else name))
