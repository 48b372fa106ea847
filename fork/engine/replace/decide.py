"""Decides by the texts what has to be compiled for a branch's change, and refuses what cannot be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from fork.checkout.release_tree import Text, Tree, including_of
from fork.cpp.definitions import KEYWORDS, only_bodies
from fork.cpp.registrations import alike, altered, blocks_of_kernels, dropped, gained, kernels, macros, object_of
from fork.cpp.scan import code_of
from fork.engine.binary.libraries import Libraries
from fork.engine.compile.compiler import Compiler
from fork.engine.compile.conditions import lines_not_compiled
from fork.engine.compile.device import STAYS
from fork.engine.generate.generated import LAZY, NAMED, TS_NODE, Generated
from fork.engine.generate.schemas import SCHEMAS
from fork.engine.replace.headers import HeaderNames, changed_names, generated
from fork.engine.replace.source import CHANGED, NAMES, Source
from fork.errors import UNSEEN, ForkError, refuse_all
from fork.refusals import Refusal
from fork.tree import HEADERS, KERNEL, Kind, kind_of, on_device

SAYS = "the branch changes what it registers"
FRAGMENT = ", or define what is new in a TORCH_LIBRARY_FRAGMENT of a new source"
# What an option or another toolkit mends is told last.
MENDED = (Refusal.NO_NVCC, Refusal.NO_NVCC_FOR_USER, Refusal.TYPE_OF_GPU)
# What includes the declarations of all operators.
LISTING, TENSOR = ("ATen/NativeFunctions.h",), "aten/src/ATen/core/TensorBody.h"
# Generated sources that are not made again, and why.
MADE_ONCE = {
    SCHEMAS: "it defines PyTorch's operators when the process starts, which the base has done already",
    LAZY: "a wheel lacks the list that it is made of",
}


@dataclass(frozen=True)
class Decided:
    """The sources to compile, by their paths; the words of the headers that the branch changes, and the names of what
    differs there, unless it can concern code that does not name it."""

    sources: Mapping[str, Source]
    words: Set[str]
    names: Set[str] | None


@dataclass
class Decision:
    """One look at a change; `compiler` has the branch's headers and `before` the release's, `limit` is how many sources
    it may take, and `new` has the texts of those that the branch adds."""

    tree: Tree
    libraries: Libraries
    compiler: Compiler
    before: Compiler
    limit: int
    generated: Generated
    new: Mapping[str, str]

    def __post_init__(self) -> None:
        self._gained = Counter[str]()  # kernels, by the number of those that the branch's sources have more
        self._sources: dict[str, Source] = {}
        self._words: set[str] = set()
        self._problems: list[tuple[bool, str]] = []  # each with whether an option mends it

    def made(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Decided:
        """`changed` and `headers` have the branch's text of each source and header that it changes."""
        for path in headers:
            before = self.tree.start(path) or ""
            self._words |= {word for text in (before, headers[path]) for word in re.findall(r"\w+", code_of(text))}
        self._words -= KEYWORDS  # a symbol of a type alone, as that of `void ()`, ends with one
        own = [self.tree.text(path, text) for path, text in changed.items()]
        for one in [*own, *(Text(path, None, text) for path, text in self.new.items())]:
            self._gained.update(gained(one.before or "", one.after))
        for one in own:
            self._add(one, CHANGED)
        including = self.tree.includers(headers)
        texts = {path: (self.tree.read(path) or "", self.tree.merged(path, headers[path])) for path in headers}
        known = HeaderNames(self.tree.read, self.tree.naming, self.tree.texts)
        names = changed_names(texts, including, known)
        # Every file may include what generated code includes.
        everywhere = self._is_generated(including)
        written = everywhere and (names is None or generated(names, self.libraries.generators))
        made = self.generated.released if written else {}
        more = including_of(made)
        if written:
            including = self.tree.includers(headers, more)
            known.read = lambda path: made.get(path) or self.tree.read(path)  # a generated header may pass one on
            names = names and changed_names(texts, including, known)
        users = {*including, *(path for name in names or () if everywhere for path in self.tree.naming(name))}
        bodies = {path for path, both in texts.items() if names is not None or only_bodies(*both)}
        whole = dict[str, str]()  # generated sources, each with its reason
        for path, reaching in self._users(users - changed.keys(), headers, more):
            if names is None or (path not in made and names & self._words_of(path)):
                self._add_user(path, f"includes the changed {reaching[0]}", bodies.issuperset(reaching), made, whole)
        self._add_generated(names if written and names else set(), whole)
        self._refuse_dropped(any(macros(one) != macros(other) for one, other in texts.values()))
        # What needs no compiler, before it takes minutes.
        refuse_all([said for _, said in sorted(self._problems, key=lambda problem: problem[0])], UNSEEN)
        if not any(
            one.path in users or (one.generated and one.words & (names or set())) for one in self._sources.values()
        ):
            for path in headers:
                print(f"note     {path}: nothing that the wheel is made of names what changes there", flush=True)
        self._refuse_many()
        self._tell_unread({**changed, **headers})
        return Decided(self._sources, self._words, names)

    def _users(
        self, users: Set[str], headers: Collection[str], more: Mapping[str, Set[str]]
    ) -> Iterator[tuple[str, list[str]]]:
        """The sources among these, each with the headers that make it one."""
        reached = {header: {*self.tree.includers([header], more)} for header in headers}
        for path in sorted(path for path in users if not path.endswith(HEADERS)):
            yield path, [header for header in headers if path in reached[header]] or [*headers]

    def _refuse_dropped(self, macros_differ: bool) -> None:
        """Refuses the loss of kernels that macros register: the preprocessor alone knows them."""
        lost, places, told = Counter[str](), dict[str, str](), [said for _, said in self._problems]
        for source in self._sources.values():
            texts, path = (source.text.before or "", source.text.after), source.path
            if source.generated or path.endswith(KERNEL) or "TORCH_LIBRARY_IMPL" not in "".join(texts):
                continue
            one, other = map(blocks_of_kernels, texts)
            if any(said.startswith(f"{path} no longer has") for said in told) or (one == other and not macros_differ):
                continue
            both = zip((self.before, self.compiler), texts)
            old, new = (compiler.preprocessed(compiler.units(path, text)[0]) for compiler, text in both)
            if new and (old or not texts[0]):
                lost.update(kernels(old))
                lost.subtract(kernels(new))
                places |= dict.fromkeys(kernels(old), path)
        for path, text in self.new.items() if +lost else ():
            if "TORCH_LIBRARY_IMPL" in text and not path.endswith(KERNEL):
                lost.subtract(kernels(self.compiler.preprocessed(self.compiler.units(path, text, own=True)[0])))
        for kernel in +lost:
            self._refuse(Refusal.NO_LONGER_REGISTERED, place=places[kernel], what=kernel)

    def _add_user(self, path: str, why: str, alone: bool, made: Collection[str], whole: dict[str, str]) -> None:
        if path in MADE_ONCE and self.libraries.has_source(path):
            self._refuse(Refusal.GENERATED, path=path, why=why, cause=MADE_ONCE[path])
        elif self._is_compiled(path, why, alone):
            if path in made:
                whole[path] = why
            else:
                self._add(self.tree.text(path), why)

    def _tell_unread(self, changed: Mapping[str, str]) -> None:
        for path, text in changed.items():
            before = self.tree.read(path)
            if before is None or path.endswith(KERNEL):
                continue
            for line, directive in lines_not_compiled(self.compiler, path, before, self.tree.merged(path, text)):
                print(f"note     {path}:{line} is below `{directive}`: the wheel's build does not read it", flush=True)

    def _is_generated(self, including: Sequence[str]) -> bool:
        """Whether PyTorch's generators or their templates name one of these files, and so may include it."""
        names = {TS_NODE, *(name for file in self.libraries.generators for name in NAMED.findall(file.read_text()))}
        found = re.compile("|".join(re.escape(name).replace(r"\$\{name\}", r"\w+") for name in names))
        return any(found.fullmatch(path.removeprefix("aten/src/")) for path in including)

    def _is_compiled(self, path: str, why: str, alone: bool = True) -> bool:
        """Whether a file is a source that the base was made of, and is compiled again. If it is of the GPU, it may have
        to stay, which it can if only functions differ, or needs a compiler of its own."""
        if not self.libraries.has_source(path):
            return False
        if self.libraries.gpu and not self.tree.device and on_device(path):
            if alone:
                print(f"left out {path}: it {why}, and {STAYS}", flush=True)
            else:
                self._refuse(Refusal.TYPE_OF_GPU, path=path, why=why)
            return False
        if path.endswith(KERNEL) and self.libraries.gpu and KERNEL not in self.compiler.kinds:
            self._refuse(Refusal.NO_NVCC_FOR_USER, path=path, why=why, cuda=self.compiler.lacking)
        # A template has the name of what is made of it.
        return path.endswith(self.compiler.kinds) and kind_of(path) is not Kind.INPUT

    def _add(self, text: Text, why: str) -> None:
        if text.path not in self._sources:
            declared = self.generated.declared if why == NAMES else ()
            # Of a text that is not the release's, or with other macros, lambdas may have other numbers.
            known = self.tree.known and not self._words
            same = alike(text.before, text.after) if text.before and known else set()
            self._sources[text.path] = Source(text, why, self.compiler, declared, alike=same)
            for head in dropped(text.before or text.after, text.after, self._gained):
                self._refuse(Refusal.NO_LONGER_REGISTERED, place=text.path, what=f"`{head}`")
            for place, head in altered(text.before or text.after, text.after):
                advice = "change a function that this calls" + (FRAGMENT if head.startswith("TORCH_LIBRARY") else "")
                says = f"{SAYS}: {advice}{self.tree.doubt}"
                if object_of(head) not in same:
                    self._refuse(Refusal.REGISTERED_ONCE, place=f"{text.path}:{text.line(place)}", head=head, why=says)

    def _add_generated(self, names: Set[str], whole: Mapping[str, str]) -> None:
        """What PyTorch's generators write otherwise or names one of these, and the sources that use that; with all that
        is `whole`, each with its reason."""
        compiler = self.compiler.generated(self.generated.unshipped)
        for path, (text, why) in self.generated.sources(names, whole).items():
            if not self.libraries.has_source(path):
                print(f"left out {path}: torch {self.compiler.base.version} was built without it", flush=True)
            elif self._is_compiled(path, why):
                for head in dropped(text.before or "", text.after):
                    self._refuse(Refusal.NO_LONGER_REGISTERED, place=self.generated.of, what=f"`{head}`")
                self._sources[path] = Source(text, why, compiler, generated=True)
        for node in self.generated.unlike:
            for path in self.tree.naming(node):
                if self._is_compiled(path, f"makes {node}"):
                    self._add(self.tree.text(path), f"makes {node}")
        self._add_callers(self.generated.declared, self.generated.headers)

    def _add_callers(self, names: Set[str], headers: Collection[str]) -> None:
        """The sources that call what generated headers declare otherwise; all see the class Tensor."""
        paths = set(self.tree.includers([*headers, *LISTING])) if names else set()
        if TENSOR in headers:
            paths.update(*map(self.tree.naming, names))
        for path in sorted(paths):
            if not names & self._words_of(path):
                continue
            code = code_of(self.tree.read(path) or "") if path.endswith(KERNEL) and self.libraries.gpu else ""
            calls = not code or any(re.search(rf"\b{name}\s*\(", code) for name in names)
            if calls and self._is_compiled(path, NAMES):
                self._add(self.tree.text(path), NAMES)

    def _refuse_many(self) -> None:
        lines = sum(source.text.after.count("\n") for source in self._sources.values())
        device = sum(path.endswith(KERNEL) for path in self._sources)
        if (count := len(self._sources)) > self.limit:
            what, seconds = f"{count} source{'s' if count > 1 else ''}", count * 12 + device * 48 + lines // 300
            raise ForkError(Refusal.TOO_MANY.of(what=what, minutes=seconds // 60 + 1, count=count))

    def _refuse(self, refusal: Refusal, **words: object) -> None:
        self._problems.append((refusal in MENDED, refusal.of(**words)))

    def _words_of(self, path: str) -> set[str]:
        return set(re.findall(r"\w+", self.tree.read(path) or ""))
