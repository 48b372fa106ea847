"""Finds all that has to be compiled so that a branch's change of PyTorch's C++ takes the place of the base's.

The fork's library is looked up before the base's, so a symbol that the base exports is replaced by defining it. What
the base hides is reached directly: then whoever reaches it is compiled too, until nothing is left.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fork.checkout.changed import ELSEWHERE, SOURCES, Text, Tree
from fork.engine.base import Base
from fork.engine.callers import ENDINGS, Caller, Held, Libraries
from fork.engine.fork import Fork
from fork.engine.nodes import FILES, GENERATED, Nodes, holder
from fork.engine.objects import GLOBAL, Object, affected, called, changed_sections, identifier, plain, readable
from fork.engine.toolchain import instruction_sets
from fork.engine.tree import write
from fork.engine.whole import Compiler, Failed, Unit
from fork.errors import ForkError
from fork.series import DERIVATIVES
from fork.weave.cpp import code_of
from fork.weave.definitions import concerned
from fork.weave.registrations import NAME, dropped, left

LIMIT = 40
CHANGED = "changed"
PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# What other libraries have, such as that of C++, is left to the linker, which finds it or says so.
OWN = re.compile(r"(?:at|c10|torch|caffe2)::")
# What is done once, by its name, and what takes the place of what was done before.
REGISTERS = re.compile(r"[Rr]egist|[sS]et\w*(?:Hook|Handler|Allocator|Callback)|[aA]dd\w*(?:Hook|Handler|Callback)")
AGAIN = re.compile(r"torch::Library::|c10::Dispatcher::registerImpl|at::native::Register\w*Dispatch")
# What the tool's own glue has for generated code.
SUPPLIED = re.compile(r"torch::autograd::VariableType::unpack(?:_opt)?$")


@dataclass
class Source:
    """A file that is compiled whole: why, its text before and after, and the objects of both."""

    text: Text
    why: str
    changed: bool  # by the branch, itself or in a header
    compiler: Compiler
    left: list[tuple[int, str]] = field(default_factory=list)
    new: list[Object] = field(default_factory=list)
    old: list[Object | None] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.text.path

    @cached_property
    def words(self) -> set[str]:
        return set(re.findall(r"\w+", code_of(self.text.after)))

    @cached_property
    def _concerned(self) -> set[str] | None:
        return concerned(self.text.before or "", self.text.after)

    def concerns(self, section: str) -> bool:
        """Whether the change of the text can concern a section: the function or variable that it holds."""
        symbol = re.search(r"\b_Z\w+", section)
        if symbol is None or self._concerned is None:
            return True
        said = readable(plain(symbol[0]))
        return any(word in said for word in self._concerned)


@dataclass(frozen=True)
class Replaced:
    """The objects that go in front, those of the Python bindings apart; a phrase for each source; where the base looks
    up what they define; the folder of the headers that the branch changes; and whether nodes were generated."""

    objects: Sequence[Path] = ()
    python: Sequence[Path] = ()
    told: Sequence[str] = ()
    slots: Sequence[tuple[str, str, int]] = ()
    headers: Sequence[Path] = ()
    generated: bool = False


def replace_sources(fork: Fork, stage: Path, state: Mapping[str, Path]) -> Replaced:
    """Compiles what the branch changes of PyTorch's own sources, and whatever else that needs."""
    texts = {path: file.read_text() for path, file in state.items() if fork.series.replaces(path)}
    if not texts:
        return Replaced()
    if device := next((path for path in texts if path.endswith((".cu", ".cuh"))), None):
        raise ForkError(
            f"{device} changes code of the GPU that exists, which a fork on a wheel cannot: add a file instead"
        )
    base, work = fork.base, fork.home / "work"
    assert fork.series.checkout is not None and fork.series.since is not None
    tree = Tree.of(fork.series.checkout, fork.series.since, base.version, base.probe.commit)
    if not tree.known:
        print(f"note     {tree.checkout.path} lacks torch {base.version}'s commit: {tree.release[:10]} is taken for it")
    headers = [path for path in texts if path.endswith((".h", ".cuh"))]
    own = _headers(base, tree, {path: texts[path] for path in headers}, work, stage)
    libraries = Libraries(base, work)
    before = [work / "headers", *_generated(work)]
    behind = [tree.checkout.path / "aten/src", tree.checkout.path, *_others(tree.checkout.path, base.site)]
    capabilities = instruction_sets(base.torch, platform.machine())
    fronts = [own, *before] if headers else before, before
    compilers = [Compiler(base, work / "whole", capabilities, front, behind) for front in fronts]
    found = Replacement(tree, libraries, compilers[0], compilers[1], fork.many)
    sources = {path: text for path, text in texts.items() if path.endswith(".cpp")}
    for path in [path for path in sources if ELSEWHERE.search(path) and not libraries.has_source(path)]:
        print(f"left out {path}: torch {base.version} was built without it", flush=True)
        del sources[path]
    return replace(found.find(sources, headers), headers=[own])


def _others(checkout: Path, site: Path) -> list[Path]:
    """The headers of other projects, as far as the checkout has its submodules; no wheel has all of them."""
    top = checkout / "third_party"
    inner = ("fbgemm/third_party/asmjit/src", "ideep/mkl-dnn/include", "kineto/libkineto/include", "protobuf/src")
    numpy = (site / "numpy/_core/include", site / "numpy/core/include")
    qnnpack = checkout / "aten/src/ATen/native/quantized/cpu/qnnpack/include"
    plain = ("gloo", "onnx", "tensorpipe", "eigen", "miniz-3.0.2", "opentelemetry-cpp/api/include", "cpp-httplib")
    return [
        folder
        for folder in (*sorted(top.glob("*/include")), *(top / name for name in inner + plain), top, qnnpack, *numpy)
        if folder.is_dir()
    ]


def _headers(base: Base, tree: Tree, texts: Mapping[str, str], work: Path, stage: Path) -> Path:
    """The folder with the headers that the branch changes, as the wheel's release has them with the change."""
    folder = work / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, text in texts.items():
        merged = tree.merged(path, text)
        shipped = base.wheel_path(path) or base.new_path(path)
        inner = path.removeprefix("aten/src/")
        write(folder, inner, f'#line 1 "{tree.checkout.path / path}"\n{merged}')
        if shipped:
            write(stage, shipped, merged)
    return folder


def _generated(work: Path) -> list[Path]:
    return [
        folder
        for name in ("cmake/operators", "generated/merged", "generated/autograd")
        if (folder := work / name).is_dir()
    ]


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
    ) -> None:
        self._tree, self._libraries, self._limit, self._nodes = tree, libraries, limit, nodes
        self._compiler, self._before = compiler, before  # with the branch's headers, and with the release's
        self._sources: dict[str, Source] = {}
        self._generated: set[str] = set()
        self._words: set[str] = set()  # of the headers that the branch changes
        self._problems: list[str] = []

    def find(self, changed: Mapping[str, str], headers: Iterable[str]) -> Replaced:
        """`changed` has the branch's text of each source that it changes."""
        headers = list(headers)
        for path in headers:
            self._words |= set(re.findall(r"\w+", code_of(self._tree.checkout.read(path) or "")))
            self._words |= set(re.findall(r"\w+", code_of((self._tree.checkout.path / path).read_text())))
        for path, text in changed.items():
            self._add(self._tree.text(path, text), CHANGED, True)
        including = self._tree.includers(headers)
        self._refuse_generated(headers, including)
        for path in including:
            if path.endswith(SOURCES) and path not in changed and self._libraries.has_source(path):
                self._add(self._tree.text(path), "includes a changed header", True)
            elif path.endswith(".cu") and self._libraries.gpu:
                self._problems.append(f"{path} includes a changed header, and code of the GPU is not compiled again")
        self._refuse_many()
        self._compile()
        self._refuse()
        for source in list(self._sources.values()):
            same = all(old and not changed_sections(new, old) for new, old in zip(source.new, source.old))
            if source.old and same:
                del self._sources[source.path]
        while True:
            self._generate()
            known, wanted = set(self._sources), set(self._generated)
            self._compile()
            self._refuse()
            self._trace()
            done = set(self._sources) == known and self._generated == (self._nodes.wanted if self._nodes else wanted)
            if done and not self._problems:
                break
            self._refuse()
            self._refuse_many()
        return self._result()

    def _refuse_generated(self, headers: Sequence[str], including: Sequence[str]) -> None:
        """Of the code that PyTorch's build generates, nothing tells where it has what a header defines."""
        known = {path.removeprefix("aten/src/"): path for path in including}
        for template in self._libraries.templates:
            included = re.findall(r'^\s*#\s*include\s*[<"]([^">]+)', template.read_text(), re.MULTILINE)
            if found := next((known[name] for name in included if name in known), None):
                way = "" if found in headers else f", by {found},"
                self._problems.append(
                    f"{headers[0]} is included{way} by {template.name}, of which PyTorch's build generates code: "
                    "change a source instead"
                )
                return

    def _add(self, text: Text, why: str, changed: bool) -> None:
        if text.path not in self._sources:
            self._sources[text.path] = Source(text, why, changed, self._compiler)

    def _generate(self) -> None:
        """Makes the nodes and kernels again that call a changed formula, or whose entry is changed."""
        if self._nodes is None or self._nodes.wanted == self._generated:
            return
        self._generated = set(self._nodes.wanted)
        folders = [self._nodes.folder, self._nodes.folder / GENERATED]
        texts = self._nodes.texts()
        names = ", ".join(sorted(self._generated)[:3]) + (", ..." if self._generated else "")
        for text in texts:
            self._sources[text.path] = Source(text, f"of {names}", False, self._compiler.including(folders))

    def _refuse(self) -> None:
        if self._problems:
            head = "what the branch changes would not run, or not everywhere:" if self._problems[1:] else ""
            raise ForkError("\n  ".join(filter(None, [head, *dict.fromkeys(self._problems)])))

    def _refuse_many(self) -> None:
        count = len(self._sources)
        if count > self._limit:
            raise ForkError(
                f"{count} sources have to be compiled, about {count * 12 // 60 + 1} minutes of a core's time: "
                f"`--many {count}` allows it"
            )

    def _compile(self) -> None:
        """Brings every source's object, and the one of its text before where something has to be compared."""
        new: dict[Unit, Source] = {}
        for source in self._sources.values():
            if not source.new:
                text = source.text.after
                if source.text.before is not None:
                    text, source.left = left(text, source.text.before)
                    for _, head in dropped(source.text.before, source.text.after):
                        self._problems.append(f"{source.path} no longer has `{head}`, which the base has registered")
                new |= dict.fromkeys(source.compiler.units(source.path, text), source)
        for compiler in dict.fromkeys(source.compiler for source in new.values()):
            own = [unit for unit, source in new.items() if source.compiler is compiler]
            for unit, made in compiler.compile_all(own).items():
                if isinstance(made, Failed):
                    self._failed(new[unit], made)
                else:
                    new[unit].new.append(Object(made))
        self._refuse()
        held = self._held()
        old: dict[Unit, Source] = {}
        for source in self._sources.values():
            if source.old or not source.changed:
                continue
            if source.text.before is None:
                source.old = [None] * len(source.new)
            elif self._needs_old(source, held):
                text = left(source.text.before, source.text.after)[0]
                old |= dict.fromkeys(self._before.units(source.path, text), source)
        for unit, made in self._before.compile_all(old).items():
            old[unit].old.append(None if isinstance(made, Failed) else Object(made))

    def _failed(self, source: Source, failed: Failed) -> None:
        if source.why == CHANGED:
            error = self._missing(failed)
            print(f"error    {error}", flush=True)
            raise ForkError(f"compiling {source.path} failed: {error}")
        self._problems.append(f"{source.path} {source.why} and does not compile for the wheel: {self._missing(failed)}")

    def _objects(self) -> Iterator[tuple[Source, Object]]:
        for source in self._sources.values():
            for one in source.new:
                yield source, one

    def _missing(self, failed: Failed) -> str:
        """The compiler's error, and of a header of another project the submodule that has it."""
        header = re.search(r"fatal error: (\w+)[/.].*No such file", failed.error)
        if header is None:
            return failed.error
        top = self._tree.checkout.path / "third_party"
        names = [path.name for path in top.glob("*") if path.is_dir() and path.name.lower() == header[1].lower()]
        advice = f"; `git submodule update --init --recursive third_party/{names[0]}` brings it" if names else ""
        return f"{failed.error}{advice}"

    def _held(self) -> Held:
        return self._libraries.held(name for _, one in self._objects() for name in {*one.defined, *one.undefined})

    def _needs_old(self, source: Source, held: Held) -> bool:
        """Whether it matters which functions the branch changed: the base reaches one directly, or registers one."""
        found = any(self._outside(source, one, name, held) for one in source.new for name in one.defined)
        return found or bool(source.left) or source.why != CHANGED

    def _foreign(self, source: Source, one: Object, name: str, held: Held) -> list[Caller]:
        """Who in the base reaches a symbol of this source directly from another source."""
        if one.defined[name].binding != GLOBAL and identifier(name) not in self._own_words(source):
            return []  # of a header that the branch does not change
        return [caller for caller in held.direct.get(name, ()) if not self._covered(caller, [source])]

    def _own_words(self, source: Source) -> set[str]:
        """The words of what a change of this source can define; a generated one defines no templates."""
        return self._words if source.path.startswith(GENERATED) else self._words | source.words

    def _outside(self, source: Source, one: Object, name: str, held: Held) -> list[Caller]:
        """Those of them in sources that are not compiled."""
        sources = list(self._sources.values())
        return [caller for caller in self._foreign(source, one, name, held) if not self._covered(caller, sources)]

    def _covered(self, caller: Caller, sources: Sequence[Source]) -> bool:
        """Whether the function or table of the base that reaches a symbol is of one of these sources."""
        name = plain(caller.name)
        if parts := holder(caller) if FILES.fullmatch(caller.file) else None:
            made = {part for source in sources for one in source.new for part in one.holders}
            return parts <= made
        if not caller.file:
            return any(name in one.names for source in sources for one in source.new)
        alone = self._libraries.files[caller.file] == 1
        named = [source for source in sources if _is_of(caller, source.path)]
        return any(alone or name in one.names for source in named for one in source.new)

    def _trace(self) -> None:
        """Adds the sources that reach what is changed, and those that hold what a compiled source calls."""
        held = self._held()
        if self._nodes and self._generated:
            made = {part.rstrip("_") for _, one in self._objects() for part in one.holders}
            for name in sorted(self._nodes.wanted - made):
                self._problems.append(f"{DERIVATIVES} changes {name}, whose autograd PyTorch writes by hand")
        differing: dict[Object, set[str]] = {}
        for source in self._sources.values():
            for n, one in enumerate(source.new):
                old = source.old[n] if source.old else one
                differing[one] = set(one.nodes) if old is None else changed_sections(one, old)
                if old and source.why == CHANGED and not self._words:
                    differing[one] = {section for section in differing[one] if source.concerns(section)}
                if not self._words:
                    # A template of a header that the source uses now: the base's own is made of the same text.
                    weak = [name for name, symbol in one.defined.items() if symbol.binding != GLOBAL]
                    differing[one] -= {one.where[name] for name in weak if not old or name not in old.defined}
        hidden = {name for one in differing for name, symbol in one.defined.items() if symbol.hidden}

        def leaves(name: str) -> bool:
            return name in held.exported and name not in hidden

        # What both can write to must be the one in front for all.
        for source, one in self._objects():
            for name in one.defined:
                if self._foreign(source, one, name, held) and one.state_of(one.reached(one.where[name], leaves)):
                    differing[one].add(one.where[name])
        found = affected(differing, leaves)
        for source, one in list(self._objects()):
            for name in one.defined:
                self._trace_symbol(source, one, name, one.where[name] in found[one], held)
            self._trace_left(source, one, found[one], leaves)
            self._trace_start(source, one, held)
            for name in one.undefined:
                if (
                    name in held.hidden
                    and name not in held.exported
                    and OWN.match(called(name))
                    and not SUPPLIED.match(called(name))
                ):
                    self._add_holder(source, name)

    def _trace_symbol(self, source: Source, one: Object, name: str, differs: bool, held: Held) -> None:
        symbol = one.defined[name]
        own = symbol.binding == GLOBAL or identifier(name) in self._own_words(source)  # else of an unchanged header
        if differs and own and name in held.exported and (symbol.hidden or name in held.bound):
            self._problems.append(self._say(source, name, "is bound to the base's own definition inside its library"))
        for caller in self._outside(source, one, name, held) if differs else ():
            self._add_caller(source, name, caller)

    def _trace_left(self, source: Source, one: Object, differing: set[str], leaves: Callable[[str], bool]) -> None:
        """What the base has registered, and the source does not register again, must lead to nothing that differs."""
        for name, section in one.where.items():
            found = NAME.search(name)
            if not found or int(found[1]) >= len(source.left):
                continue
            place, head = source.left[int(found[1])]
            line = source.text.line(place)
            state = one.state_of(one.reached(section, leaves))
            if section in differing or state:
                why = "the branch changes what it registers" if section in differing else f"it uses {_state(state[0])}"
                self._problems.append(f"{source.path}:{line} `{head}` can be registered only once, and {why}")

    def _trace_start(self, source: Source, one: Object, held: Held) -> None:
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
                self._problems.append(
                    f"{source.path} calls `{called(name)}` when the process starts, which the base has done already"
                )
        for name in sorted(names & one.defined.keys() & held.exported) if calls else ():
            if one.defined[name].data and one.nodes[one.where[name]].state:
                self._problems.append(
                    self._say(source, name, "is built when the process starts, which the base has done already")
                )

    def _say(self, source: Source, name: str, what: str) -> str:
        found = re.search(rf"\b{re.escape(identifier(name))}\b", code_of(source.text.after))
        line = source.text.line(source.text.after.count("\n", 0, found.start()) + 1 if found else 1)
        return f"{source.path}:{line} `{called(name)}` {what}"

    def _add_caller(self, source: Source, name: str, caller: Caller) -> None:
        """The source of a function of the base that reaches a changed one."""
        word, inside = identifier(name), caller.library.rpartition("/")[2]
        for path in self._tree.naming(word):
            known = self._sources.get(path)
            if not path.endswith(SOURCES) or (known and known.new) or not self._libraries.has_source(path):
                continue
            if _is_of(caller, path) or (not caller.file and identifier(caller.name) in self._words_of(path)):
                if not known:
                    self._add(self._tree.text(path), f"calls {word}", False)
                return
        operators = self._nodes.calling(word) if self._nodes and FILES.fullmatch(caller.file) else set()
        if self._nodes and not operators <= self._generated:
            self._nodes.wanted |= operators
            return
        if not self._covered(caller, list(self._sources.values())):
            where = f"{caller.file}'s {called(caller.name)}" if caller.file else called(caller.name)
            self._problems.append(
                self._say(
                    source,
                    name,
                    f"is hidden in {inside}, and {where} calls the base's: its source was not found",
                )
            )

    def _words_of(self, path: str) -> set[str]:
        return set(re.findall(r"\w+", self._tree.read(path) or ""))

    def _add_holder(self, source: Source, name: str) -> None:
        """The source that defines what a compiled one calls and the base hides."""
        if any(name in one.defined for _, one in self._objects()):
            return
        word = identifier(name)
        found = [
            path
            for path in self._tree.naming(word)
            if path.endswith(SOURCES) and self._libraries.has_source(path)
            if path not in self._sources or not self._sources[path].new
            if re.search(rf"\b{re.escape(word)}\s*(?:<[^;{{}}]*>)?\s*[({{=;]", code_of(self._tree.read(path) or ""))
        ]
        for path in found:
            text = self._tree.text(path)
            (made, *_) = self._compiler.compile_all(
                self._compiler.units(path, left(text.after, text.after)[0])
            ).values()
            if not isinstance(made, Failed) and name in Object(made).defined:
                self._add(text, f"has {word}, which {source.path.rpartition('/')[2]} calls", False)
                return
        self._problems.append(
            f"{source.path} calls `{called(name)}`, which the base hides, and no source that compiles has it"
        )

    def _result(self) -> Replaced:
        objects: list[Path] = []
        python: list[Path] = []
        told: list[str] = []
        symbols: list[str] = []
        for source in self._sources.values():
            for one in source.new:
                bindings = any(PYTHON.fullmatch(name) for name in one.undefined)
                (python if bindings else objects).append(one.file)
                symbols += [
                    name for name, symbol in one.defined.items() if symbol.binding == GLOBAL and not symbol.hidden
                ]
            told.append(f"{source.path} ({source.why})")
        slots = self._libraries.held(symbols).slots
        places = [(name, library, at) for name in sorted(set(symbols)) for library, at in slots.get(name, ())]
        return Replaced(objects, python, told, places, (), bool(self._generated))


def _state(section: str) -> str:
    return f"`{called(section.rpartition('.')[2])}`"


def _is_of(caller: Caller, path: str) -> bool:
    return any(caller.file == path.rpartition("/")[2] + ending for ending in ENDINGS)
