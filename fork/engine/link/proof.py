"""Run in a fork: every place where the base looks up a replaced symbol leads to the fork's libraries, and so does every
copy of a function that is to jump there; and torch._C has what the base's has. Or it says what does not.

A script of its own: it reads the tables that the dynamic linker has filled in this process (with LD_BIND_NOW=1, all).
"""

import ctypes
import json
import os
import sys

ADDRESS = ctypes.sizeof(ctypes.c_void_p)
# What base.cpp writes: a jump over a distance, and one to the address behind it.
JUMP, FAR = b"\xe9", b"\xff\x25\0\0\0\0"


def begins() -> dict[str, int]:
    """Where each library of the process begins, by its file's name."""
    found: dict[str, int] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            words = line.split(maxsplit=5)
            if len(words) == 6:
                found.setdefault(os.path.basename(words[5].strip()), int(words[0].partition("-")[0], 16))
    return found


def file_of(address: int) -> str:
    """The file of the library that has an address; nothing where none has it."""
    found = (ctypes.c_char_p * 4)()  # the file, where it begins, a symbol, where that is
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), found)
    return os.fsdecode(found[0] or b"")


def defines(file: str, symbol: str) -> bool:
    """Whether a library of the process has a symbol itself."""
    try:
        at = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(file), symbol))
    except (OSError, ValueError):
        return False
    return file_of(at) == file


def inside(address: int, names: list[str]) -> bool:
    """Whether libraries of these names have an address."""
    return os.path.basename(file_of(address)) in names


def wrong(slots: list[tuple[str, str, int]], own: list[str]) -> list[str]:
    """The symbols that a library of the base looks up and finds elsewhere than in the fork's own libraries."""
    libraries, lost = begins(), []
    for symbol, library, offset in slots:
        if library in libraries:
            value = int.from_bytes(ctypes.string_at(libraries[library] + offset, ADDRESS), sys.byteorder)
            # A variable may hold something else by now, such as the engine that Python has put there.
            if not inside(value, own) and defines(file_of(value), symbol):
                lost.append(f"{symbol} of {library}")
    return lost


def staying(jumps: list[tuple[str, str, int]], own: list[str]) -> list[str]:
    """The functions of the base, each by library and distance from its begin, that do not jump to the fork's own."""
    libraries, lost = begins(), []
    for symbol, library, offset in jumps:
        at = libraries[library] + offset
        code = ctypes.string_at(at, 5)
        to = at + 5 + int.from_bytes(code[1:], sys.byteorder, signed=True)
        if code[:1] == JUMP and not inside(to, own) and ctypes.string_at(to, 6) == FAR:
            to = int.from_bytes(ctypes.string_at(to + 6, ADDRESS), sys.byteorder)
        if code[:1] != JUMP or not inside(to, own):
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
