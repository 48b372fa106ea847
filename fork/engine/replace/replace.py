"""What a branch changes of PyTorch's own C++ and formulas: brought to the base's release, and compiled for it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fork.checkout.operators import altered
from fork.checkout.release_tree import Tree
from fork.engine.binary.libraries import Libraries
from fork.engine.build import Build
from fork.engine.compile.compiler import Compiler
from fork.engine.compile.device import STAYS
from fork.engine.compile.flags import Flags
from fork.engine.generate.generated import Generated
from fork.engine.generate.joined import join
from fork.engine.generate.lists import of_release
from fork.engine.replace.decide import Decision
from fork.engine.replace.search import Replacements, Search
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError
from fork.refusals import Refusal
from fork.tree import BY_A_SETTING, HEADERS, KERNEL, Kind, kind_of, on_device
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave.merge import merged
from fork.weave.yamls import by_name


def replace_sources(
    build: Build, stage: Path, changed: Mapping[str, str], tree: Tree, flags: Flags, planned: bool = False
) -> Replacements:
    """Compiles what the branch changes of PyTorch's own sources, and whatever else that needs.

    `changed` has the text of each file. With `planned`, it tells what would be compiled and compiles nothing.
    """
    base, work, texts = build.base, build.home / "work", dict(changed)
    for path in filter(on_device, list(texts) if base.cuda and not tree.device else []):
        print(f"left out {path}: {STAYS}", flush=True)
        del texts[path]
    if not texts:
        return Replacements()
    if not tree.known:
        print(f"warning  {tree.lacking(base.version, base.probe.commit)}", flush=True)
    headers = {path: text for path, text in texts.items() if kind_of(path) is Kind.HEADER}
    own, released = _headers(base, tree, headers, work, stage)
    made = generated_of(build, tree, texts, stage)
    libraries = Libraries(base, work, tree.device, tree.namesakes)
    fronts = [own, work / "joined", work / "headers"], [released, work / "headers"]
    compiler, old = (Compiler(replace(flags, front=front)) for front in fronts)
    new = {path: file.read_text() for path, file in build.compiled.items() if not path.endswith(HEADERS)}
    search = Search(Decision(tree, libraries, compiler, old, build.most_sources, made, new))
    sources = {path: text for path, text in texts.items() if kind_of(path) in (Kind.SOURCE, Kind.KERNEL)}
    for path in list(sources):
        if late := libraries.late(path):
            raise ForkError(Refusal.LATE_LIBRARY.of(path=path, library=late))
        if (tree.elsewhere(path) or BY_A_SETTING.search(path)) and not libraries.has_source(path):
            print(f"left out {path}: torch {base.version} was built without it", flush=True)
            del sources[path]
        elif path.endswith(KERNEL) and not flags.device.toolkit:
            raise ForkError(Refusal.NO_NVCC.of(path=path, cuda=flags.device.lacking))
    return search.plan(sources, headers) if planned else replace(search.find(sources, headers), headers=[own])


def _headers(base: Base, tree: Tree, texts: Mapping[str, str], work: Path, stage: Path) -> tuple[Path, Path]:
    """The folder with the headers that the branch changes, as the wheel's release has them with the change; and one
    with those that no wheel ships as they were, since a compiler would take them from the checkout."""
    folders = work / "changed", work / "released"
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for path, text in texts.items():
        merged = tree.merged(path, text)
        shipped = base.wheel_path(path) or base.new_path(path)
        inner, line = path.removeprefix("aten/src/"), f'#line 1 "{tree.checkout.path / path}"\n'
        write(folders[0], inner, line + merged)
        if base.wheel_path(path) is None and (before := tree.read(path)) is not None:
            write(folders[1], inner, line + before)
        if shipped:
            write(stage, shipped, merged)
    return folders


def generated_of(build: Build, tree: Tree, texts: Mapping[str, str], stage: Path) -> Generated:
    """What the generators make of the branch's lists, templates and programs; its headers go into the fork's."""
    base, work = build.base, build.home / "work"
    added = by_name(texts.get(NATIVE_FUNCTIONS, "")).keys() - by_name(tree.start(NATIVE_FUNCTIONS) or "").keys()
    lists = {path: of_release(base, tree, path, texts.get(path), added) for path in (NATIVE_FUNCTIONS, DERIVATIVES)}
    for path, text in texts.items():
        if place := base.wheel_path(path) if path in lists or kind_of(path) is Kind.INPUT else None:
            start = (tree.start(path) or "").encode()
            whole = lists[path].whole.encode() if path in lists else None
            write(stage, place, whole or merged(text.encode(), start, (base.site / place).read_bytes(), path))
    made = Generated(base, stage, work, build.folder, lists)
    made.refuse_what_would_not_run()
    for path, (_, text) in made.differing.items():
        if place := base.wheel_path(path) if path.endswith(".py") else None:
            write(stage, place, text)
    join(base, work, stage, made.headers)
    return made


def added_entries(build: Build, path: str, start: str, text: str) -> Path | None:
    """A file with the entries of a list alone that the branch adds for operators that it adds, if it does; in the lines
    that they have in the branch's."""
    added, file = by_name(altered(start, text, added=True)), build.home / "work/added" / Path(path).name
    if path == DERIVATIVES:
        native = file.with_name(Path(NATIVE_FUNCTIONS).name)
        own = by_name(native.read_text()) if native.is_file() else {}
        added = {name: entry for name, entry in added.items() if name in own}
    alone = ""
    for entry in added.values():
        alone += "\n" * (text.count("\n", 0, text.find(entry)) - alone.count("\n")) + entry
    write(file.parent, file.name, alone)
    return file if added else None
