"""Traces who still reaches the base's own copy of what compiled sources change, and what would be done twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from fork.cpp.registrations import NAME, object_of
from fork.engine.binary.libraries import BINDINGS, ENDINGS, LATE, Caller, Held, Libraries
from fork.engine.binary.objects import (
    GLOBAL,
    LOCALS,
    WEAK,
    Object,
    affected,
    called,
    changed_sections,
    identifier,
    is_other,
    led_to,
    local,
    node_of,
    plain,
)
from fork.engine.generate.generated import Generated
from fork.engine.replace.decide import SAYS, Decided
from fork.engine.replace.source import CHANGED, Source
from fork.refusals import Refusal

# What fills the tables of a source, all of them, and no code can name.
UNNAMED, FILLS = ".data", "the branch changes what a table of its source is filled with"
# Of a class, whose functions or name it refers to.
TABLE = re.compile(r"_ZT[VIST]")
# What is done once, by its name, and what takes the place of what was done before.
REGISTERS = re.compile(r"[Rr]egist|[sS]et\w*(?:Hook|Handler|Allocator|Callback)|[aA]dd\w*(?:Hook|Handler|Callback)")
# A sanitizer knows the variables of each library apart.
AGAIN = re.compile(
    r"torch::Library::|c10::Dispatcher::registerImpl|at::native::Register\w*Dispatch|__cudaRegister|__[atu]b?san_"
)
NEAR = 5  # bytes of a jump over at most 2 GiB


@dataclass(frozen=True)
class Found:
    """Who in the base reaches a symbol of a source that differs; which functions the base has registered; what a
    source calls and the base hides; and what would not run, or not everywhere."""

    callers: list[tuple[Source, str, Caller]] = field(default_factory=list)
    registered: list[tuple[Source, str]] = field(default_factory=list)
    missing: list[tuple[Source, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def may_jump(self) -> list[tuple[Source, str]]:
        """What code of the base can reach, if its own copy becomes a jump."""
        return [*((source, name) for source, name, _ in self.callers), *self.registered]


@dataclass
class Trace:
    """What a base makes of compiled sources; `naming` tells the files that name a word. The words of the branch's
    headers, and what differs there, are those of a decision (decide.py)."""

    libraries: Libraries
    sources: Sequence[Source]
    decided: Decided
    generated: Generated
    naming: Callable[[str], Collection[str]]
    jumps: set[str] = field(default_factory=set)  # the functions whose copies in the base become jumps
    shared: set[str] = field(default_factory=set)  # the variables that the sources define, and that are the base's

    def objects(self) -> Iterator[tuple[Source, Object]]:
        for source in self.sources:
            for one in source.new:
                yield source, one

    def held(self) -> Held:
        """What the base has of the names of all objects, and who reaches what a change can concern."""
        reached: set[str] = set()
        for source, one in self.objects():
            if source.generated and not source.binds:
                reached |= set(filter(node_of, one.defined))
            else:
                reached |= {name for name in one.defined if self._own(source, one, name)}
        names = {name for _, one in self.objects() for name in (*one.defined, *one.undefined)}
        inline = {name for _, one in self.objects() for name in one.inline}
        while True:
            held = self.libraries.held(reached, names)
            callers = {caller.name for name in reached for caller in held.direct.get(name, ())}
            if callers & inline <= reached:
                break
            reached |= callers & inline
        for source in self.sources:
            for n, one in enumerate(source.new):
                old = source.old[n] if source.old else None
                self.shared |= {
                    name
                    for name in one.defined
                    if held.hides(name, one.python) and self._is_left(source, one, old, name)
                }
        return held

    def _is_left(self, source: Source, one: Object, old: Object | None, name: str) -> bool:
        """Whether a name is a variable of plain data that the branch does not change."""
        symbol, section = one.defined[name], one.where[name]
        if not symbol.data or symbol.hidden or TABLE.match(name):
            return False
        if one.nodes[section].names or one.nodes[section].sections:  # it holds an address
            led, served = led_to(one, section), self.jumps | self.libraries.held((), ()).exported
            return bool(old and led and led[0] <= served and not led[1] & changed_sections(one, old))
        of_header = source.inherits(section, one) and identifier(name) not in self.decided.words
        return of_header or (old is not None and section in old.nodes and section not in changed_sections(one, old))

    def foreign(self, source: Source, one: Object, name: str, held: Held, sources: Sequence[Source]) -> list[Caller]:
        """Who in the base reaches a symbol of a source directly, and is of none of these sources."""
        if source.nodes or (source.generated and not (source.binds or name in held.exported)):
            # By vtables, by the dispatcher and by Python's classes alone; equal ones may still jump to one another.
            return []
        if name in self.jumps or name in self.shared or not self._own(source, one, name):
            return []
        # What the bindings reach directly is their own: core code that uses the same header has it for itself.
        found = (caller for caller in held.direct.get(name, ()) if one.python or not caller.library.endswith(BINDINGS))
        return [caller for caller in found if self._stays(caller, sources, held) or not self.covered(caller, sources)]

    def jump(self, source: Source, name: str) -> bool:
        """Lets the base's copies of a function jump to the source's, or of a table what it leads to; whether that
        changes who is concerned."""
        before = len(self.jumps)
        for one in source.new:
            known = one.nodes.get(one.where[name]) if name in one.defined else None
            led = led_to(one, one.where[name]) if known and one.defined[name].data else None
            inner = {name, *(led[0] if led else known.names if known else ())} & one.defined.keys()
            if known:
                for to in inner:
                    self.jumps |= self._jumping(source, one, to)
        return len(self.jumps) > before

    def _jumping(self, source: Source, one: Object, name: str) -> set[str]:
        """A function and those that have to jump with it; none if one of them cannot.

        A compiler knows which registers a hidden function of the same source leaves alone, and old code beside it that
        calls it may rely on that (-fipa-ra). The new function need not, so no such code may run any longer. A weak one,
        as inline functions and templates are, the linker may take of another source, so nothing relies on it.
        """
        found, todo = set[str](), [name]
        while todo:
            name = todo.pop()
            if name in found or name in self.jumps:
                continue
            held = self.libraries.held((), ())
            if not self._may_jump(one, name, held):
                return set()
            found.add(name)
            relied_on = name not in held.exported and one.defined[name].binding != WEAK
            for caller in held.calls.get(name, ()) if relied_on else ():
                known = local(caller.file, caller.name) if caller.file else caller.name
                if known in one.defined and not one.defined[known].data:
                    todo.append(known)
                elif source.left and caller.file and is_of(caller, source.path):
                    return set()  # It may be of what the base has registered, and keeps.
        return found

    def jump_all(self) -> None:
        """Lets all functions jump that a changed source exports, whoever may have their addresses."""
        held = self.held()
        for source in self.sources:
            for one in () if source.nodes else source.new:
                shown = (name for name, symbol in one.defined.items() if symbol.binding == GLOBAL)
                self.jumps |= {name for name in shown if name in held.exported and self._may_jump(one, name, held)}

    def _may_jump(self, one: Object, name: str, held: Held) -> bool:
        """Whether every copy that the base has of a function of this object has room, and no other function's name."""
        places = held.places.get(name, set())
        known = len(places) == 1 if name.startswith(LOCALS) else bool(places)  # else of two files of one name
        if not known or one.defined[name].data or one.where[name] in one.kernels:
            return False
        # Where the compiler folded equal functions, the branch may have made them unlike.
        others = (twin for place in places for twin in place.twins if plain(twin) != plain(name))
        alike = all(one.places.get(twin) == one.places[name] for twin in others)
        return alike and all(place.room >= NEAR and place.library not in LATE for place in places)

    def _own(self, source: Source, one: Object, name: str) -> bool:
        """Whether a symbol is of what a change of this source can define, not of a header that the branch leaves."""
        word = identifier(name) if one.defined[name].binding != GLOBAL else ""
        return not word or word in self.decided.words or (word in source.words and not source.generated)

    def _stays(self, caller: Caller, sources: Sequence[Source], held: Held) -> bool:
        """Whether a caller is a header's function, of which the base has a copy that others run too."""
        name = caller.name
        if name in self.jumps or name in held.exported:
            return False
        return any(name in one.inline for source in sources for one in source.new)

    def covered(self, caller: Caller, sources: Sequence[Source]) -> bool:
        """Whether the function or table of the base that reaches a symbol is of one of these sources."""
        name = plain(caller.name)
        named = [source for source in sources if not caller.file or is_of(caller, source.path)]
        alone = self.libraries.files[caller.file] == 1 if caller.file else False
        # Of a source that is compiled whole, all is; of a generated one what differs, but not what fills its tables.
        starts = name.startswith("_GLOBAL__sub_I")
        return any(
            (name in one.names and not starts) if source.generated else (alone or name in one.names)
            for source in named
            for one in source.new
        )

    def run(self) -> Found:
        """Traces from every section that differs."""
        held, told = self.held(), Found()
        differing, leaves = self._differing(held)
        found = affected(differing, leaves, lambda name: name not in held.exported)
        for source, one in self.objects():
            for name in one.defined:
                differs = one.where[name] in found[one]
                told.problems.extend(self._trace_symbol(source, one, name, differs, held))
                callers = self.foreign(source, one, name, held, self.sources) if differs else ()
                told.callers.extend((source, name, caller) for caller in callers)
            for problem, behind in self._trace_left(source, one, differing[one], found[one], leaves):
                told.problems.append(problem)
                told.registered.extend((source, name) for name in sorted(behind))
            told.problems.extend(self._trace_start(source, one, held))
            for name in sorted((one.undefined & held.hidden) - held.exported):
                if not held.hides(name, one.python) and not is_other(name):
                    told.missing.append((source, name))
        return told

    def _differing(self, held: Held) -> tuple[dict[Object, set[str]], Callable[[str], bool]]:
        """The sections of each object that the branch changes, and whether a name leads out of the objects."""
        differing: dict[Object, set[str]] = {}
        for source in self.sources:
            alone = self.alone(source)
            for n, one in enumerate(source.new):
                old = source.old[n] if source.old else one
                differing[one] = source.differing(n, alone)
                if alone and (old or source.text.before is None):
                    # A template of a header that the source uses now: the base's own is made of the same text.
                    weak = [name for name, symbol in one.defined.items() if symbol.binding != GLOBAL]
                    differing[one] -= {one.where[name] for name in weak if not old or name not in old.defined}
        hidden = {name for one in differing for name, symbol in one.defined.items() if symbol.hidden}

        def leaves(name: str) -> bool:
            return name in self.jumps or name in self.shared or (name in held.exported and name not in hidden)

        # What both can write to must be the one in front for all.
        for source, one in self.objects():
            for name in one.defined:
                own = {one.where[name]}
                if self.foreign(source, one, name, held, [source]) and one.state_of(one.reached(own, leaves)):
                    differing[one] |= own
        return differing, leaves

    def alone(self, source: Source) -> bool:
        """Whether no header that the branch changes can concern a source."""
        return self.decided.names is not None and self.decided.names.isdisjoint(source.words)

    def only_includes(self, source: Source) -> bool:
        """Whether headers differ, the generated ones too, and none of them can concern a changed source."""
        differ = self.decided.words or self.generated.headers
        known = self.generated.declared | self.generated.unlike
        return bool(differ) and source.why == CHANGED and self.alone(source) and known.isdisjoint(source.words)

    def _trace_symbol(self, source: Source, one: Object, name: str, differs: bool, held: Held) -> Iterator[str]:
        symbol, exported = one.defined[name], name in held.exported
        if one.where[name] in one.kernels and {source.path} >= set(self.naming(identifier(name))):
            # The base launches its own kernel, which nobody else names.
            if exported and not symbol.hidden:
                yield Refusal.LAUNCHED.of(what=say(source, name))
            return
        bound = differs and exported and self._own(source, one, name) and (symbol.hidden or name in held.bound)
        # Python reaches the base's own copy of a generated function by a table, filled when a process starts.
        local = source.binds and "THPVariable_" in name and name.startswith(LOCALS) and held.places.get(name)
        if (bound or local) and name not in self.jumps:
            yield Refusal.BOUND.of(what=say(source, name))
        # Whoever in the base makes a generated node has to save in it what its code expects.
        node = node_of(name)
        for caller in held.users.get(name, ()) if node in self.generated.unlike else ():
            who = called(caller.name)
            if who.endswith(f"::{node}::{node}") or not self.covered(caller, self.sources):
                yield Refusal.NODE_MADE_ELSEWHERE.of(node=node, user=who)

    def _trace_left(
        self, source: Source, one: Object, differing: set[str], found: set[str], leaves: Callable[[str], bool]
    ) -> Iterator[tuple[str, set[str]]]:
        """What the base has registered, and the source does not register again, must lead to nothing that differs: a
        sentence, and the functions that would have to jump."""
        for name, section in one.where.items():
            number = NAME.search(name)
            if not number or int(number[1]) >= len(source.left):
                continue
            place, head = source.left[int(number[1])]
            if object_of(head) in source.alike and "Ul" in name[number.end() :]:
                continue  # Its lambdas run later, where it hands them on.
            line, code = source.text.line(place), {section}
            filled = {name for name in one.nodes if _is_filled(source, one, name)}
            if one.reached(code, leaves) & filled:  # It hands on what they hold.
                code |= {name for name in one.nodes if name.startswith(".text.startup")}
            code = one.whole(code)
            nodes = [one.nodes[name] for name in code]
            behind = {to for node in nodes for to in node.names - self.jumps if one.where.get(to) in found}
            # What it has called is done; what it has handed on is called later.
            differs = code & differing or behind or {to for node in nodes for to in node.sections - code} & found
            called_then = any(one.where.get(to) in found for node in nodes for to in node.calls)
            state = one.state_of(one.reached(code, leaves) - filled - {UNNAMED})
            if differs or called_then or state:
                says = FILLS if differs == {UNNAMED} else SAYS
                why = says if differs or called_then else f"it uses `{called(state[0].rpartition('.')[2])}`"
                yield Refusal.REGISTERED_ONCE.of(place=f"{source.path}:{line}", head=head, why=why), behind

    def _trace_start(self, source: Source, one: Object, held: Held) -> Iterator[str]:
        """What runs when the process starts has run in the base already: it must neither register nor build again."""
        seen, todo, calls = set(), [name for name in one.nodes if name.startswith(".text.startup")], set[str]()
        names = {name for section in todo for name in one.nodes[section].names}
        while todo:
            section = todo.pop()
            seen.add(section)
            calls |= one.nodes[section].calls
            inner = {one.where[name] for name in one.nodes[section].calls if name in one.where}
            todo += [name for name in inner if name in one.nodes and name not in seen]
        for name in sorted(calls):
            if REGISTERS.search(called(name)) and not AGAIN.match(called(name)):
                yield Refusal.STARTS.of(path=source.path, name=called(name))
        for name in sorted(names & one.defined.keys() & held.exported) if calls else ():
            if one.defined[name].data and one.nodes[one.where[name]].state:
                yield Refusal.BUILT_AT_START.of(what=say(source, name))


def _is_filled(source: Source, one: Object, section: str) -> bool:
    """Whether a section is a table that is filled as before, and that only registrations read."""
    own = one.held.get(section, ())
    users = (name for name, node in one.nodes.items() if section in node.sections or not node.names.isdisjoint(own))
    alike = identifier(section.rpartition(".")[2]) in source.alike
    return alike and all(name.startswith(".text.startup") or NAME.search(name) for name in users)


def say(source: Source, name: str) -> str:
    """A symbol of a source, with its line there."""
    found = re.search(rf"\b{re.escape(identifier(name))}\b", source.code)
    line = source.text.line(source.text.after.count("\n", 0, found.start()) + 1 if found else 1)
    return f"{source.path}:{line} `{called(name)}`"


def is_of(caller: Caller, path: str) -> bool:
    """Whether a file of the base that holds a caller was made of a source."""
    return any(caller.file == path.rpartition("/")[2] + ending for ending in ENDINGS)
