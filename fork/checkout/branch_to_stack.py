"""Writes a branch of a checkout as a stack in a folder: whole new files, fragments with their anchors, descriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from fork.checkout.branch import Pull, Taken, no_text
from fork.checkout.git import Checkout
from fork.errors import refuse_all
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave.file_kinds import Fragment
from fork.weave.unweave import COMPILED, LISTS, additions, reasons, unweave

# PyTorch's OpInfo suites, which the tool brings for any operator.
OPERATOR_TESTS = "test/test_ops.py"
HEADER = "# A stack read from a branch. Its PRs in order, the paths each introduces, and where its fragments go.\n"


@dataclass
class Writing:
    """The files of a stack's folder, and what of the branch could not become part of it."""

    files: dict[str, str] = field(default_factory=dict)
    introduces: list[list[str]] = field(default_factory=list)
    anchors: dict[str, Fragment] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def stack_files(taken: Taken) -> Writing:
    """The folder's content for a branch."""
    prs, found, starts = taken.pulls, taken.states, taken.starts
    titles = [name for pr in prs for name in pr.commits]
    writing = Writing(introduces=[[] for _ in found])
    upstreams = _operators(starts.get(NATIVE_FUNCTIONS))
    operators = [_operators(state.contents.get(NATIVE_FUNCTIONS)) - upstreams for state in found]
    for path in sorted({path for state in found for path in (*state.contents, *state.strange)}):
        start = starts.get(path)
        held = [state.contents.get(path, start) for state in found]
        strange = [state.strange[path] for state in found if path in state.strange]
        strange += [why for content in (*held, start) if content is not None and (why := no_text(content))]
        if strange:
            writing.left_out.append(f"{path} {strange[0]}")
            continue
        base, states = _text(start), list(map(_text, held))
        contents = _contents(writing, path, base, states)
        if path.endswith((".cpp", ".cu")) and path in writing.anchors:
            contents = [text and _including(text, names) for text, names in zip(contents, operators)]
        _place(writing, path, contents, titles)
    for pr in prs:
        if pr.split:
            writing.files |= {f"stack/{name}/COMMIT.md": said.description for name, said in pr.commits.items()}
        if pr.description:
            writing.files[f"stack/{pr.name}/PR.md"] = pr.description
    settings: dict[str, object] = {"wheel_suffix": taken.wheel_suffix, "operator_tests": OPERATOR_TESTS}
    settings |= {} if taken.strict else {"strict": False}
    writing.files["stack/series.yaml"] = HEADER + _series(writing, prs, settings)
    return writing


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()


def _operators(native: bytes | None) -> set[str]:
    return set(re.findall(r"^- func: (\w+)", (native or b"").decode(), re.MULTILINE))


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


def _series(writing: Writing, prs: Sequence[Pull], settings: Mapping[str, object]) -> str:
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


def _rules(kind: Fragment) -> dict[str, Any]:
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


def refuse_left_out(left_out: Sequence[str], checkout: Checkout, of: str = "stack") -> None:
    """One error that names all changes that cannot be part of a stack, or of a fork."""
    count = "1 change" if len(left_out) == 1 else f"{len(left_out)} changes"
    head = f"{count} of {checkout.path} cannot be part of a {of}; --added-only leaves them out and takes the rest:"
    refuse_all(left_out, head, f"{head}\n  {{}}")
