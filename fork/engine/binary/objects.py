"""Reads compiled objects (ELF): what they define and need, and which of their functions differ, and why it matters."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from fork.digest import digest

LOCAL, GLOBAL, WEAK = 0, 1, 2
FILE_TYPE, SECTION_TYPE, TLS_TYPE = 4, 3, 6
WRITE, MERGE, STRINGS = 0x1, 0x10, 0x20
PROGBITS, SYMTAB, RELA, NOBITS, ARRAY, NUMBERS = 1, 2, 4, 8, 14, 18
# What a compiler appends to the name of a function that it has split, or made a version of.
PARTS = re.compile(r"\.(?:cold|part|isra|constprop|localalias|lto_priv|_omp_fn|clone)\b.*|\[clone.*")
# What is no code, or a lambda's that is called where it stands.
LED = re.compile(r"(?!\.text)|(?!.*(?:_FUNE|_M_invoke|_M_manager)).*Ul")
# Constants that GCC numbers through the whole file, such as the table of a switch.
NUMBERED = re.compile(r"\.rodata\.(?:CSWTCH|C)\.\d")
MAKES = re.compile(r"vtable for torch::autograd::generated::(\w+Backward\w*\d+)")
PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# The compiler's own libraries have these, and the linker finds them there, the C library's part that is not shared too.
# What PyTorch adds to `std`, as to_string of a type of its own, is its own.
UNSHARED = r"(?:atexit|at_quick_exit|pthread_atfork|[fl]?stat(?:64)?|fstatat(?:64)?|mknod(?:at)?)$"
STD = r"std::(?!.*\b(?:c10d?|at|torch|caffe2)::)"
LIBC_AND_LIBSTDCXX = re.compile(
    rf"__(?!numpy_)|_[A-Y]|{STD}|operator (?:new|delete)|__gnu_cxx::|__cxxabiv1::|{UNSHARED}"
)
# What the second name of a local function begins with; references.cpp has it too.
LOCALS = "fork.local."
# Told once for the base, and once for the copy; what each finds out for itself, such as a type or how a function's
# arguments are parsed; or by design each library's own, as what pybind11 and nvcc keep there.
PYBIND = r"8pybind11(?:6detail\d+get_(?:local_)?internals|7options)"
HARMLESS = re.compile(
    rf"torch_warn_once|__ioinit|DW\.ref\.|fork_left_|getMaybeFakeTypePtr_|E6parser|13demangle_type|{PYBIND}|__device_stub__|__cudaFat"
)
# The runtime of CUDA is told so of each kernel.
REGISTERS_KERNEL = "__cudaRegisterFunction"


@dataclass(frozen=True)
class Symbol:
    """A name that an object defines."""

    name: str
    binding: int
    section: int
    value: int
    data: bool
    hidden: bool


@dataclass
class Node:
    """A section: what it holds, and what that refers to by name, or by place in this object, or calls."""

    content: list[bytes] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    sections: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    state: bool = False

    @property
    def digest(self) -> str:
        return digest(*sorted(self.content))


class Object:
    """An object of GCC or clang, compiled with a section for each function and variable."""

    def __init__(self, file: Path, binds: bool = False) -> None:
        self.file = file
        self._data = data = file.read_bytes()
        offset, count, names_at = _header(data)
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + n * 64) for n in range(count)]
        names = self._content(names_at)
        self.section_names = [_text(names, section[0]) for section in self._sections]
        self.symbols: list[Symbol | None] = []
        self.undefined: set[str] = set()
        for n, section in enumerate(self._sections):
            if section[1] == SYMTAB:
                self._symbols(self._content(n), self._content(section[6]))
        own = [symbol for symbol in self.symbols if symbol and symbol.name and symbol.section]
        self.defined = {symbol.name: symbol for symbol in own if symbol.binding != LOCAL}
        self.inline = {name for name, one in self.defined.items() if one.binding != GLOBAL and not one.data}
        self.python = binds or any(PYTHON.fullmatch(name) for name in self.undefined)  # whether it is of the bindings
        # The second names of local functions, by the first and by section.
        seconds = [(name, one) for name, one in self.defined.items() if name.startswith(LOCALS)]
        self._second = {name.partition("..")[2]: name for name, _ in seconds}
        self._second |= {self.section_names[one.section]: name for name, one in seconds}
        self.names = {plain(symbol.name) for symbol in own}
        self.where = {symbol.name: self.section_names[symbol.section] for symbol in own}
        self.places = {symbol.name: (symbol.section, symbol.value) for symbol in own}
        self.nodes = self._nodes()
        self.held: dict[str, list[str]] = {}
        for name in self.defined:
            self.held.setdefault(self.where[name], []).append(name)
        launchers = [node for node in self.nodes.values() if REGISTERS_KERNEL in node.calls]
        told = {self.where.get(name, "") for node in launchers for name in node.names}
        # The sections of kernels: of what launches each, by which the runtime of CUDA knows it.
        self.kernels = {name for name in told.union(*(one.sections for one in launchers)) if name.startswith(".text")}

    def _content(self, n: int) -> bytes:
        kind, offset, size = self._sections[n][1], self._sections[n][4], self._sections[n][5]
        return b"" if kind == NOBITS else self._data[offset : offset + size]

    def _symbols(self, table: bytes, strings: bytes) -> None:
        # Of an object with very many sections, a table of its own has their numbers.
        large = next((self._content(n) for n, section in enumerate(self._sections) if section[1] == NUMBERS), b"")
        for n, (name_at, info, other, section, value, _) in enumerate(struct.iter_unpack("<IBBHQQ", table)):
            name, kind = "" if info & 15 == SECTION_TYPE else _text(strings, name_at), info & 15
            if section == 0xFFFF:
                section = struct.unpack_from("<I", large, n * 4)[0]
            if section == 0 and name:
                self.undefined.add(name)
            known = section < len(self._sections) and kind != FILE_TYPE
            name = "" if name.startswith(".L") else name  # a constant's, numbered through the whole file
            data, hidden = kind in (1, TLS_TYPE), other & 3 in (1, 2)
            self.symbols.append(Symbol(name, info >> 4, section, value, data, hidden) if known else None)

    def _nodes(self) -> dict[str, Node]:
        nodes: dict[str, Node] = {}
        for n, section in enumerate(self._sections):
            if section[1] in (PROGBITS, NOBITS, ARRAY) and section[2] & 2:
                node = nodes.setdefault(self.section_names[n], Node())
                merged = section[2] & (MERGE | STRINGS)
                node.content.append(b"" if merged else self._content(n) + struct.pack("<Q", section[5]))
                fixed = self.section_names[n].startswith((".data.rel.ro", ".init_array", ".fini_array"))
                node.state |= bool(section[2] & WRITE and section[5]) and not fixed
        for n, section in enumerate(self._sections):
            target = self.section_names[section[7]] if section[1] == RELA else ""
            if target in nodes:
                node = nodes[target]
                for place, info, addend in struct.iter_unpack("<QQq", self._content(n)):
                    node.content.append(struct.pack("<QI", place, info & 0xFFFFFFFF) + self._target(node, info, addend))
        for name in nodes:
            table = name.replace(".text.unlikely", ".text", 1).replace(".text", ".gcc_except_table", 1)
            if name.startswith(".text") and table in nodes:
                nodes[name].sections.add(table)
        return nodes

    def _target(self, node: Node, info: int, addend: int) -> bytes:
        """What a relocation refers to, in words that do not depend on where the object has it."""
        symbol = self.symbols[info >> 32]
        if symbol is None:
            return b""
        if symbol.name:
            name = self._second.get(symbol.name, symbol.name)
            node.names.add(name)
            if info & 0xFFFFFFFF == 4:
                node.calls.add(name)
            return f"{symbol.name}+{addend}".encode()
        name, flags = self.section_names[symbol.section], self._sections[symbol.section][2]
        if flags & (MERGE | STRINGS):
            content = self._content(symbol.section)
            at = symbol.value + addend + (4 if info & 0xFFFFFFFF in (2, 4) else 0)
            size = self._sections[symbol.section][9]
            return content[at : content.find(b"\0", at)] if flags & STRINGS else content[at : at + max(size, 1)]
        if second := self._second.get(name):
            node.names.add(second)
        else:
            node.sections.add(name)
        return f"{name}+{symbol.value + addend}".encode()

    def reached(self, starts: Iterable[str], leaves: Callable[[str], bool]) -> set[str]:
        """The sections that the code of these leads to, and they; a name that `leaves` leads out of here."""
        seen, todo = set(), [*starts]
        while todo:
            name = todo.pop()
            if name in seen or name not in self.nodes:
                continue
            seen.add(name)
            node = self.nodes[name]
            todo += node.sections
            todo += [self.where[symbol] for symbol in node.names if symbol in self.where and not leaves(symbol)]
        return seen

    def whole(self, code: set[str]) -> set[str]:
        """Sections of code, with the tables without a name that it has and the lambdas that it calls."""
        inner = {to for one in code for to in self.nodes[one].sections if LED.match(to)}
        return code if inner <= code else self.whole(code | inner)

    def state_of(self, sections: Iterable[str]) -> list[str]:
        """What can be written to among these sections, by name."""
        return sorted(name for name in sections if self.nodes[name].state and not HARMLESS.search(name))


def _header(data: bytes) -> tuple[int, int, int]:
    offset = struct.unpack_from("<Q", data, 40)[0]
    count, names = struct.unpack_from("<HH", data, 60)
    first = struct.unpack_from("<IIQQQQIIQQ", data, offset)
    # Objects with very many sections keep both numbers in the first one.
    return offset, count or first[5], names if names != 0xFFFF else first[6]


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def local(file: str, name: str) -> str:
    """The second name of a function that is local to a source."""
    return f"{LOCALS}{file}..{name}"


def plain(name: str) -> str:
    """A symbol's name without what the compiler added, or a source's name in front."""
    return PARTS.sub("", name.partition("..")[2] if name.startswith(LOCALS) else name)


@lru_cache(maxsize=64)
def changed_sections(new: Object, old: Object) -> set[str]:
    """The sections of the new object that the old one has otherwise, or not at all."""
    before = {name: node.digest for name, node in old.nodes.items()}
    constants = {digest for name, digest in before.items() if NUMBERED.match(name)}
    found = {name for name, node in new.nodes.items() if before.get(name) != node.digest and name != ".eh_frame"}
    return {name for name in found if not NUMBERED.match(name) or new.nodes[name].digest not in constants}


def affected(
    objects: Mapping[Object, set[str]], leaves: Callable[[str], bool], inlined: Callable[[str], bool]
) -> dict[Object, set[str]]:
    """The sections of each object whose behaviour differs: changed themselves, or leading to one that does.

    A name that `leaves` is looked up when the process runs, and so leads to whatever is defined first. In the base,
    code of the same source may have what is `inlined` as a part of it, so to code it leads all the same.
    """
    users: dict[tuple[Object | None, str], list[tuple[Object, str]]] = {}
    for one in objects:
        for name, node in one.nodes.items():
            for section in node.sections:
                users.setdefault((one, section), []).append((one, name))
            code = name.startswith(".text")
            for symbol in node.names:
                if not leaves(symbol) or (code and symbol in one.defined and inlined(symbol)):
                    own = one.where.get(symbol) if symbol not in one.defined else None
                    users.setdefault((one, own) if own else (None, symbol), []).append((one, name))
    found = {one: set(sections) for one, sections in objects.items()}
    todo = [(one, section) for one, sections in objects.items() for section in sections]
    while todo:
        one, section = todo.pop()
        names = one.held.get(section, ())
        for key in [(one, section), *((None, name) for name in names)]:
            for user, name in users.get(key, ()):
                if name not in found[user]:
                    found[user].add(name)
                    todo.append((user, name))
    return found


def led_to(one: Object, section: str) -> tuple[set[str], set[str]] | None:
    """The functions that a table leads to, directly or by other tables, and all these tables, by section; None where
    it leads to code without a name, or to a local table that code uses too."""
    functions, tables, todo = set[str](), {section}, [section]
    while todo:
        node = one.nodes[todo.pop()]
        own = node.names & one.where.keys()
        code = {name for name in own if one.where[name].startswith(".text")}
        inner = {*node.sections, *(one.where[name] for name in own - code)} - tables
        if any(name.startswith(".text") for name in inner):
            return None
        functions |= code
        tables |= inner
        todo += inner
    private = tables - {one.where[name] for name in one.defined}
    others = [node for name, node in one.nodes.items() if private and name not in tables]
    used = (section for node in others for section in (*node.sections, *map(one.where.get, node.names)))
    return None if any(section in private for section in used) else (functions, tables)


@cache
def _demangle() -> Callable[..., bytes | None]:
    function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    function.restype = ctypes.c_char_p
    return function


@cache
def readable(name: str) -> str:
    """A symbol's name as C++ writes it."""
    # Nobody frees what that returns, which is once for each name.
    return (_demangle()(name.encode(), None, None, None) or name.encode()).decode()


def is_other(name: str) -> bool:
    """Whether a function is of a library that every C++ program has."""
    return bool(LIBC_AND_LIBSTDCXX.match(readable(name) if name.startswith("_Z") else name))


def node_of(symbol: str) -> str:
    """The node whose table of functions a symbol names, which whoever makes the node uses; else nothing."""
    found = MAKES.fullmatch(readable(symbol)) if symbol.startswith("_ZTV") else None
    return found[1] if found else ""


@cache
def called(name: str) -> str:
    """A function's or variable's qualified name, without its arguments and its templates' ones."""
    text = re.sub(r"^(?:vtable|typeinfo|typeinfo name|guard variable|VTT) for ", "", readable(plain(name)))
    text = text.replace("(anonymous namespace)", "{}").replace("operator()", "operator")
    while (outer := re.sub("<[^<>]*>", "", text)) != text:
        text = outer
    return text.partition("(")[0].strip().rpartition(" ")[2]


@cache
def identifier(name: str) -> str:
    """The last word of that: what the text of a program calls it; of a constructor, the class."""
    return re.sub(r"\W+", " ", called(name)).split()[-1] if re.search(r"\w", called(name)) else name
