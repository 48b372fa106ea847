"""What PyTorch's generators write otherwise for a branch; of the release's own files they are run once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from fork.checkout.release_tree import Text
from fork.cpp.scan import code_of, lines
from fork.cpp.slices import sliced
from fork.digest import digest
from fork.engine.generate import generators
from fork.engine.generate.lists import List
from fork.engine.generate.schemas import SCHEMAS, redefinitions
from fork.engine.wheel.base import WHEEL_FOLDERS, Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError
from fork.refusals import Refusal
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave.yamls import by_name

PROGRAM = Path(__file__).with_name("whole.py")
AUTOGRAD = "torch/csrc/autograd/generated/"
SHIMS, UPDATE = "torch/csrc/inductor/aoti_torch/generated/", "python torchgen/gen.py --update-aoti-c-shim"
NODES, TAGS = AUTOGRAD + "Functions.h", "aten/src/ATen/native/tags.yaml"
# What a build compiles or ships; a file with all that its shards have is for readers, and headers of SHIMS are inputs.
MADE = re.compile(
    r"(?!.*Everything\.cpp$|.*RegistrationDeclarations\.h$|.*/templates/|.*/c_shim_\w+\.h$).*\.(?:cpp|cu|h|py)$"
)
# Of lazy tensors' operators: a wheel lacks the list that another generator reads, whose code names what it includes.
LAZY, TS_NODE = "torch/csrc/lazy/generated/LazyNativeFunctions.cpp", "torch/csrc/lazy/ts_backend/ts_node.h"
OF_LAZY = re.compile(r"(?:[lL]azy\w*|gen_backend_stubs|[dD]ispatch_?[kK]ey\w*)\.(?:py|cpp|h)$")
NAMED = re.compile(r'[<"]([\w./${}]+\.(?:cu)?h)[>"]')
SOURCE = re.compile(r"\.cpp$|\.cu$")
STRUCT = re.compile(r"^struct TORCH_API (\w+Backward\w*\d+) : .*?^};\n", re.MULTILINE | re.DOTALL)
WORD, DECLARED = re.compile(r"\w+"), re.compile(r"(?!return\b|static auto op )[^(]*?(\w+)\(")
KERNEL = re.compile(r"    [\w, ]+: (?:\w+::)*(\w+)")
# Of a part of a generated source, the functions that no table here names are used all the same: by the base's.
USED = re.compile(r"^static PyObject ?\* ?THPVariable_\w+", re.MULTILINE)
PREFACE = """\
#define FORK_CLASSES(name) void name##_again(PyObject* module)
#define FORK_ROWS extern PyMethodDef {rows}_rows[]; PyMethodDef {rows}_rows[] =
"""


@lru_cache(maxsize=4)  # both parts, of the release and of the branch: tens of megabytes each
def written(folder: Path) -> Mapping[str, str]:
    """What one part of the generators wrote, by its path in PyTorch."""
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*.*"))}
    return {path: file.read_text() for path, file in files.items() if MADE.match(path)}


@dataclass
class Generated:
    """Of a base and the torchgen of a `stage`, which has what a branch changes of it; `lists` are the lists of
    operators and formulas without what the branch adds, and `store` keeps what is made of the release's files."""

    base: Base
    stage: Path
    work: Path
    store: Path
    lists: Mapping[str, List]

    @property
    def of(self) -> str:
        """What the branch changes for the generators, by the lines of both lists."""
        found = [f"{path}:{line}" for path, one in self.lists.items() for line in one.changed.values()]
        for name in self._changed:
            found.append(next(top + name.removeprefix(own) for top, own in WHEEL_FOLDERS if name.startswith(own)))
        return ", ".join(found)

    @cached_property
    def differing(self) -> dict[str, tuple[str, str]]:
        """The text before and after of each file that differs."""
        found: dict[str, tuple[str, str]] = {}
        for part in self._parts():
            old, new = self._released(part), self._fresh(part)
            for path in sorted({*old, *new}):
                before, after = old.get(path, ""), new.get(path, "")
                if before != after and lines(before) != lines(after):
                    found[path] = before, after
        return found

    def sources(self, names: Set[str], whole: Mapping[str, str]) -> dict[str, tuple[Text, str]]:
        """The part of each generated source that differs, or has one of these names or of a node that does, and those
        that are `whole`; and why."""
        texts = {path: (self.released[path], self.released[path]) for path in whole}
        texts |= {path: both for path, both in self.differing.items() if SOURCE.search(path) and path != SCHEMAS}
        wanted, found = names | self.unlike, dict[str, tuple[Text, str]]()
        for part in ("aten", "autograd") if names else ("autograd",) if wanted else ():
            for path, text in self._released(part).items():
                named = SOURCE.search(path) and path not in texts and any(name in text for name in wanted)
                if named and wanted & {*WORD.findall(text)}:
                    texts[path] = text, text
        for path, both in texts.items():
            own = sliced(*both, None if path in whole else wanted)
            if own.gone:
                raise ForkError(Refusal.NO_LONGER_REGISTERED.of(place=self.of, what=f"Python's `{own.gone[0]}`"))
            if own.before != own.after or own.concerned or path in whole:
                more = f" and {len(own.concerned) - 3} more" if own.concerned[3:] else ""
                preface = PREFACE.format(rows=Path(path).stem)
                # Both have what the tool adds, so that it is no change.
                old, new = (preface + USED.sub(r"[[gnu::used]] \g<0>", text) for text in (own.before, own.after))
                why = f"generated: {', '.join(own.concerned[:3]) or 'otherwise'}{more}"
                found[path] = Text(path, old, new), whole.get(path, why)
        return found

    @cached_property
    def released(self) -> dict[str, str]:
        """The files that the base was made of; of LAZY, what it may include."""
        files = [file for file in (self.base.site / "torchgen").rglob("*") if OF_LAZY.search(file.name)]
        names = [TS_NODE, *(name for file in files for name in NAMED.findall(file.read_text()))]
        lazy = "".join(f"#include <{name}>\n" for name in names)
        return {**self._released("aten"), **self._released("autograd"), LAZY: lazy}

    @cached_property
    def unlike(self) -> set[str]:
        """The nodes that hold other values now, or are new or gone."""
        before, after = ({found[1]: found[0] for found in STRUCT.finditer(text)} for text in self._of(NODES))
        return {name for name in {**before, **after} if before.get(name) != after.get(name)}

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers that differ, by their paths in PyTorch."""
        return {path: both[1] for path, both in self.differing.items() if path.endswith(".h")}

    @cached_property
    def declared(self) -> set[str]:
        """The functions that these declare otherwise, as whoever calls one names it."""
        found = set[str]()
        for path in self.headers.keys() - {NODES}:
            old, new = ({" ".join(line.split()) for line in code_of(text).splitlines()} for text in self._of(path))
            found |= {name[1] for line in old ^ new if (name := DECLARED.match(line))}
        return found

    @property
    def kernels(self) -> dict[str, str]:
        """The line that names each kernel of the operators that the branch changes."""
        native, found = self.lists[NATIVE_FUNCTIONS], dict[str, str]()
        for name, line in native.changed.items():
            for n, row in enumerate(by_name(native.text)[name].splitlines()):
                if kernel := KERNEL.match(row):
                    found[kernel[1]] = f"{NATIVE_FUNCTIONS}:{line + n}"
        return found

    @property
    def definitions(self) -> str:
        """A source that defines the operators again whose tags or defaults differ; nothing where none do."""
        return redefinitions(*self._of(SCHEMAS))

    @property
    def unshipped(self) -> list[Path]:
        """Where the generated headers lie that a wheel does not ship, as far as they were made."""
        folder = self._store / "aten/aten/src"
        return [folder] if folder.is_dir() else []

    def refuse_what_would_not_run(self) -> None:
        """Raises where tags have other numbers, or PyTorch generates no kernel for autograd of a changed formula."""
        if any(path.endswith("/enum_tag.h") for path in self.differing):
            raise ForkError(Refusal.TAGS.of(path=TAGS))
        changed = self.lists[DERIVATIVES].changed
        made = self._fresh("autograd") if changed else {}
        kernels = "".join(text for path, text in made.items() if "/VariableType_" in path)
        for name, line in changed.items():
            if f'm.impl("{name}"' not in kernels:
                raise ForkError(Refusal.NO_AUTOGRAD_KERNEL.of(place=f"{DERIVATIVES}:{line}", name=name))

    def _of(self, path: str) -> tuple[str, str]:
        return self.differing.get(path, ("", ""))

    def _parts(self) -> Iterator[str]:
        """The generators of which an input changed."""
        native = self.lists[NATIVE_FUNCTIONS].text != self.base.read(NATIVE_FUNCTIONS)
        if native or any("/autograd/" not in path for path in self._changed):
            yield "aten"
        if native or self._changed or self.lists[DERIVATIVES].text != self.base.read(DERIVATIVES):
            yield "autograd"

    @cached_property
    def _changed(self) -> list[str]:
        """The files beside both lists that the branch changes for the generators: Python, templates and other lists."""
        lists = [self.base.wheel_path(path) for path in self.lists]
        kinds = (".py", ".yaml", ".cpp", ".h", ".ini")
        trees = ((site, (site / "torchgen").rglob("*.*")) for site in (self.stage, self.base.site))
        own, known = (
            {(str(file.relative_to(site)), file.read_bytes()) for file in files if file.suffix in kinds}
            for site, files in trees
        )
        return sorted({name for name, _ in own - known}.difference(lists))

    @property
    def _store(self) -> Path:
        return self.store / f"generated-{digest(self.base.record_text.encode(), PROGRAM.read_bytes())}"

    def _released(self, part: str) -> Mapping[str, str]:
        """What the base was made of."""
        folder = self._store / part
        if not folder.is_dir():
            lists = {path: self.base.read(path) or "" for path in self.lists}
            self._run(self.base.site, part, lists, self._store / f"{part}-{os.getpid()}").replace(folder)
        return written(folder)

    def _fresh(self, part: str) -> Mapping[str, str]:
        inputs = [file.read_bytes() for file in (PROGRAM, *map(self.stage.joinpath, self._changed), *self._shims)]
        texts = {path: one.text for path, one in self.lists.items()}
        asked = digest(self.base.record_text.encode(), *inputs, *(text.encode() for text in texts.values()))
        folder = self.work / "fresh" / part / asked
        if not folder.is_dir():
            shutil.rmtree(folder.parent, ignore_errors=True)
            self._run(self.stage, part, texts, folder.with_suffix(".part")).replace(folder)
        return written(folder)

    @property
    def _shims(self) -> list[Path]:
        """The branch's headers of AOTInductor, which a generator compares with what it would write."""
        return sorted((self.stage / "torch/include" / SHIMS).glob("*.h"))

    def _run(self, site: Path, part: str, lists: Mapping[str, str], out: Path) -> Path:
        shutil.rmtree(out, ignore_errors=True)
        for path, text in lists.items():
            write(out / "lists", Path(path).name, text)
        for header in self._shims if site == self.stage else []:
            write(out / SHIMS, header.name, header.read_text())
        words: list[str | Path] = [PROGRAM, out / "lists", out, part]
        generators.run(self.base, site, self.work, words, lambda said: self._rejected(said, out))
        shutil.rmtree(out / "lists")
        return out

    def _rejected(self, said: str, out: Path) -> str:
        """What they say, by the file that somebody edits."""
        if "AOTInductor C shim header files" in said:
            return f"{self.of}: {SHIMS}*.h declare other functions for AOTInductor: `{UPDATE}` writes them"
        files = {path: out / "lists" / Path(path).name for path in self.lists}
        words = generators.rejection(said, files[NATIVE_FUNCTIONS], files[DERIVATIVES])
        for path, file in files.items():
            for found in re.finditer(rf"{re.escape(str(file))}(?::(\d+))?", words):
                words = words.replace(found[0], self.lists[path].place(path, int(found[1] or 0)))
        return words
