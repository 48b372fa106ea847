"""Finds all that has to be compiled so that a branch's change of PyTorch's C++ takes the place of the base's.

The fork's library is looked up before the base's, so a symbol that the base exports is replaced by defining it. What
the base hides is reached directly: then its copy jumps to the fork's, and where no jump can, the change is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fork.checkout.changed import SOURCES, Text, Tree, on_device
from fork.engine.binary.callers import Caller, Held, Libraries, Place
from fork.engine.binary.objects import GLOBAL, Object, called, identifier
from fork.engine.compile import submodules
from fork.engine.compile.compiler import Compiler, Failed, Unit
from fork.engine.compile.conditions import unread
from fork.engine.compile.device import STAYS, SUFFIX
from fork.engine.generate.kernels import Kernels
from fork.engine.generate.nodes import GENERATED, Nodes, node_of
from fork.engine.replace.headers import WORD, Names, changed_names, generated
from fork.engine.replace.hidden import is_other, leading
from fork.engine.replace.jumps import jumping
from fork.engine.replace.locals import file_of, named
from fork.engine.replace.trace import CHANGED, NAMES, SAYS, SUPPLIED, Source, Trace, say
from fork.engine.replace.variables import sharing, weakened
from fork.errors import UNSEEN, ForkError, refuse_all
from fork.refusals import Refusal
from fork.upstream import DERIVATIVES
from fork.weave.declarations import redeclared
from fork.weave.definitions import only_bodies
from fork.weave.registrations import altered, dropped, left
from fork.weave.scan import code_of

# The templates of the nodes and kernels that are generated again for a formula.
FORMULAS = ("autograd/templates/Functions.cpp", "autograd/templates/VariableType.cpp")


@dataclass(frozen=True)
class Replaced:
    """The objects that go in front, those of the Python bindings apart; a phrase for each source; where the base looks
    up what they define; the folder of the headers that the branch changes; whether nodes were generated; the words that
    the changed sources have no longer; the line of the list of operators that names each changed kernel; and which of
    the base's functions, by library and place there, jump to the fork's."""

    objects: Sequence[Path] = ()
    python: Sequence[Path] = ()
    told: Sequence[str] = ()
    slots: Sequence[tuple[str, str, int]] = ()
    headers: Sequence[Path] = ()
    generated: bool = False
    gone: frozenset[str] = frozenset()
    kernels: Mapping[str, str] = field(default_factory=dict)
    jumps: Sequence[tuple[str, str, int]] = ()


class Replacement:
    """One run of the search; `headers` are those that the branch changes."""

    def __init__(
        self,
        tree: Tree,
        libraries: Libraries,
        compiler: Compiler,
        before: Compiler,
        limit: int,
        nodes: Nodes | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self._tree, self._libraries, self._limit, self._nodes = tree, libraries, limit, nodes
        self._kernels = kernels or Kernels()
        self._compiler, self._before = compiler, before  # with the branch's headers, and with the release's
        self._sources: dict[str, Source] = {}
        self._words: set[str] = set()  # of the headers that the branch changes
        self._known_words: dict[str, set[str]] = {}  # of sources, by path
        self._declared: dict[str, str] = {}  # functions that those declare otherwise which formulas use, with the line
        self._problems: list[str] = []
        self._trace = Trace(libraries, self._sources, self._words, self._declared, self._problems, nodes, tree.naming)

    def find(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Replaced:
        """`changed` and `headers` have the branch's text of each source and header that it changes."""
        self._decide(changed, headers)
        self._compile()
        refuse_all(self._problems, UNSEEN)
        for source in list(self._sources.values()):
            same = all(old and not source.differing(n, False) for n, old in enumerate(source.old))
            if source.old and same:
                del self._sources[source.path]
        found = self._trace.run()
        while [name for source, name, _ in found.callers if self._trace.jump(source, name)]:
            refuse_all(self._problems, UNSEEN)
            found = self._trace.run()  # fewer are concerned now
        self._refuse_callers(found.callers)
        own = {name for _, one in self._trace.objects() for name in one.defined}
        self._problems += [
            Refusal.HIDDEN_ELSEWHERE.of(path=source.path, name=called(name))
            for source, name in found.missing
            if name not in own
        ]
        refuse_all(self._problems, UNSEEN)
        return self._result()

    def plan(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Replaced:
        """A line for each source that `find` compiles."""
        self._decide(changed, headers)
        told = [f"compile  {line}" for line in self._told_nodes()]
        for source in self._sources.values():
            if not source.generated:
                kept = all(map(source.compiler.kept, source.units()))
                took = "" if kept else source.compiler.took(source.units())
                told.append(f"{'kept' if kept else 'compile':8} {source.path} ({source.why}{took})")
        return Replaced(told=told)

    def _decide(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> None:
        """Whatever is to be compiled and what cannot be, as far as the texts tell it."""
        declaring = {path for path, text in headers.items() if self._declares(path, text)}
        others = [path for path in headers if path not in declaring]
        for path in others:
            before = self._tree.checkout.read_at(self._tree.since, path) or ""
            self._words |= {word for text in (before, headers[path]) for word in re.findall(r"\w+", code_of(text))}
        for path, text in changed.items():
            self._add(self._tree.text(path, text), CHANGED)
        including = self._tree.includers(others)
        texts = {path: (self._tree.read(path) or "", self._tree.merged(path, headers[path])) for path in others}
        names = changed_names(texts, including, Names(self._tree.read, self._tree.naming, self._tree.texts))
        alone = names is not None or all(only_bodies(*both) for both in texts.values())
        if names is None or generated(names, self._libraries.generators):
            self._refuse_generated(others, including)
        reached = {header: {*self._tree.includers([header])} for header in headers}
        for path in self._tree.includers(headers):
            if names is not None and not (names | self._declared.keys()) & self._words_of(path):
                continue
            if path in changed:
                continue
            why = f"includes the changed {next(header for header in headers if path in reached[header])}"
            if self._stays(path):
                self._leave(path, why, alone)
            elif self._compiles(path):
                self._add(self._tree.text(path), why)
            elif path.endswith(SUFFIX) and self._libraries.gpu:
                self._refuse(Refusal.NO_NVCC_FOR_USER, path=path, why=why, cuda=self._compiler.lacking)
        self._add_makers()
        self._add_kernels()
        refuse_all(self._problems, UNSEEN)  # what needs no compiler, before it takes minutes
        for path in headers.keys() - declaring:
            if not self._sources.keys() & self._tree.includers([path]) and not self._problems:
                print(f"note     {path}: nothing that the wheel is made of names what changes there", flush=True)
        refuse_all(self._problems, UNSEEN)
        self._refuse_many()
        self._tell_unread({**changed, **headers})
        self._generate()

    def _tell_unread(self, changed: Mapping[str, str]) -> None:
        for path, text in changed.items():
            before = self._tree.read(path)
            if before is None or path.endswith(SUFFIX):
                continue
            for line, directive in unread(self._compiler, path, before, self._tree.merged(path, text)):
                print(f"note     {path}:{line} is below `{directive}`: the wheel's build does not read it", flush=True)

    def _included(self, including: Sequence[str]) -> list[tuple[Path, str]]:
        """The templates of generated code that include one of these files, each with that."""
        known = {path.removeprefix("aten/src/"): path for path in including}
        found: list[tuple[Path, str]] = []
        for template in self._libraries.templates:
            names = re.findall(r'^\s*#\s*include\s*[<"]([^">]+)', template.read_text(), re.MULTILINE)
            found += [(template, known[name]) for name in names if name in known]
        return found

    def _refuse_generated(self, headers: Sequence[str], including: Sequence[str]) -> None:
        """Of the code that PyTorch's build generates, nothing tells where it has what a header defines."""
        for template, found in self._included(including)[:1]:
            way = found if found in headers else f"{found} and so {headers[0]}"
            self._refuse(Refusal.GENERATED, headers=way, template=template.name)

    def _compiles(self, path: str) -> bool:
        """Whether a file is a source that the base was made of, and for which there is a compiler."""
        return path.endswith(self._compiler.kinds) and self._libraries.has_source(path)

    def _stays(self, path: str) -> bool:
        """Whether a file is of the base's libraries for the GPU, and those are to stay as they are."""
        return self._libraries.gpu and not self._tree.device and on_device(path)

    def _leave(self, path: str, why: str, alone: bool) -> None:
        """Leaves the GPU's source as the base has it, where no type differs that both have to see alike."""
        if self._libraries.has_source(path) and alone:
            print(f"left out {path}: it {why}, and {STAYS}", flush=True)
        elif self._libraries.has_source(path):
            self._refuse(Refusal.TYPE_OF_GPU, path=path, why=why)

    def _declares(self, header: str, text: str) -> bool:
        """Whether a change is of functions alone that a header declares for the code of formulas; their operators'
        nodes and kernels are made again."""
        including = self._tree.includers([header])
        templates = self._included(including)
        passed_on = [path for path in including if path != header and not path.endswith((*SOURCES, SUFFIX))]
        formulas = all(path == header and file.as_posix().endswith(FORMULAS) for file, path in templates)
        if not templates or not formulas or passed_on or self._nodes is None:
            return False
        change = redeclared(self._tree.checkout.read_at(self._tree.since, header) or "", text)
        if change.other:
            self._refuse(Refusal.NAMELESS, place=f"{header}:{change.other[1]}", what=change.other[0])
        programs = [file for file in self._libraries.generators if file.suffix == ".py"]
        fixed = {
            word for file in (*programs, *(file for file, _ in templates)) for word in WORD.findall(file.read_text())
        }
        for name, line in change.names.items():
            if name in fixed:
                self._refuse(Refusal.BESIDE_FORMULAS, place=f"{header}:{line}", name=name)
            for operator in self._nodes.calling(name):
                self._nodes.reasons.setdefault(operator, f"calling {name}")
        self._declared |= {name: f"{header}:{line}" for name, line in change.names.items()}
        return True

    def _add(self, text: Text, why: str) -> None:
        if text.path not in self._sources:
            declared = self._kernels.names if why == NAMES else self._declared
            self._sources[text.path] = Source(text, why, self._compiler, declared)
            for _, head in dropped(text.before or text.after, text.after):
                self._refuse(Refusal.NO_LONGER_REGISTERED, place=text.path, what=f"`{head}`")
            for place, head in altered(text.before or text.after, text.after):
                self._refuse(Refusal.REGISTERED_ONCE, place=f"{text.path}:{text.line(place)}", head=head, why=SAYS)

    def _add_makers(self) -> None:
        """The sources that make a node by hand which saves other values now."""
        for node in self._nodes.unlike if self._nodes else ():
            for path in self._tree.naming(node):
                if self._compiles(path):
                    self._add(self._tree.text(path), f"makes {node}")

    def _add_kernels(self) -> None:
        """What registers the kernels that an entry names otherwise, and the sources that call one by its name."""
        for text, why in self._kernels.sources.items():
            self._add(text, why)
        names, headers = self._kernels.names, [*self._kernels.headers, "ATen/NativeFunctions.h"]
        for path in self._tree.includers(headers) if names else ():
            if not names & self._words_of(path):
                continue
            code = code_of(self._tree.read(path) or "") if path.endswith(SUFFIX) and self._libraries.gpu else ""
            calls = any(re.search(rf"\b{name}\s*\(", code) for name in names)
            if self._stays(path) and (calls or not code):
                self._leave(path, NAMES, True)
            elif self._compiles(path) and (calls or not code):
                self._add(self._tree.text(path), NAMES)
            elif calls:
                self._refuse(Refusal.NO_NVCC_FOR_USER, path=path, why=NAMES, cuda=self._compiler.lacking)

    def _generate(self) -> None:
        """Makes the nodes and kernels again that call a changed formula, or whose entry is changed."""
        if not self._nodes or not self._nodes.reasons:
            return
        compiler = self._compiler.including(self._nodes.folders)
        for text in self._nodes.texts():
            self._sources[text.path] = Source(text, "", compiler)

    def _refuse_many(self) -> None:
        sources = sum(not source.generated for source in self._sources.values())
        device = sum(path.endswith(SUFFIX) for path in self._sources)
        operators = len(self._nodes.reasons) if self._nodes else 0
        if (count := sources + operators) > self._limit:
            nodes = f" and the nodes of {operators} operator{'s' if operators > 1 else ''}" if operators else ""
            minutes = (sources * 12 + device * 48 + operators * 2) // 60 + 1
            what = f"{sources} source{'s' if sources != 1 else ''}{nodes}"
            raise ForkError(Refusal.TOO_MANY.of(what=what, minutes=minutes, count=count))

    def _compile(self) -> None:
        """Brings every source's object, and the one of its text before where something has to be compared."""
        new = {unit: source for source in self._sources.values() for unit in source.units()}
        headers: set[str] = set()
        for compiler in dict.fromkeys(source.compiler for source in new.values()):
            own = [unit for unit, source in new.items() if source.compiler is compiler]
            for unit, made in compiler.compile_all(own).items():
                if isinstance(made, Failed):
                    self._failed(new[unit], made)
                else:
                    source = new[unit]
                    binds = source.text.before is not None and self._libraries.binds(source.path)
                    # Else a name is another's, too.
                    alone = not source.generated and self._libraries.files[file_of(unit)] == 1
                    source.new.append(Object(named(made, unit) if alone else made, binds))
                    headers |= {*compiler.headers_of(made)}
        refuse_all(self._problems, UNSEEN)
        for line in submodules.unlike(self._tree.checkout, self._tree.release, headers):
            print(f"warning  {line}", flush=True)
        held = self._trace.held()
        old: dict[Unit, Source] = {}
        for source in self._sources.values():
            if source.generated:
                continue
            if source.text.before is None or source.path.endswith(SUFFIX):
                # nvcc puts the code of all kernels into one section, and a number of its run into names.
                source.old = [None] * len(source.new)
            elif self._needs_old(source, held):
                text = left(source.text.before, source.text.after)[0]
                old |= dict.fromkeys(self._before.units(source.path, text), source)
        for unit, made in self._before.compile_all(old).items():
            old[unit].old.append(None if isinstance(made, Failed) else Object(made))

    def _failed(self, source: Source, failed: Failed) -> None:
        if source.why == CHANGED:
            raise ForkError(f"compiling {source.path} failed: {self._missing(failed)}")
        if self._nodes and source.generated:
            changed = ", ".join(f"{DERIVATIVES}:{line}" for line in self._nodes.changed.values())
            error = re.sub(r"^.*?error: ", "", failed.error)
            raise ForkError(f"{changed or 'the nodes'} gives code that does not compile for the wheel: {error}")
        self._refuse(Refusal.NOT_COMPILED, path=source.path, why=source.why, error=self._missing(failed))

    def _missing(self, failed: Failed) -> str:
        """The compiler's error, and of a header of another project what brings it: a submodule, or a package."""
        header = re.search(r"fatal error: (\S+): No such file", failed.error)
        brings = submodules.advice(self._tree.checkout.path, header[1]) if header else ""
        return f"{failed.error}; {brings}" if brings else failed.error

    def _needs_old(self, source: Source, held: Held) -> bool:
        """Whether it matters which functions the branch changed: the base reaches one directly, or registers one."""
        if self._declared:
            return True
        if source.left or source.why != CHANGED:
            return True
        reached = [name for one in source.new for name in one.defined if self._trace.outside(source, one, name, held)]
        for name in reached:
            self._trace.jump(source, name)
        return any(self._trace.outside(source, one, name, held) for one in source.new for name in one.defined)

    def _refuse_callers(self, callers: Sequence[tuple[Source, str, Caller]]) -> None:
        """What differs, and code of the base reaches without a jump; the GPU's libraries may keep what they have."""
        lost: dict[str, tuple[Source, Caller]] = {}  # one caller tells enough
        for source, name, caller in callers:
            if not self._libraries.gpu or self._tree.device or "cuda" not in caller.library.rpartition("/")[2]:
                lost.setdefault(name, (source, caller))
        for name, (source, caller) in lost.items():
            word, inside = identifier(name), caller.library.rpartition("/")[2]
            data = any(name in one.defined and one.defined[name].data for one in source.new)
            why = "is a variable" if data else "cannot become a jump there"
            why = "is declared otherwise" if word in self._declared else why
            where = f"{caller.file}'s {called(caller.name)}" if caller.file else called(caller.name)
            what = say(source, name, self._declared.get(word, ""))
            self._refuse(Refusal.HIDDEN, what=what, library=inside, why=why, user=where)

    def _refuse(self, refusal: Refusal, **words: object) -> None:
        self._problems.append(refusal.of(**words))

    def _words_of(self, path: str) -> set[str]:
        if path not in self._known_words:
            self._known_words[path] = set(re.findall(r"\w+", self._tree.read(path) or ""))
        return self._known_words[path]

    def _result(self) -> Replaced:
        self._trace.jump_all()
        groups: dict[bool, list[Object]] = {False: [], True: []}  # those of the Python bindings apart
        told: list[str] = []
        symbols: set[str] = set()
        for source in self._sources.values():
            for one in source.new:
                groups[one.python].append(one)
                shown = {name for name, symbol in one.defined.items() if not symbol.hidden}
                symbols |= {name for name in shown if one.defined[name].binding == GLOBAL or node_of(name)}
            if not source.generated:
                told.append(f"{source.path} ({source.why})")
        held, jumps = self._libraries.held((), symbols), dict[str, set[Place]]()
        files: list[list[Path]] = []
        for group in groups.values():
            variables = self._variables(group) if group else {}
            lent = [(one.file, variables.keys() & one.undefined) for one in group]
            files.append([weakened(file, names) if names else file for file, names in lent])
            if variables:
                files[-1].append(sharing(variables, self._libraries.work))
            if hidden := self._hidden(group) if group else {}:
                files[-1].append(leading(hidden, self._libraries.work))
            defined = {name for one in group for name in one.defined}
            if own := {name: held.places[name] for name in defined & self._trace.jumps - jumps.keys()}:
                files[-1].append(jumping(own, self._libraries.work))
                jumps |= own
        slots = [(name, library, at) for name in sorted(symbols) for library, at in sorted(held.slots.get(name, ()))]
        gone = frozenset(word for source in self._sources.values() for word in source.gone)
        told += self._told_nodes()
        copies = [(name, place.library, place.offset) for name in sorted(jumps) for place in jumps[name]]
        return Replaced(
            objects=files[0],
            python=files[1],
            told=told,
            slots=slots,
            generated=bool(self._nodes and self._nodes.reasons),
            gone=gone,
            kernels=self._kernels.places,
            jumps=copies,
        )

    def _variables(self, group: Sequence[Object]) -> dict[str, Place]:
        """Where the base has the variables that these objects use, and that no compiled source has of its own."""
        held, own = self._trace.held(), {name for _, one in self._trace.objects() for name in one.defined}
        used = {name for one in group for name in (*one.undefined, *one.defined)}
        wanted = (name for name in used if (name in self._trace.shared or name not in own) and not is_other(name))
        return {name: place for name in wanted if (place := held.keeps(name, group[0].python))}

    def _hidden(self, group: Sequence[Object]) -> dict[str, Place]:
        """Where the base has what it hides of the functions that these objects call, and no compiled source has."""
        held, own = self._trace.held(), {name for _, one in self._trace.objects() for name in one.defined}
        names = {name for one in group for name in one.undefined} - own
        wanted = (name for name in names if not is_other(name) and not SUPPLIED.match(called(name)))
        return {name: place for name in wanted if (place := held.hides(name, group[0].python))}

    def _told_nodes(self) -> list[str]:
        """A phrase for the generated sources: how many nodes, of which operators, and why."""
        count = sum(bool(node_of(name)) for _, one in self._trace.objects() for name in one.defined)
        if not self._nodes or not self._nodes.reasons:
            return []
        nodes = f"the {count} node{'s' if count > 1 else ''}" if count else "the nodes"  # a plan has no object
        why = " or ".join(sorted(set(self._nodes.reasons.values())))
        names = sorted(self._nodes.reasons)
        of = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        return [f"{GENERATED}Functions.cpp ({nodes} of {of}, {why})"]
