"""Decides by the texts what has to be compiled for a branch's change, and refuses what cannot be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from fork.checkout.release_tree import Text, Tree
from fork.cpp.declarations import redeclared
from fork.cpp.definitions import only_bodies
from fork.cpp.registrations import altered, dropped
from fork.cpp.scan import code_of
from fork.engine.binary.libraries import Libraries
from fork.engine.compile.compiler import Compiler
from fork.engine.compile.conditions import lines_not_compiled
from fork.engine.compile.device import STAYS
from fork.engine.generate.kernels import Kernels
from fork.engine.generate.nodes import Nodes
from fork.engine.replace.headers import WORD, HeaderNames, changed_names, generated
from fork.engine.replace.source import CHANGED, NAMES, Source
from fork.engine.replace.trace import SAYS
from fork.errors import UNSEEN, ForkError, refuse_all
from fork.refusals import Refusal
from fork.tree import KERNEL, SOURCES, on_device

# The templates of the nodes and kernels that are generated again for a formula.
FORMULAS = ("autograd/templates/Functions.cpp", "autograd/templates/VariableType.cpp")


@dataclass(frozen=True)
class Decided:
    """The sources to compile, by their paths; the words of the headers that the branch changes, but of those that only
    declare functions otherwise; and the functions that these declare, with their lines."""

    sources: Mapping[str, Source]
    words: Set[str]
    declared: Mapping[str, str]


class Decision:
    """One look at a change; the compiler has the branch's headers, and `limit` is how much it may take."""

    def __init__(
        self, tree: Tree, libraries: Libraries, compiler: Compiler, limit: int, nodes: Nodes | None, kernels: Kernels
    ) -> None:
        self._tree, self._libraries, self._compiler, self._limit = tree, libraries, compiler, limit
        self._nodes, self._kernels = nodes, kernels
        self._sources: dict[str, Source] = {}
        self._words: set[str] = set()
        self._known_words: dict[str, set[str]] = {}  # of sources, by path
        self._declared: dict[str, str] = {}
        self._problems: list[str] = []

    def made(self, changed: Mapping[str, str], headers: Mapping[str, str]) -> Decided:
        """`changed` and `headers` have the branch's text of each source and header that it changes."""
        declaring = {path for path, text in headers.items() if self._declares(path, text)}
        others = [path for path in headers if path not in declaring]
        for path in others:
            before = self._tree.start(path) or ""
            self._words |= {word for text in (before, headers[path]) for word in re.findall(r"\w+", code_of(text))}
        for path, text in changed.items():
            self._add(self._tree.text(path, text), CHANGED)
        including = self._tree.includers(others)
        texts = {path: (self._tree.read(path) or "", self._tree.merged(path, headers[path])) for path in others}
        names = changed_names(texts, including, HeaderNames(self._tree.read, self._tree.naming, self._tree.texts))
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
            elif path.endswith(KERNEL) and self._libraries.gpu:
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
        return Decided(self._sources, self._words, self._declared)

    def _tell_unread(self, changed: Mapping[str, str]) -> None:
        for path, text in changed.items():
            before = self._tree.read(path)
            if before is None or path.endswith(KERNEL):
                continue
            for line, directive in lines_not_compiled(self._compiler, path, before, self._tree.merged(path, text)):
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
        passed_on = [path for path in including if path != header and not path.endswith((*SOURCES, KERNEL))]
        formulas = all(path == header and file.as_posix().endswith(FORMULAS) for file, path in templates)
        if not templates or not formulas or passed_on or self._nodes is None:
            return False
        change = redeclared(self._tree.start(header) or "", text)
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
            code = code_of(self._tree.read(path) or "") if path.endswith(KERNEL) and self._libraries.gpu else ""
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
        device = sum(path.endswith(KERNEL) for path in self._sources)
        operators = len(self._nodes.reasons) if self._nodes else 0
        if (count := sources + operators) > self._limit:
            nodes = f" and the nodes of {operators} operator{'s' if operators > 1 else ''}" if operators else ""
            minutes = (sources * 12 + device * 48 + operators * 2) // 60 + 1
            what = f"{sources} source{'s' if sources != 1 else ''}{nodes}"
            raise ForkError(Refusal.TOO_MANY.of(what=what, minutes=minutes, count=count))

    def _refuse(self, refusal: Refusal, **words: object) -> None:
        self._problems.append(refusal.of(**words))

    def _words_of(self, path: str) -> set[str]:
        if path not in self._known_words:
            self._known_words[path] = set(re.findall(r"\w+", self._tree.read(path) or ""))
        return self._known_words[path]
