"""Builds a fork with GCC's sanitizers and runs programs with it: names, flags, and the environment of a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fork import process
from fork.errors import ForkError

# The runtime of each, and the variable that its options are read from, with those that a run wants.
# Python does not free all it has at its end. Of the base, which is not instrumented, ThreadSanitizer sees only the
# calls that it intercepts, such as memcpy, and none of the locks that stand around them.
SANITIZERS = {
    "address": ("libasan.so", "ASAN_OPTIONS", "detect_leaks=0"),
    "undefined": ("libubsan.so", "UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1"),
    "thread": ("libtsan.so", "TSAN_OPTIONS", "halt_on_error=1:ignore_noninstrumented_modules=1"),
}


def named(words: str) -> tuple[str, ...]:
    """The sanitizers of `--sanitize address,undefined`."""
    chosen = tuple(sorted(set(words.split(","))))
    for name in chosen:
        if name not in SANITIZERS:
            raise ForkError(f"--sanitize {words}: no sanitizer {name!r}: the sanitizers are {', '.join(SANITIZERS)}")
    if {"address", "thread"} <= set(chosen):
        raise ForkError(f"--sanitize {words}: address and thread exclude each other: build one fork with each")
    return chosen


def flags(chosen: Sequence[str]) -> list[str]:
    """For the compiler and the linker."""
    # vptr needs the type information of the base's classes, which its libraries hide.
    names = ",".join(chosen)
    return [f"-fsanitize={names}", "-fno-sanitize=vptr", "-g1", "-fno-omit-frame-pointer"] if chosen else []


def variables(chosen: Sequence[str], compiler: Path) -> dict[str, str]:
    """What a process needs in its environment: Python is not instrumented, so the runtime is preloaded."""
    # The runtime looks for the functions of C++ that it intercepts when it starts.
    libraries = [_library(SANITIZERS[name][0], compiler, name) for name in chosen]
    libraries.append(_library("libstdc++.so.6", compiler))
    found = {"LD_PRELOAD": ":".join(filter(None, [*libraries, os.environ.get("LD_PRELOAD")]))}
    for name in chosen:
        _, variable, wanted = SANITIZERS[name]
        # A later option counts, and so the user's own.
        found[variable] = ":".join(filter(None, [wanted, os.environ.get(variable)]))
    return found


def _library(library: str, compiler: Path, sanitizer: str = "") -> str:
    """The path of a library that belongs to the compiler; only its name where there is none that a sanitizer needs."""
    path = process.run([compiler, f"-print-file-name={library}"], f"{compiler} does not run").strip()
    if sanitizer and not os.path.isabs(path):
        raise ForkError(f"{compiler} has no {library} for --sanitize {sanitizer}: set CXX to a GCC with its sanitizers")
    return path
