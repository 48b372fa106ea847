"""Gives the local functions of an object second names, so that the base's copies can jump to them.

A table, such as a Python type, has the addresses of functions that no other source sees. In the base, such a function
is known by the name of its source and its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from fork.engine.binary.objects import LOCAL, Object, local, plain
from fork.engine.compile import toolchain
from fork.engine.compile.compiler import Unit
from fork.engine.replace.source import Source

# A lambda of an object outside functions; and what runs it where it is handed on, as it is or in a std::function.
MADE = (
    r"(?<![\w:>)])(?P<object>(?:(?:\w+(?:\(\))?|\(anonymous namespace\))::)+)"
    r"\{lambda\((?P<takes>[^{}]*?)\)#(?P<number>\d+)\}"
)
LAMBDA = re.compile(rf"(?P<front>std::_Function_handler<.*, )?{MADE}(?P<runs>::_FUN|>::_M_invoke)\([^{{}}]*")
KEY = ("front", "object", "number", "runs")


def file_of(unit: Unit) -> str:
    """What the base's libraries call the source of a unit."""
    return unit.path.rpartition("/")[2] + (f".{unit.capability}.cpp" if unit.capability else "")


def lambdas(own: Collection[str], source: Source, there: Collection[str]) -> dict[str, str]:
    """Of an object's local functions those that are lambdas, with the base's names of the same lambdas.

    Compilers number them by their order in the text of an object or table, which a change of their bodies leaves as it
    is. Some count all of it, and others those of the same arguments. So the names alone may be those of others: both
    sides must have each number from the first to the last, once, and for the same arguments.
    """
    said = {name: source.original(name) for name in (*own, *there)}
    counted, others = _numbers(said[name] for name in own), _numbers(said[name] for name in there)
    ordered = (one for one, found in counted.items() if [*range(1, len(found) + 1)] == sorted(n for n, _ in found))
    sure = {one for one in ordered if counted[one] == others[one] and one.split("::")[-2] in source.alike}
    matches = {name: LAMBDA.fullmatch(said[name]) for name in said if plain(name) == name}
    keys = {name: one.group(*KEY) for name, one in matches.items() if one and one["object"] in sure}
    counts, base = Counter(keys.get(name) for name in there), {keys[name]: name for name in there if name in keys}
    return {name: base[keys[name]] for name in own if name in keys and counts[keys[name]] == 1}


def _numbers(names: Iterable[str]) -> dict[str, set[tuple[int, str]]]:
    """The lambdas of each object: their numbers, and what they take, but for the arguments of templates, in which GCC's
    releases differ."""
    found = defaultdict[str, set[tuple[int, str]]](set)
    for one in (one for name in names for one in re.finditer(MADE, name)):
        found[one["object"]].add((int(one["number"]), re.sub("<.*>", "", one["takes"])))
    return found


def named(made: Path, unit: Unit, source: Source, there: Collection[str]) -> Path:
    """The same object with a second name for each of its local functions; `there` has those of the base's source."""
    one = Object(made)
    counts = Counter(symbol.name for symbol in one.symbols if symbol)
    sections = Counter(one.section_names)
    file = file_of(unit)
    own = [symbol for symbol in one.symbols if symbol and symbol.binding == LOCAL and not symbol.data]
    pairs = lambdas([symbol.name for symbol in own], source, there)
    words: list[str] = []
    for symbol in own:
        if counts[symbol.name] != 1:
            continue
        section, name = one.where.get(symbol.name, ""), pairs.get(symbol.name, symbol.name)
        # The compiler numbers lambdas and what it has split, so a name can be that of another in the base.
        numbered = plain(symbol.name) != symbol.name or ("Ul" in symbol.name and symbol.name not in pairs)
        if (
            (symbol.name.startswith("_Z") or unit.path.endswith(".c"))
            and section.startswith(".text.")
            and sections[section] == 1
            and not numbered
        ):
            words += ["--add-symbol", f"{local(file, name)}={section}:{symbol.value:#x},global,function"]
    return toolchain.copied(made, words) if words else made
