"""The stack's files are sound: states, descriptions and anchors."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

import yaml

from fork.checkout.branch import STACK
from fork.checkout.message import PART
from fork.checkout.whole_branch import Branch
from fork.engine.wheel.base import Base
from fork.series import Series
from fork.weave import pieces, weave_all
from fork.weave.file_kinds import File, Fragment, New, Whole, edited

Asked = Callable[[str], str | None]
SECTIONS = ("why", "how to review", "test plan")
# What says itself that something is left to write, and what an operator may have: to decline it, leave it or delete it.
UNFINISHED = re.compile(r"\b(TODO|TBD|FIXME|XXX)\b|@[A-Z_]+@")
OPTION = re.compile(r"\bOPTIONAL: ")
ANY_MARK = re.compile(f"{UNFINISHED.pattern}|{OPTION.pattern}")
COMMENT = re.compile(r"\s*(//|#|\*) ")


def problems(series: Series, base: Base) -> list[str]:
    """Everything that is wrong with the files, one sentence each."""
    return [
        *files(series),
        *weaves(series, base.read, base.new_path),
        *(descriptions(series) if series.strict else ()),
    ]


def files(series: Series) -> Iterator[str]:
    """Each path introduced once and used, each stored state unlike the next one, each file whole."""
    introduced = {path: n for n, commit in enumerate(series.commits) for path in commit.introduces}
    for path in series.anchors:
        if path not in introduced:
            yield f"{path}: it has an anchor, and no PR introduces it"
    if not isinstance(series, Branch):
        yield from _around(series, introduced)
        yield from _stored(series, introduced)
    for file in series.files():
        name = _named(series, file)
        if not file.read_bytes().endswith(b"\n") and not isinstance(series, Branch):
            yield f"{name}: no newline at its end"
        try:
            if pieces.MARK.search(file.read_text()):
                continue  # pieces that need not be whole statements or entries
            if name.endswith(".py"):
                ast.parse(file.read_text())
            elif name.endswith(".yaml"):
                yaml.safe_load(file.read_text())
        except (SyntaxError, yaml.YAMLError) as error:
            yield f"{name}: {' '.join(str(error).split())}"


def _named(series: Series, file: File) -> str:
    """A file's path from the top of the stack's folder, or of the checkout."""
    top = series.checkout.path if isinstance(series, Branch) else series.root
    return edited(file).relative_to(top).as_posix()


def _around(series: Series, introduced: Mapping[str, int]) -> Iterator[str]:
    """No file lies beside those of the stack."""
    for top in sorted({path.partition("/")[0] for path in introduced if "/" in path}):
        for file in sorted((series.root / top).rglob("*")):
            path = file.relative_to(series.root).as_posix()
            if file.is_file() and "__pycache__" not in path and path not in (*introduced, series.operator_tests):
                yield f"{path}: no PR introduces it"


def _stored(series: Series, introduced: Mapping[str, int]) -> Iterator[str]:
    """Each file below stack/ belongs to a state and is unlike the next one's."""
    states = {commit.name: n for n, commit in enumerate(series.commits)}
    known = {series.root / "stack/series.yaml", *map(series.description_file, series.outline())}
    top = series.root / "stack"
    for file in sorted(file for file in top.rglob("*") if file.is_file() and file not in known):
        name, _, path = file.relative_to(top).as_posix().partition("/")
        here, n = file.relative_to(series.root), states.get(name)
        if n is None:
            yield f"{here}: no commit is called {name}"
        elif path not in introduced or introduced[path] > n:
            yield f"{here}: this state does not have {path}"
        elif n + 1 == len(states):
            there = (series.root / path).is_file()
            yield f"{here}: hides {path}, the last state" if there else f"{here}: the last state lies at {path} itself"
        else:
            later = series.state(series.commits[n + 1]).get(path)
            if later is not None and later.read_bytes() == file.read_bytes():
                yield f"{here}: the same as the next state: delete it"


def descriptions(series: Series) -> Iterator[str]:
    """Each has its title, and nothing that git would cut; a PR's also its place in the stack, and every section."""
    prs = [pr.name for pr in series.prs]
    for one in series.outline():
        said, name = series.said(one), series.description_file(one).relative_to(series.root)
        if said is None:
            yield f"{name}: missing"
            continue
        lines = said.splitlines()
        headings = [line.lstrip("# ").lower() for line in lines if line.startswith("#")]
        if lines[:2] != [one.title, ""]:
            yield f"{name}: it does not begin with '{one.title}' and an empty line"
        if len(one.title) > 72:
            yield f"{name}: its title has {len(one.title)} characters, and a subject has 72 at most"
        for number, line in enumerate(lines, 1):
            if line == "---" or line.startswith(("diff -", "Index: ")):
                yield f"{name}:{number}: git would cut the message at {line!r}"
            if PART.match(f"{line}\n"):
                yield f"{name}:{number}: `fork apply` writes such a line itself: {line!r}"
        if one.name not in prs:
            continue
        for section in SECTIONS:
            if not any(heading.startswith(section) for heading in headings):
                yield f"{name}: it has no section '{section}'"
        place = [f"* **{pr}** (this PR)" if pr == one.name else f"* {pr}" for pr in reversed(prs)]
        if STACK not in lines or lines[lines.index(STACK) + 1 :][: len(place) + 1] != [*place, ""]:
            yield f"{name}: it does not say '{STACK}' and then {', '.join(place)}"


def marked(series: Series, mark: re.Pattern[str]) -> Iterator[str]:
    """Every line of a file or a description with a mark, and its sentence, which may go on in the next lines."""
    states = (series.state(commit) for commit in series.commits)
    theirs = {file for state in states for file in series.of_kind(state, Whole).values()}  # PyTorch's own words
    texts = {_named(series, file): file.read_text() for file in series.files() if file not in theirs}
    said = {series.description_file(one).relative_to(series.root): series.said(one) for one in series.outline()}
    for name, text in sorted((texts | {str(name): text or "" for name, text in said.items()}).items()):
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if found := mark.search(line):
                comment = COMMENT.match(line)
                begins = comment[0] if comment else ""
                following = lines[number:] if comment or name.endswith(".md") else []
                words = [line[found.start() :].strip(" #/*")]
                for other in following:
                    if not other.startswith(begins) or other.strip() == begins.strip() or ANY_MARK.search(other):
                        break
                    words.append(other.removeprefix(begins).strip())
                what = re.sub(r"^(TODO|OPTIONAL):", "", " ".join(words)).strip()
                yield f"{name}:{number}: {what.partition('. ')[0].rstrip('.')}"


def weaves(series: Series, read: Asked, ships: Asked) -> Iterator[str]:
    """Every prefix weaves into the files that the base has, or a wheel would have, and some fragment uses each anchor.

    `read` gives the base's text of a path, and `ships` where a wheel would have it; each None where there is none.
    """
    problems: list[str] = []
    tried: set[tuple[str, str]] = set()  # texts, which most states share
    used: set[tuple[str, str]] = set()
    for commit in series.commits:
        held = series.state(commit)
        # A build brings what the branch changes in PyTorch's own C++ and lists to the release, or refuses it.
        fragments = series.of_kind(held, Fragment).items()
        woven = {path: file for path, file in fragments if read(path) is not None or ships(path)}
        state = {path: file.read_text() for path, file in (series.of_kind(held, New) | woven).items()}
        fresh = {path: held[path] for path in state if (path, state[path]) not in tried}
        tried |= state.items()
        weave_all(fresh, series.anchors, read, problems, used)
    yield from dict.fromkeys(problems)
    for path, kind in sorted(series.anchors.items()):
        if isinstance(kind, Fragment) and path in {path for path, _ in used}:
            for container in kind.places:
                if (path, container) not in used:
                    yield f"{path}: no fragment uses the anchor {container!r}"
