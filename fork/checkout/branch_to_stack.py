"""Writes a branch of a checkout as a stack in a folder: whole new files, fragments with their anchors, descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fork.checkout.branch import Pull, Start, State, pull_requests
from fork.checkout.git import Checkout
from fork.digest import digest, tool_files
from fork.errors import refuse_all
from fork.tree import OF_NO_KIND, Fate, Kind, kind_of
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.file_kinds import Fragment, Place, Whole, places_of
from fork.weave.unweave import COMPILED, LISTS, additions, reasons, unweave

HEADER = "# A stack read from a branch. Its PRs in order, the paths each introduces, and where its fragments go.\n"
# What the tool keeps in a stack's folder besides the stack.
KEPT = "build"
# What of a branch no wheel has, and a stack of it all the same.
KEPT_ENDINGS = (".py", ".md", ".rst", ".txt", ".bzl")
Memory = dict[str, tuple[list[str], dict[str, list[str]]]]


@dataclass
class Writing:
    """The files of a stack's folder, and what of the branch could not become part of it."""

    files: dict[str, str] = field(default_factory=dict)
    introduces: list[list[str]] = field(default_factory=list)
    anchors: dict[str, Fragment | Whole] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def stack_files(
    checkout: Checkout,
    begun: Start,
    found: Sequence[State],
    memory: Memory,
    settings: Mapping[str, str | bool],
    whole: bool = False,
) -> Writing:
    """The folder's content for these states; `memory` keeps what was found for the same file before.

    With `whole`, a source or header of a wheel's libraries is taken with all its text, which a stack to keep may not
    hold, and every other file that such a library depends on is told or left out.
    """
    prs = pull_requests(found)
    titles = [name for pr in prs for name in pr.commits]
    writing = Writing(introduces=[[] for _ in found])
    paths = sorted({path for state in found for path in (*state.texts, *state.strange)})
    used: Memory = {}
    upstreams = _operators(checkout.read_at(begun.commit, NATIVE_FUNCTIONS))
    operators = [_operators(state.texts.get(NATIVE_FUNCTIONS)) - upstreams for state in found]
    for path in paths:
        strange = next((state.strange[path] for state in found if path in state.strange), None)
        if strange is not None:
            writing.left_out.append(f"{path} {strange}")
            continue
        try:
            base = checkout.read_at(begun.commit, path)
        except UnicodeDecodeError:
            writing.left_out.append(f"{path} is not UTF-8 in {begun.name}: take its change back")
            continue
        states = [state.texts.get(path, base) for state in found]
        replaced = kind_of(path) in (Kind.SOURCE, Kind.KERNEL, Kind.HEADER) or _changes(
            path, base or "", states, upstreams
        )
        if whole and not replaced and not _has_place(path, writing):
            continue
        inverse = partial(_remembered, memory, used)
        contents = _contents(writing, path, base, states, inverse, whole and replaced)
        if path.endswith((".cpp", ".cu")) and isinstance(writing.anchors.get(path), Fragment):
            contents = [text and _including(text, names) for text, names in zip(contents, operators)]
        _place(writing, path, contents, titles)
    memory.clear()
    memory.update(used)
    for pr in prs:
        if pr.split:
            writing.files |= {f"stack/{name}/COMMIT.md": said.description for name, said in pr.commits.items()}
        if pr.description:
            writing.files[f"stack/{pr.name}/PR.md"] = pr.description
    writing.files["stack/series.yaml"] = HEADER + _series(writing, prs, settings)
    return writing


def _operators(native: str | None) -> set[str]:
    return set(re.findall(r"^- func: (\w+)", native or "", re.MULTILINE))


def _including(fragment: str, operators: set[str]) -> str:
    """With the headers of the operators that it names, which upstream's file gets from one for all."""
    named = set(re.findall(r"\w+", fragment)).intersection(operators)
    kinds = ("", "_native", "_ops")
    lines = [f"#include <ATen/ops/{name}{kind}.h> // fragment only\n" for name in sorted(named) for kind in kinds]
    return "".join(lines) + fragment


def _contents(
    writing: Writing,
    path: str,
    base: str | None,
    states: Sequence[str | None],
    inverse: Callable[[str, str, list[str]], tuple[list[str], Fragment] | None],
    whole: bool,
) -> list[str | None]:
    """What the folder holds for a path at each PR: the whole of a new file, or a fragment with its anchor."""
    if base is None:
        return list(states)
    if any(text is None for text in states):
        writing.left_out.append(f"{path} is removed or renamed, and a stack only adds: put it back")
        return []
    different = list(dict.fromkeys(text for text in states if text is not None and text != base))
    if whole:
        writing.anchors[path] = Whole(digest(base.encode()))
        return [text if text != base else None for text in states]
    result = inverse(path, base, different)
    if result is None:
        told = [reason for text in different for reason in reasons(path, base, text)]
        told = told or [(1, "adds what cannot be told apart from its neighbours")]
        writing.left_out += [f"{path}:{line} {what}{_advice(path, what)}" for line, what in dict.fromkeys(told)]
        rest = [additions(path, base, text) for text in different]
        result = inverse(path, base, rest) if base not in rest else None
        if result is None:
            return []
    fragments = dict(zip(different, result[0]))
    writing.anchors[path] = result[1]
    return [fragments[text] if text is not None and text != base else None for text in states]


def _has_place(path: str, writing: Writing) -> bool:
    """Whether a build has room for a file as it is, in Python's part of a wheel or as new code; else says why not."""
    kind = kind_of(path)
    if kind is None:
        writing.left_out.append(f"{path} {OF_NO_KIND}")
        return False
    if kind.fate is Fate.REFUSED:
        writing.left_out.append(f"{path} {kind.says}")
        return False
    if kind.fate is Fate.LEFT_OUT or kind is Kind.PROGRAM:
        writing.told.append(f"{path}: {kind.says}")
    return kind.fate is not Fate.LEFT_OUT or path.endswith(KEPT_ENDINGS)


def _changes(path: str, base: str, states: Sequence[str | None], operators: set[str]) -> bool:
    """Whether a list has entries of operators of PyTorch otherwise, as a build can take them, and none is gone.

    That is a formula, changed or added, and the kernels of an entry of native_functions.yaml.
    """
    texts, old = [text for text in states if text is not None], yamls.entries(base)
    if path not in LISTS or any(old.keys() - yamls.entries(text).keys() for text in texts):
        return False
    changed = any(yamls.changed(base, text) for text in texts)
    if path == NATIVE_FUNCTIONS:
        return changed and all(yamls.in_dispatch_alone(base, text) for text in texts)
    added = {schema for text in texts for schema in yamls.entries(text).keys() - old.keys()}
    return changed or bool({re.split(r"[.(]", schema)[0] for schema in added} & operators)


def _place(writing: Writing, path: str, contents: Sequence[str | None], titles: Sequence[str]) -> None:
    """Puts the contents of a path where the folder holds them: the last at the top, others with their PR."""
    born = next((n for n, content in enumerate(contents) if content is not None), None)
    if born is None:
        return
    gone = next((n for n in range(born, len(contents)) if contents[n] is None), len(contents))
    if any(content is not None for content in contents[gone:]):
        writing.left_out.append(f"{path} is dropped by {titles[gone]} and comes back later: squash these commits")
        writing.anchors.pop(path, None)
        return
    writing.introduces[born].append(path)
    for n in range(born, gone):
        content = contents[n]
        assert content is not None
        if n + 1 == len(contents):
            writing.files[path] = content
        elif content != contents[n + 1]:
            writing.files[f"stack/{titles[n]}/{path}"] = content


def _advice(path: str, what: str) -> str:
    if what.startswith("calls "):
        return ": put your function into a new file, with what it calls, or declare that in a header"
    if path.endswith(COMPILED):
        return ", compiled into PyTorch's libraries: add a function or a file instead"
    if path in LISTS:
        return ", compiled into PyTorch's libraries: add an entry instead"
    return ", and no lines around it tell where: move it beside lines that the file has once"


def _remembered(
    memory: Memory, used: Memory, path: str, base: str, states: list[str]
) -> tuple[list[str], Fragment] | None:
    parts = [path, base, *states]
    key = digest(*(file.read_bytes() for file in tool_files()), *(part.encode() + b"\0" for part in parts))
    if key not in memory:
        result = unweave(path, base, states)
        if result is None:
            return None
        fragments, anchor = result
        memory[key] = fragments, {where: [str(place) for place in places] for where, places in anchor.places.items()}
    used[key] = memory[key]
    fragments, places = used[key]
    return fragments, Fragment(places_of(places))


def _series(writing: Writing, prs: Sequence[Pull], settings: Mapping[str, str | bool]) -> str:
    introduces = iter(writing.introduces)
    entries: list[dict[str, object]] = []
    for pr in prs:
        commits: list[dict[str, object]] = [
            {"name": name.rpartition(".")[2], "title": said.title, "introduces": next(introduces)}
            for name, said in pr.commits.items()
        ]
        entries += [{"name": pr.name, "title": pr.title, "commits": commits}] if pr.split else commits
    data: dict[str, object] = {**settings, "prs": entries}
    if writing.anchors:
        data["anchors"] = {path: _rules(kind) for path, kind in sorted(writing.anchors.items())}
    return yaml.safe_dump(data, sort_keys=False, width=1000, allow_unicode=True)


def _rules(kind: Fragment | Whole) -> dict[str, Any]:
    if isinstance(kind, Whole):
        return {"file": str(Place("replaces", kind.digest))}
    rules: dict[str, Any] = {}
    for key, places in kind.places.items():
        spots = [str(place) for place in places]
        value = spots if len(spots) > 1 else spots[0]
        container, _, piece = key.partition(": ")
        if piece:
            rules.setdefault(container, {})[piece] = value
        else:
            rules[container] = value
    return rules


def write(folder: Path, files: Mapping[str, str]) -> int:
    """Makes the folder hold these files; what is the same already is not touched. Returns how many were written."""
    written = 0
    for path, text in files.items():
        file, content = folder / path, text.encode()
        if not file.is_file() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            written += 1
    for file in [file for top in folder.iterdir() if top.name != KEPT for file in (top, *top.rglob("*"))]:
        if file.is_file() and file.relative_to(folder).as_posix() not in files:
            file.unlink()
            written += 1
    return written


def refuse_left_out(left_out: Sequence[str], checkout: Checkout) -> None:
    count = "1 change" if len(left_out) == 1 else f"{len(left_out)} changes"
    head = f"{count} of {checkout.path} cannot be part of a stack; --added-only leaves them out and takes the rest:"
    refuse_all(left_out, head, f"{head}\n  {{}}")


def remembered(file: Path) -> Memory:
    try:
        return {key: (fragments, places) for key, (fragments, places) in json.loads(file.read_text()).items()}
    except (OSError, ValueError):
        return {}
