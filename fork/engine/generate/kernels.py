"""Kernels that a branch's native_functions.yaml gives operators of the base: registered again, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fork.checkout.release_tree import Text, Tree
from fork.engine.compile.device import STAYS
from fork.engine.generate import generators
from fork.engine.generate.nodes import changed_list, operator
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import install_headers, write
from fork.errors import UNSEEN, ForkError, refuse_all
from fork.refusals import Refusal
from fork.upstream import LOADER, NATIVE_FUNCTIONS
from fork.weave import yamls

IMPLICIT = ("CompositeImplicitAutograd", "CompositeImplicitAutogradNestedTensor")
# What no wheel for the CPU registers, and what one for CUDA does not either.
DEVICES, OTHERS = re.compile(r"CUDA|HIP|MPS|XPU|HPU|MTIA"), re.compile(r"HIP|MPS|XPU|HPU|MTIA")
# The keys for which PyTorch generates a structured operator's kernel itself, around a class.
CLASSES = re.compile(r"CPU|CUDA|MPS|XPU|MTIA|Meta|Composite\w+")
CALLED = re.compile(r"(\w+)\(")
SHIM = "torch/csrc/inductor/aoti_torch/generated/c_shim_{}.h"


@dataclass(frozen=True)
class Kernels:
    """The sources that register them, each with why; the headers that declare `names` otherwise; and the line of the
    list that names each kernel."""

    sources: Mapping[Text, str] = field(default_factory=dict)
    headers: Sequence[str] = ()
    names: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)


def kernels_of(base: Base, tree: Tree, text: str | None, work: Path, stage: Path) -> Kernels:
    """The kernels of the entries that the branch changes, whose declarations go into the fork's headers."""
    native, changed = changed_list(base, tree, NATIVE_FUNCTIONS, text)
    if text and (place := base.wheel_path(NATIVE_FUNCTIONS)):
        write(stage, place, native)
    if not changed:
        return Kernels()
    theirs, ours = yamls.entries(base.read(NATIVE_FUNCTIONS) or ""), yamls.entries(native)
    wanted: list[tuple[str, str]] = []
    problems: list[str] = []
    places: dict[str, str] = {}
    for schema, line in changed.items():
        name = schema.partition("(")[0]
        for key, what, why in _changes(base, name, _parsed(theirs[schema]), _parsed(ours[schema])):
            place = f"{NATIVE_FUNCTIONS}:{line + _line(ours[schema], key)}"
            places[dispatch(_parsed(ours[schema])).get(key, "").rpartition("::")[2]] = place
            if why:
                problems.append(why.of(place=place, what=what))
            elif (OTHERS if tree.device else DEVICES).search(key):
                stays = base.cuda and "CUDA" in key
                left = STAYS if stays else f"torch {base.version} was built without it"
                print(f"left out {key} of {name}: {left}", flush=True)
            else:
                wanted.append((key, name))
    refuse_all(problems, UNSEEN)
    if not wanted:
        return Kernels()
    file, names = work / "kernels" / Path(NATIVE_FUNCTIONS).name, {operator(name) for _, name in wanted}
    write(file.parent, file.name, "\n".join(entry for one, entry in ours.items() if operator(one) in names))
    try:
        made = generators.run(base, stage, file.parent, file, None, None, sorted(wanted))
    except ForkError as error:
        raise _placed(error, file, text or "") from error
    known = {kernel.rpartition("::")[2] for schema in changed for kernel in dispatch(_parsed(theirs[schema])).values()}
    found = Kernels(_sources(made, wanted), *_headers(base, made, work / "changed", known), places)
    install_headers(stage, made)
    return found


def _placed(error: ForkError, file: Path, text: str) -> ForkError:
    """What the generators say of a line of a file, with the line that the entry has in the branch's list."""

    def place(found: re.Match[str]) -> str:
        rows, listed = file.read_text().splitlines()[: int(found[1])], text.splitlines()
        start = max((n for n, row in enumerate(rows) if row.startswith("- func:")), default=0)
        line = listed.index(rows[start]) + len(rows) - start if rows[start] in listed else 1
        return f"{NATIVE_FUNCTIONS}:{line}"

    return ForkError(re.sub(rf"{re.escape(str(file))}:(\d+)", place, str(error)))


def _parsed(entry: str) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = yaml.load(entry, Loader=LOADER)
    return found[0]


def dispatch(entry: Mapping[str, Any]) -> dict[str, str]:
    """The kernel of each key."""
    rows = (entry.get("dispatch") or {}).items()
    return {key.strip(): kernel for keys, kernel in rows for key in keys.split(",")}


def _line(entry: str, key: str) -> int:
    """How far below the first line of an entry a key stands."""
    named = re.compile(rf" +[\w, ]*\b{key}\b[\w, ]*:")
    return next((n for n, row in enumerate(entry.splitlines()) if named.match(row)), 0)


def _changes(
    base: Base, name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, str, Refusal | None]]:
    """The keys whose kernel differs, what differs, and why a fork cannot have that."""
    old, new = dispatch(before), dispatch(after)
    for key in (key for key in old if key not in new):
        yield key, f"`{key}: {old[key]}` of {name}", Refusal.NO_LONGER_REGISTERED
    structured = before.get("structured") or "structured_delegate" in before
    for key, kernel in new.items():
        if kernel == old.get(key):
            continue
        what, added = f"`{key}: {kernel}` of {name}", key not in old
        why: Refusal | None = None
        if structured and CLASSES.fullmatch(key):
            why = Refusal.STRUCTURED
        elif added and (key in IMPLICIT or not (structured or set(old).difference(IMPLICIT))):
            why = Refusal.OTHER_AUTOGRAD
        elif added and key.startswith("Composite") and name.partition(".")[0].endswith("_") and "Meta" not in new:
            why = Refusal.OTHER_META
        elif added and f"aoti_torch_{key.lower()}_{name.replace('.', '_')}(" in (
            base.read(SHIM.format(key.lower())) or ""
        ):
            why = Refusal.NEW_FOR_AOTINDUCTOR
        yield key, what, why


def _sources(made: Path, wanted: Sequence[tuple[str, str]]) -> dict[Text, str]:
    """The generated source of each key."""
    found: dict[Text, str] = {}
    for key in sorted({key for key, _ in wanted}):
        file = made / f"aten/Register{key}Everything.cpp"
        text = file.read_text() if file.is_file() else ""
        names = [name for other, name in wanted if other == key]
        if lost := next((name for name in names if f'm.impl("{name}"' not in text), None):
            raise ForkError(Refusal.NO_KERNEL.of(path=NATIVE_FUNCTIONS, name=lost, key=key))
        of = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        found[Text(f"aten/src/ATen/{file.name}", None, text)] = f"registers {of}, changed in its entry"
    return found


def _headers(base: Base, made: Path, own: Path, known: set[str]) -> tuple[list[str], frozenset[str]]:
    """The headers that the base has otherwise, now in `own`, and of the functions there those that differ."""
    found: list[str] = []
    names: set[str] = set()
    for header in sorted((made / "aten/ops").glob("*.h")):
        file, text = base.torch / "include/ATen/ops" / header.name, header.read_text()
        before = file.read_text() if file.is_file() else ""
        # Beside these, a release's header has a guard that its installation put there.
        gone, new = (set(re.findall(r"^.*\w\(.*;$", one, re.MULTILINE)) for one in (before, text))
        if before and gone == new:
            header.unlink()
            continue
        if lost := next((line for line in sorted(gone - new) if not known & set(re.findall(r"\w+", line))), None):
            raise ForkError(Refusal.OTHER_HEADER.of(header=f"ATen/ops/{header.name}", line=lost))
        found.append(f"ATen/ops/{header.name}")
        names |= set(CALLED.findall("\n".join(gone ^ new))) & set(CALLED.findall(before))
        write(own, found[-1], text)
    return found, frozenset(names)
