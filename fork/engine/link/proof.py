"""Run in a fork: every place where the base looks up a replaced symbol leads to the fork's libraries, and so does every
copy of a function that is to jump there; and torch._C has what the base's has. Or it says what does not.

A script of its own: it reads the tables that the dynamic linker has filled in this process (with LD_BIND_NOW=1, all).
"""

import ctypes
import json
import os
import sys
from functools import cache

ADDRESS = ctypes.sizeof(ctypes.c_void_p)
# What base.cpp writes: a jump over a distance, and one to the address behind it.
JUMP, FAR = b"\xe9", b"\xff\x25\0\0\0\0"


def mapped() -> dict[str, tuple[int, int]]:
    """The first and the last address of each library of the process, by its file's name."""
    found: dict[str, tuple[int, int]] = {}
    name = ""
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            first, last = (int(word, 16) for word in words[0].split("-"))
            if len(words) == 6:
                name = os.path.basename(words[5].strip())
            elif name not in found or found[name][1] != first:
                continue  # else it is the library's memory without a file: variables that begin as zero
            found[name] = (min(first, found.get(name, (first, 0))[0]), max(last, found.get(name, (0, last))[1]))
    return found


def wrong(slots: list[tuple[str, str, int]], own: list[str]) -> list[str]:
    """The symbols that a library of the base looks up and finds elsewhere than in the fork's own libraries."""
    libraries = mapped()
    ranges = [libraries[name] for name in own if name in libraries]
    lost = []
    for symbol, library, offset in slots:
        if library in libraries:
            at = libraries[library][0] + offset
            value = int.from_bytes(ctypes.string_at(at, ADDRESS), sys.byteorder)
            if any(first <= value < last for first, last in ranges):
                continue
            # A variable may hold something else by now, such as the engine that Python has put there.
            theirs = [libraries[name] for name in defining(symbol) - set(own) if name in libraries]
            if any(first <= value < last for first, last in theirs):
                lost.append(f"{symbol} of {library}")
    return lost


@cache
def defining(symbol: str) -> set[str]:
    """The libraries of the process that have this symbol, by their files' names."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    libraries, found = mapped(), set()
    for path in paths:
        try:
            at = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(path), symbol))
        except (OSError, ValueError):
            continue  # a file that has gone, or a library without it
        found |= {name for name, (first, last) in libraries.items() if first <= at < last}
    return found


def staying(jumps: list[tuple[str, str, int]], own: list[str]) -> list[str]:
    """The functions of the base, each by library and distance from its begin, that do not jump to the fork's own."""
    libraries = mapped()
    ranges = [libraries[name] for name in own if name in libraries]
    lost = []
    for symbol, library, offset in jumps:
        at = libraries[library][0] + offset
        code = ctypes.string_at(at, 5)
        to = at + 5 + int.from_bytes(code[1:], sys.byteorder, signed=True)
        near = any(first <= to < last for first, last in ranges)
        if code[:1] == JUMP and not near and ctypes.string_at(to, 6) == FAR:
            to = int.from_bytes(ctypes.string_at(to + 6, ADDRESS), sys.byteorder)
        if code[:1] != JUMP or not any(first <= to < last for first, last in ranges):
            lost.append(f"{symbol} of {library}")
    return lost


if __name__ == "__main__":
    import torch

    with open(sys.argv[1]) as file:
        asked = json.load(file)
    assert torch.__file__.startswith(asked["stage"]), torch.__file__
    if lost := sorted(set(asked["bindings"]).difference(dir(torch._C))):
        # A definition that the base was compiled with, and the fork was not, cuts out what is below its #ifdef.
        sys.exit(f"torch._C lacks {len(lost)} of the names that the base's has, such as {lost[0]}")
    if found := wrong(asked["slots"], asked["own"]):
        sys.exit(f"{len(found)} of {len(asked['slots'])} places still lead to the base's own code, such as {found[0]}")
    if kept := staying(asked["jumps"], asked["own"]):
        sys.exit(f"{len(kept)} of {len(asked['jumps'])} functions of the base's do not jump, such as {kept[0]}")
