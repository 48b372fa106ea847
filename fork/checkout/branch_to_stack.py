"""Writes a branch of a checkout as a stack in a folder: whole new files, fragments with their anchors, descriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fork.checkout import whole_branch
from fork.checkout.whole_branch import Branch
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.file_kinds import Fragment
from fork.weave.unweave import COMPILED, LISTS, additions, reasons, unweave

HEADER = """\
# The stack: its PRs in order, the paths each introduces, and where the fragments go in PyTorch's files. A path with an
# anchor is a fragment: what the stack adds to PyTorch's file, and beside what. Without one it is a new file.
# `fork check` runs `operator_tests`, PyTorch's OpInfo suites, which the tool brings, for each operator.
"""


@dataclass
class Writing:
    """The files of a stack's folder, and what of the branch could not become part of it."""

    files: dict[str, str]
    introduces: list[list[str]]
    left_out: list[str]
    anchors: dict[str, Fragment] = field(default_factory=dict)


def stack_files(tree: Path, since: str | None, home: Path) -> tuple[Branch, Writing]:
    """The branch of a checkout, as far as its files can be part of a stack, and the content of the stack's folder."""
    taken = whole_branch.take(tree, since, home, _problems, line=True)
    names = [commit.name for commit in taken.commits]
    said = {one: taken.said(one) for one in taken.outline()}
    files = {str(taken.description_file(one).relative_to(taken.root)): text for one, text in said.items() if text}
    writing = Writing(files, [[] for _ in names], [*taken.left_out])
    upstreams, *operators = (yamls.operators(text or "") for text in taken.history(NATIVE_FUNCTIONS))
    for path in sorted({path for state in taken.texts for path in state}):
        base, *states = taken.history(path)
        contents = _contents(writing, path, base, states)
        if path.endswith((".cpp", ".cu")) and path in writing.anchors:
            contents = [text and _including(text, own - upstreams) for text, own in zip(contents, operators)]
        _place(writing, path, contents, names)
    writing.left_out.sort(key=lambda line: re.split("[: ]", line)[0])
    writing.files["stack/series.yaml"] = series_text(_series(writing, taken))
    return taken, writing


def _problems(path: str, contents: Sequence[bytes | None]) -> list[str]:
    """Why a stack cannot hold a file."""
    for content in filter(None, contents):
        if b"\r\n" in content:
            return ["has CRLF at the end of its lines: `dos2unix` it"]
        if b"\0" in content:
            return ["is binary, and a stack holds text: leave it out of the branch"]
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            return [f"line {line} is not UTF-8: convert the file"]
    return []


def _including(fragment: str, operators: set[str]) -> str:
    """With the headers of the operators that it names, which upstream's file gets from one for all."""
    named = set(re.findall(r"\w+", fragment)).intersection(operators)
    kinds = ("", "_native", "_ops")
    lines = [f"#include <ATen/ops/{name}{kind}.h> // fragment only\n" for name in sorted(named) for kind in kinds]
    return "".join(lines) + fragment


def _contents(writing: Writing, path: str, base: str | None, states: Sequence[str | None]) -> list[str | None]:
    """What the folder holds for a path at each PR: the whole of a new file, or a fragment with its anchor."""
    if base is None:
        return list(states)
    if any(text is None for text in states):
        writing.left_out.append(f"{path} is removed or renamed, and a stack only adds: put it back")
        return []
    different = list(dict.fromkeys(text for text in states if text is not None and text != base))
    result = unweave(path, base, different)
    if result is None:
        told = [reason for text in different for reason in reasons(path, base, text)]
        told = told or [(1, "adds what cannot be told apart from its neighbours")]
        writing.left_out += [f"{path}:{line} {what}{_advice(path, what)}" for line, what in dict.fromkeys(told)]
        rest = [additions(path, base, text) for text in different]
        result = unweave(path, base, rest) if base not in rest else None
        if result is None:
            return []
    fragments = dict(zip(different, result[0]))
    writing.anchors[path] = result[1]
    return [fragments[text] if text is not None and text != base else None for text in states]


def _place(writing: Writing, path: str, contents: Sequence[str | None], names: Sequence[str]) -> None:
    """Puts the contents of a path where the folder holds them: the last at the top, others with their PR."""
    born = next((n for n, content in enumerate(contents) if content is not None), None)
    if born is None:
        return
    gone = next((n for n in range(born, len(contents)) if contents[n] is None), len(contents))
    if any(content is not None for content in contents[gone:]):
        writing.left_out.append(f"{path} is dropped by {names[gone]} and comes back later: squash these commits")
        writing.anchors.pop(path, None)
        return
    writing.introduces[born].append(path)
    for n in range(born, gone):
        content = contents[n]
        assert content is not None
        if n + 1 == len(contents):
            writing.files[path] = content
        elif content != contents[n + 1]:
            writing.files[f"stack/{names[n]}/{path}"] = content


def _advice(path: str, what: str) -> str:
    if what.startswith("calls "):
        return ": put your function into a new file, with what it calls, or declare that in a header"
    if path.endswith(COMPILED):
        return ", compiled into PyTorch's libraries: add a function or a file instead"
    if path in LISTS:
        return ", compiled into PyTorch's libraries: add an entry instead"
    return ", and no lines around it tell where: move it beside lines that the file has once"


def _series(writing: Writing, taken: Branch) -> dict[str, object]:
    introduces = iter(writing.introduces)
    entries: list[dict[str, object]] = []
    for pr in taken.prs:
        commits: list[dict[str, object]] = [
            {"name": commit.name.rpartition(".")[2], "title": commit.title, "introduces": next(introduces)}
            for commit in pr.commits
        ]
        entries += [{"name": pr.name, "title": pr.title, "commits": commits}] if pr.split else commits
    data: dict[str, object] = {"wheel_suffix": taken.wheel_suffix, "operator_tests": taken.operator_tests}
    data |= {"prs": entries} if taken.strict else {"strict": False, "prs": entries}
    if writing.anchors:
        data["anchors"] = {path: _rules(kind) for path, kind in sorted(writing.anchors.items())}
    return data


def series_text(data: Mapping[str, object]) -> str:
    """What series.yaml says of a stack."""
    return HEADER + yaml.safe_dump(data, sort_keys=False, width=1000, allow_unicode=True)


def _rules(kind: Fragment) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for key, places in kind.places.items():
        spots = [str(place) for place in places]
        container, _, piece = key.partition(": ")
        where = rules.setdefault(container, {}) if piece else rules
        where[piece or container] = spots if spots[1:] else spots[0]
    return rules
