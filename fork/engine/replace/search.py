"""Compiles what a branch's change of PyTorch's C++ needs, and finds what then takes the place of the base's.

The fork's library is looked up before the base's, so a symbol that the base exports is replaced by defining it. What
the base hides is reached directly: then its copy jumps to the fork's, and where no jump can, the change is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fork.cpp.registrations import left
from fork.engine.binary.libraries import Caller, Held, Libraries
from fork.engine.binary.objects import GLOBAL, Object, called, node_of
from fork.engine.compile import submodules
from fork.engine.compile.compiler import Compiler, Failed, Unit
from fork.engine.replace.decide import Decision
from fork.engine.replace.locals import file_of, named
from fork.engine.replace.source import CHANGED, Source
from fork.engine.replace.trace import Trace, say
from fork.errors import UNCOMPILED, UNSEEN, ForkError, refuse_all
from fork.refusals import Refusal
from fork.tree import KERNEL

# In a part of a generated source, rows of Python's methods, and the functions that make its classes of nodes.
ROWS = "\nFORK_ROWS {"
CLASSES = re.compile(r"^FORK_CLASSES\((\w+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Replacements:
    """The objects that go in front, those of the Python bindings apart; a phrase for each source; where the base looks
    up what they define; the folder of the headers that the branch changes; the functions that make Python's classes of
    nodes again, the files whose rows of Python's methods differ, and a source that defines operators again; the words
    that the changed sources have no longer; the line of the list of operators that names each changed kernel; which of
    the base's functions, by library and place there, jump to the fork's; which of the variables that they define are
    the base's; and the base's libraries, where somebody has read them."""

    objects: Sequence[Object] = ()
    python: Sequence[Object] = ()
    told: Sequence[str] = ()
    slots: Sequence[tuple[str, str, int]] = ()
    headers: Sequence[Path] = ()
    classes: Sequence[str] = ()
    rows: Sequence[str] = ()
    definitions: str = ""
    gone: frozenset[str] = frozenset()
    kernels: Mapping[str, str] = field(default_factory=dict)
    jumps: Sequence[tuple[str, str, int]] = ()
    shared: frozenset[str] = frozenset()
    libraries: Libraries | None = None

    def __bool__(self) -> bool:
        """Whether anything is linked for it."""
        return bool(self.objects or self.python or self.definitions)


class Search:
    """One run of the search."""

    def __init__(self, decision: Decision) -> None:
        decision.libraries.refuse_what_cannot_be_replaced()
        self._decision, self._tree, self._libraries = decision, decision.tree, decision.libraries
        self._generated = decision.generated

    def find(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Replacements:
        """`changed` and `headers` have the branch's text of each source and header that it changes."""
        decided = self._decision.made(changed, headers)
        sources = list(decided.sources.values())
        self._compile(sources)
        self._trace = trace = Trace(self._libraries, sources, decided, self._generated, self._tree.naming)
        self._compile_old(sources)
        trace.sources = [source for source in sources if not source.is_as_before()]
        found = trace.run()
        while [name for source, name in found.may_jump() if trace.jump(source, name)]:
            found = trace.run()  # fewer are concerned now
        own = {name for _, one in trace.objects() for name in one.defined}
        hidden = [
            Refusal.HIDDEN_ELSEWHERE.of(path=source.path, name=called(name))
            for source, name in found.missing
            if name not in own
        ]
        refuse_all([*found.problems, *self._still_used(found.callers), *hidden], UNSEEN)
        return self._result()

    def plan(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Replacements:
        """A line for each source that `find` compiles."""
        sources = self._decision.made(changed, headers).sources.values()
        return Replacements(told=[one.compiler.planned(one.path, one.why, one.units()) for one in sources])

    def _compile(self, sources: Sequence[Source]) -> None:
        """Brings every source's object."""
        new, problems = {unit: source for source in sources for unit in source.units()}, list[str]()
        headers: set[str] = set()
        for compiler in dict.fromkeys(source.compiler for source in new.values()):
            own = [unit for unit, source in new.items() if source.compiler is compiler]
            for unit, made in compiler.compile_all(own).items():
                if isinstance(made, Failed):
                    problems.append(self._failed(new[unit], made))
                else:
                    source = new[unit]
                    binds = source.text.before is not None and self._libraries.binds(source.path)
                    # Else a name is another's, too.
                    alone = (source.binds or not source.generated) and self._libraries.files[file_of(unit)] == 1
                    there = self._libraries.locals_of(file_of(unit)) if alone and source.left and source.alike else ()
                    source.new.append(Object(named(made, unit, source, there) if alone else made, binds))
                    headers |= {*compiler.headers_of(made)}
        refuse_all(problems, UNCOMPILED)
        for line in submodules.unlike(self._tree.checkout, self._tree.release, headers):
            print(f"warning  {line}", flush=True)

    def _compile_old(self, sources: Sequence[Source]) -> None:
        """Brings the object of a source's text before where something has to be compared."""
        held, old = self._trace.held(), defaultdict[Compiler, dict[Unit, Source]](dict)
        for source in sources:
            if source.text.before is None or source.generated or source.path.endswith(KERNEL):
                # nvcc puts the code of all kernels into one section, and a number of its run into names.
                source.old = [None] * len(source.new)
            elif self._needs_old(source, held):
                text = left(source.text.before, source.text.after)[0]
                # Headers that differ and do not matter to it let GCC put other functions into one another.
                compiler = source.compiler if self._trace.only_includes(source) else self._decision.before
                old[compiler] |= dict.fromkeys(compiler.units(source.path, text), source)
        for compiler, units in old.items():
            if count := sum(not compiler.kept(unit) for unit in units):
                print(f"compare  with {count} object{'s' * (count > 1)} of what there was before", flush=True)
            for unit, made in compiler.compile_all(units).items():
                units[unit].old.append(None if isinstance(made, Failed) else Object(made))

    def _failed(self, source: Source, failed: Failed) -> str:
        if source.why == CHANGED:
            return f"compiling {source.path} failed: {self._missing(failed)}{self._tree.doubt}"
        if source.generated and self._generated.of:
            error = re.sub(r"^.*?error: ", "", failed.error)
            raise ForkError(f"{self._generated.of} gives code that does not compile for the wheel: {error}")
        return Refusal.NOT_COMPILED.of(path=source.path, why=source.why, error=self._missing(failed))

    def _missing(self, failed: Failed) -> str:
        """The compiler's error, and of a header of another project what brings it: a submodule, or a package."""
        header = re.search(r"fatal error: (\S+): No such file", failed.error)
        brings = submodules.advice(self._tree.checkout.path, header[1]) if header else ""
        return f"{failed.error}; {brings}" if brings else failed.error

    def _needs_old(self, source: Source, held: Held) -> bool:
        """Whether it matters which functions the branch changed: the base reaches one directly, or registers one."""
        if source.left or source.why != CHANGED:
            return True

        def reached() -> list[str]:
            trace, names = self._trace, ((one, name) for one in source.new for name in one.defined)
            return [name for one, name in names if trace.foreign(source, one, name, held, trace.sources)]

        for name in reached():
            self._trace.jump(source, name)
        return bool(reached())

    def _still_used(self, callers: Sequence[tuple[Source, str, Caller]]) -> Iterator[str]:
        """What differs, and code of the base reaches without a jump; the GPU's libraries may keep what they have."""
        lost: dict[str, tuple[Source, Caller]] = {}  # one caller tells enough
        for source, name, caller in callers:
            stays = self._libraries.gpu and not self._tree.device and "cuda" in caller.library.rpartition("/")[2]
            if name not in lost and not stays and self._libraries.reaches(caller, name):
                lost[name] = source, caller
        for name, (source, caller) in lost.items():
            inside = caller.library.rpartition("/")[2]
            data = any(name in one.defined and one.defined[name].data for one in source.new)
            refusal = Refusal.HIDDEN_VARIABLE if data else Refusal.HIDDEN
            where = f"{caller.file}'s {called(caller.name)}" if caller.file else called(caller.name)
            yield refusal.of(what=say(source, name), library=inside, user=where)

    def _result(self) -> Replacements:
        self._trace.jump_all()
        groups: dict[bool, list[Object]] = {False: [], True: []}  # those of the Python bindings apart
        told: list[str] = []
        symbols: set[str] = set()
        for source in self._trace.sources:
            for one in source.new:
                groups[one.python].append(one)
                shown = {name for name, symbol in one.defined.items() if not symbol.hidden}
                symbols |= {name for name in shown if one.defined[name].binding == GLOBAL or node_of(name)}
            told.append(f"{source.path} ({source.why})")
        held = self._libraries.held((), symbols)
        slots = [(name, library, at) for name in sorted(symbols) for library, at in sorted(held.slots.get(name, ()))]
        jumps = sorted(self._trace.jumps & {name for _, one in self._trace.objects() for name in one.defined})
        made = [source for source in self._trace.sources if source.generated]
        return Replacements(
            objects=groups[False],
            python=groups[True],
            told=told,
            slots=slots,
            classes=[name for one in made for name in CLASSES.findall(one.text.after)],
            rows=[Path(one.path).stem for one in made if ROWS in one.text.after],
            definitions=self._generated.definitions,
            gone=frozenset(word for source in self._trace.sources for word in source.gone),
            kernels=self._generated.kernels,
            jumps=[(name, place.library, place.offset) for name in jumps for place in held.places[name]],
            shared=frozenset(self._trace.shared),
            libraries=self._libraries,
        )
