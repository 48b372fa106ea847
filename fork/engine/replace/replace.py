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
from fork.engine.compile.device import STAYS
from fork.engine.compile.workshop import Workshop
from fork.engine.generate.kernels import kernels_of
from fork.engine.generate.nodes import HEADER, STRUCT, Nodes, changed_list
from fork.engine.replace.search import Replacements, Search
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.errors import ForkError
from fork.refusals import Refusal
from fork.tree import BY_A_SETTING, HEADERS, KERNEL, SOURCES, on_device
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave.yamls import entries


def replace_sources(
    build: Build, stage: Path, changed: Mapping[str, str], tree: Tree, workshop: Workshop, planned: bool = False
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
    headers = {path: text for path, text in texts.items() if path.endswith(HEADERS)}
    own = _headers(base, tree, headers, work, stage)
    nodes = nodes_of(base, tree, texts.get(DERIVATIVES), work, stage)
    kernels = kernels_of(base, tree, texts.get(NATIVE_FUNCTIONS), work, stage)
    libraries = Libraries(base, work, tree.device)
    before = [work / "headers", *generated(work)]
    fronts = [own, *before] if headers or nodes.unlike or kernels.headers else before, before
    compilers = [workshop.compiler(front) for front in fronts]
    search = Search(tree, libraries, compilers[0], compilers[1], build.most_sources, nodes, kernels)
    sources = {path: text for path, text in texts.items() if path.endswith((*SOURCES, KERNEL))}
    for path in list(sources):
        if late := libraries.late(path):
            raise ForkError(Refusal.LATE_LIBRARY.of(path=path, library=late))
        if (tree.elsewhere(path) or BY_A_SETTING.search(path)) and not libraries.has_source(path):
            print(f"left out {path}: torch {base.version} was built without it", flush=True)
            del sources[path]
        elif path.endswith(KERNEL) and not workshop.toolkit:
            raise ForkError(Refusal.NO_NVCC.of(path=path, cuda=workshop.chosen))
    return search.plan(sources, headers) if planned else replace(search.find(sources, headers), headers=[own])


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


def nodes_of(base: Base, tree: Tree, text: str | None, work: Path, stage: Path) -> Nodes:
    """The nodes of the entries that the branch changes, whose declarations go into the fork's headers."""
    derivatives, changed = changed_list(base, tree, DERIVATIVES, text)
    nodes = Nodes(base, stage, work / "nodes", derivatives, tree.checkout.path / DERIVATIVES, changed)
    shipped = {path: base.wheel_path(path) for path in (DERIVATIVES, HEADER)}
    if place := shipped[DERIVATIVES] if text else None:
        write(stage, place, derivatives)
    if changed:
        nodes.texts()
    if place := shipped[HEADER] if nodes.unlike else None:
        declared = STRUCT.sub(lambda found: nodes.unlike.get(found[1], found[0]), base.read(HEADER) or "")
        write(stage, place, declared)
        write(work / "changed", HEADER, declared)
    return nodes


def added_entries(build: Build, path: str, start: str, text: str) -> Path | None:
    """A file with the entries of a list alone that the branch adds for operators that it adds, if it does."""
    added, file = entries(altered(start, text, added=True)), build.home / "work/added" / Path(path).name
    if path == DERIVATIVES:
        native = {schema.partition("(")[0] for schema in entries(build.base.read(NATIVE_FUNCTIONS) or "")}
        added = {schema: entry for schema, entry in added.items() if schema.partition("(")[0] not in native}
    write(file.parent, file.name, "".join(added.values()))
    return file if added else None


def generated(work: Path) -> list[Path]:
    """Where the headers of the operators lie that the stack adds, of ATen those in ATen/ops alone."""
    made, link = work / "generated", work / "operators/ATen/ops"
    if not (made / "aten").is_dir():
        return []
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(made / "aten/ops")
    return [link.parents[1], made / "merged", made / "autograd"]
