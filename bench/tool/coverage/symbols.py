"""Which functions of a fork's library carry a planted change, and where the base's own copies of them lie."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fork import process
from fork.engine.binary.libraries import NVCC

# The guard of the variable that plant.py puts into a function has the function's mangled name inside.
GUARD = re.compile(r"_ZGVZ(.+)E12planted_here(?:_\d+)?$")
CAPABILITY = re.compile(r"(\.(DEFAULT|AVX2|AVX512|SVE\w*))?\.(cpp|o)$")
SYMBOL: np.dtype = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
OBJECT, FUNCTION, FILE = 1, 2, 4
LOCAL, WEAK, UNIQUE = 0, 2, 10


@dataclass(frozen=True)
class Symbol:
    """A function or variable that a library defines; `file` is its source's name where no other file sees it."""

    name: str
    start: int
    size: int
    kind: int
    binding: int
    file: str


@dataclass
class Library:
    """The symbols of an ELF library by name, and its machine code."""

    path: Path
    symbols: dict[str, list[Symbol]] = field(default_factory=lambda: defaultdict(list))
    exported: frozenset[str] = frozenset()
    sections: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """The address, place in the file and size of each section."""

    @classmethod
    def read(cls, path: Path) -> Library:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        library = cls(path)
        library.sections = _sections(data)
        for symbol in _symbols(data, library.sections, ".symtab", ".strtab"):
            library.symbols[symbol.name].append(symbol)
        # The process keeps the first definition of a unique symbol, such as a constant of the standard library.
        exported = _symbols(data, library.sections, ".dynsym", ".dynstr")
        library.exported = frozenset(symbol.name for symbol in exported if symbol.binding != UNIQUE)
        return library

    def planted(self) -> list[str]:
        """The mangled names of the functions that carry a planted change."""
        found = {match[1] for match in map(GUARD.match, self.symbols) if match}
        return sorted(name for inside in found for name in _mangled(inside) if name in self.symbols)

    def copies(self, names: Iterable[str], files: Iterable[str]) -> list[Symbol]:
        """This library's own definitions of functions; of those that only a file sees, the ones of these files."""
        stems = {Path(file).name for file in files}
        return [
            symbol
            for name in names
            for symbol in self.symbols.get(name, ())
            if symbol.kind == FUNCTION and symbol.binding != WEAK and (not symbol.file or _stem(symbol.file) in stems)
        ]


def _stem(file: str) -> str:
    """CrossKernel.cpp.AVX2.cpp is one of CrossKernel.cpp's objects."""
    return CAPABILITY.sub("", file) if file.count(".cpp") > 1 else NVCC.sub(r"\1.cu", file)


def _mangled(inside: str) -> Iterator[str]:
    """The names that a linker knows a function by. A constructor has two, and C's functions have no types."""
    plain = re.fullmatch(r"\d+([A-Za-z_]\w*)", inside)
    if plain:
        yield plain[1]
    for kind, spelled in (("C", "12"), ("D", "012")):
        for digit in spelled:
            if f"{kind}4E" in inside:
                yield "_Z" + inside.replace(f"{kind}4E", f"{kind}{digit}E")
    yield f"_Z{inside}"


def _sections(data: np.ndarray) -> dict[str, tuple[int, int, int]]:
    offset, size, count, names = struct.unpack("<Q10xHHH", data[40:64].tobytes())
    table = data[offset : offset + size * count].tobytes()
    heads = [struct.unpack_from("<IIQQQQ", table, size * n) for n in range(count)]
    return {
        _text(data, heads[names][4] + name): (address, place, length) for name, _, _, address, place, length in heads
    }


def _text(data: np.ndarray, start: int) -> str:
    end = start
    while data[end]:
        end += 1
    return bytes(data[start:end]).decode()


def _symbols(data: np.ndarray, sections: dict[str, tuple[int, int, int]], table: str, names: str) -> Iterator[Symbol]:
    """What the library itself defines, in the order of the table: a file's name stands before what is local to it."""
    if table not in sections:
        return
    _, place, size = sections[table]
    rows = np.frombuffer(data[place : place + size].tobytes(), SYMBOL)
    _, start, length = sections[names]
    text = data[start : start + length].tobytes()
    file = ""
    for name, info, _, section, value, extent in rows.tolist():
        kind, binding = info & 15, info >> 4
        if kind not in (OBJECT, FUNCTION, FILE) or not section:
            continue
        said = text[name : text.index(b"\0", name)].decode(errors="replace")
        if kind == FILE:
            file = said
        else:
            yield Symbol(said, value, extent, kind, binding, file if binding == LOCAL else "")


def reached(library: Library, old: list[Symbol]) -> dict[str, list[str]]:
    """The functions in `old` that other code of the library calls or points to without the dynamic tables.

    By name, with the names of their callers. Displacements of four bytes are looked for at every offset behind the
    operation codes of calls, jumps and `lea`; a number may look like one, so the disassembler has the last word.
    """
    address, place, size = library.sections[".text"]
    code = np.memmap(library.path, dtype=np.uint8, mode="r")[place : place + size]
    starts = {symbol.start: symbol.name for symbol in old}
    marked: np.ndarray = np.zeros(size, dtype=bool)
    marked[[start - address for start in starts]] = True
    functions = sorted(
        (s.start, s.start + s.size, s.name) for many in library.symbols.values() for s in many if s.kind == FUNCTION
    )
    begins = np.array([start for start, _, _ in functions])
    dead = set(starts)
    found: dict[str, list[str]] = defaultdict(list)
    for shift in range(4):
        numbers = code[shift : shift + (size - shift) // 4 * 4].view("<i4")
        at: np.ndarray = np.arange(len(numbers), dtype=np.int64) * 4 + shift
        target = at + 4 + numbers
        inside = (target >= 0) & (target < size)
        hits = at[inside][marked[target[inside]]]
        for hit in hits.tolist():
            if not _refers(code, hit):
                continue
            start, end, caller = functions[int(np.searchsorted(begins, hit + address, "right")) - 1]
            to = int(hit + 4 + code[hit : hit + 4].view("<i4")[0]) + address
            outside = hit + address < end and start not in dead and not caller.startswith("_GLOBAL__sub_I_")
            if outside and _disassembled(library.path, start, end, to):
                found[starts[to]].append(caller)
    return found


def _refers(code: np.ndarray, at: int) -> bool:
    """Whether the bytes before a displacement are those of call, jmp, a conditional jump or lea."""
    one, two = int(code[at - 1]), int(code[at - 2])
    return one in (0xE8, 0xE9) or (two == 0x0F and one & 0xF0 == 0x80) or (two == 0x8D and one & 0xC7 == 0x05)


def _disassembled(path: Path, start: int, end: int, to: int) -> bool:
    """Whether the code between two addresses has an instruction that names a third."""
    span = [f"--start-address={start}", f"--stop-address={end}"]
    said = process.run(["objdump", "-d", "--no-show-raw-insn", *span, path], f"{path} cannot be disassembled")
    return re.search(rf"\b{to:x}\b <", said) is not None
