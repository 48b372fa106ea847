"""A branch of a checkout as a stack in memory: every changed file whole, and what a build does with each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fork.checkout import branch
from fork.checkout.git import Checkout
from fork.cpp.scan import lines
from fork.errors import refuse_all
from fork.series import Commit, PullRequest, Series
from fork.series import State as Files
from fork.tree import OF_NO_KIND, Fate, Kind, kind_of
from fork.weave import yamls
from fork.weave.file_kinds import Held, New, Whole

READ_BY_GENERATORS = (Kind.OPERATORS, Kind.INPUT)  # their comments are not C++'s
# PyTorch's OpInfo suites, which the tool brings for any operator.
OPERATOR_TESTS = "test/test_ops.py"
HALF = 0.5  # the share of lines by which git takes a file for another that was renamed


@dataclass(frozen=True, kw_only=True)
class Branch(Series):
    """`since` is where the branch `called` so began; `texts` are its files after each commit, None for one less."""

    anchors: Mapping[str, Whole]
    checkout: Checkout
    since: str
    called: str
    texts: Sequence[Mapping[str, Held | None]]
    told: Mapping[str, str]  # descriptions, by the names of PRs and commits
    summary: str = ""  # what it is made of and where it begins, as a phrase
    left_out: Sequence[str] = ()

    @property
    def described(self) -> str:
        return str(self.checkout.path)

    def settings(self, commit: Commit) -> bytes:
        return repr((self.since, sorted(self.gone(commit)))).encode()

    def build_name(self, commit: Commit) -> str:
        """The last commit's name may change, and a build of it goes on with the one before."""
        return "branch" if commit == self.commits[-1] else super().build_name(commit)

    def said(self, of: PullRequest | Commit) -> str | None:
        return self.told.get(of.name)

    def state(self, commit: str | Commit) -> Files:
        return {path: held for path, held in self._texts(commit).items() if held is not None}

    def gone(self, commit: Commit) -> frozenset[str]:
        return frozenset(path for path, held in self._texts(commit).items() if held is None and path in self.anchors)

    def _texts(self, commit: str | Commit) -> Mapping[str, Held | None]:
        return self.texts[self.commits.index(self.find(commit))]

    def history(self, path: str) -> list[str | None]:
        """The text of a file where the branch began and after each commit, None where there is none."""
        start = self.anchors[path].text if path in self.anchors else None
        states = (state.get(path) if path in state else start for state in self.texts)
        return [start, *(held.read_text() if isinstance(held, Held) else held for held in states)]

    def changed(self, commit: Commit) -> dict[str, str]:
        """The text of each file that is compiled in the place of PyTorch's, by the path there; other comments are no
        change."""
        state = self.state(commit)
        texts = {old: state[new].read_text() for old, new in self.moved(commit).items()}
        for path, file in self.of_kind(state, Whole).items():
            kind, text, start = kind_of(path), file.read_text(), self.anchors[path].text
            if kind and kind.fate is Fate.COMPILED and (kind in READ_BY_GENERATORS or lines(text) != lines(start)):
                texts[path] = text
        return texts

    def moved(self, commit: Commit) -> dict[str, str]:
        """The sources of PyTorch that the branch has renamed, each with the new one that has most of its lines, if half
        of them."""
        found: dict[str, str] = {}
        new = self.of_kind(self.state(commit), New)
        sources = {path: Counter(new[path].read_text().splitlines()) for path in new if _is_source(path)}
        for path in sorted(filter(_is_source, self.gone(commit))):
            own = Counter(self.anchors[path].text.splitlines())
            shares = {
                other: (own & text).total() / max(own.total(), text.total(), 1)
                for other, text in sources.items()
                if other not in found.values()
            }
            best = max(shares, key=lambda other: (shares[other], other), default="")
            if best and shares[best] >= HALF:
                found[path] = best
        return found

    def left(self, commit: Commit) -> Iterator[str]:
        """What of a state has no place in a wheel, each with the reason."""
        for path in self.state(commit):
            kind = kind_of(path)
            if kind and (kind.fate is Fate.LEFT_OUT or kind is Kind.PROGRAM):
                yield f"{path}: {kind.says}"
        for path in sorted(self.gone(commit) - self.moved(commit).keys()):
            if (kind := kind_of(path)) and kind.fate is Fate.COMPILED and kind is not Kind.HEADER:
                yield f"{path}: the branch removes it, and what the wheel's libraries have of it stays"


def take(
    tree: Path, since: str | None, home: Path, problems: Callable[[str, list[bytes | None]], list[str]], line: bool
) -> Branch:
    """The branch that is checked out there, without the files that have `problems`, which get their path and what they
    held at first and after each commit that has changed them; builds of it lie in `home`. Raises where it is no `line`
    of commits and has to be one."""
    checkout = Checkout.open(tree)
    begun = branch.start(checkout, since)
    found = branch.states(checkout, begun, line)
    paths = {path for state in found for path in state.contents}
    starts = checkout.contents_at(begun.commit, paths)
    reasons = {path: [why] for state in found for path, why in state.strange.items()}
    for path in paths - reasons.keys():
        reasons[path] = problems(
            path, [starts.get(path), *(state.contents[path] for state in found if path in state.contents)]
        )
    texts = [{path: text for path, text in state.contents.items() if not reasons[path]} for state in found]
    prs, told = branch.pull_requests([replace(state, contents=own) for state, own in zip(found, texts)])
    called = checkout.git("rev-parse", "--abbrev-ref", "HEAD").strip()
    words = re.sub(r"[^a-z0-9]+", ".", called.lower()).strip(".")
    return Branch(
        root=home,
        prs=tuple(prs),
        anchors={path: Whole(start) for path, start in starts.items() if not reasons[path]},
        wheel_suffix=words if called != "HEAD" and words else "fork",
        operator_tests=OPERATOR_TESTS,
        strict=all(branch.STACK in told.get(pr.name, "") for pr in prs),
        checkout=checkout,
        since=begun.commit,
        called=called,
        texts=[
            {path: Held(text, checkout.path / path) if text is not None else None for path, text in own.items()}
            for own in texts
        ],
        told=told,
        summary=f"{_made_of(found, called)}, since {begun.name} ({begun.commit[:10]})",
        left_out=[f"{path} {why}" for path in sorted(reasons) for why in reasons[path]],
    )


def _made_of(found: Sequence[branch.State], called: str) -> str:
    commits = sum(bool(state.commit) for state in found)
    parts = [f"{commits} commit{'s' if commits != 1 else ''} of {called}"] if commits else []
    return " and ".join([*parts, "what is not committed yet"] if commits < len(found) else parts)


def read(path: Path, since: str | None, home: Path, added_only: bool = False) -> Branch:
    """A branch to build. Raises where a change has no place in a build, unless such changes are to be left out."""
    found = take(path, since, home, _problems, line=False)
    if not added_only:
        refuse_left_out(found.left_out, found.checkout, "fork")
    return found


def refuse_left_out(left_out: Sequence[str], checkout: Checkout, of: str) -> None:
    """One error that names all changes that cannot be part of a stack, or of a fork."""
    count = "1 change" if len(left_out) == 1 else f"{len(left_out)} changes"
    head = f"{count} of {checkout.path} cannot be part of a {of}; --added-only leaves them out and takes the rest:"
    refuse_all(left_out, head, f"{head}\n  {{}}")


def _problems(path: str, contents: list[bytes | None]) -> list[str]:
    """Why no build can have a change."""
    kind = kind_of(path)
    if kind is None:
        return [OF_NO_KIND]
    if kind.fate is Fate.REFUSED:
        return [kind.says]
    start, *states = contents
    if kind is Kind.OPERATORS and None in states:
        return ["is removed, and every wheel has it: put it back"]
    if kind is Kind.OPERATORS and start is not None:
        known = Counter(yamls.names(start.decode()))
        now = [Counter(yamls.names(text.decode())) for text in states if text]
        why = "which is compiled into PyTorch's libraries: put it back"
        lost = {f"no longer has {name}, {why}" for names in now for name in known - names if not names[name]}
        more = {f"has {name} twice: keep one" for names in now for name in names - known if names[name] > 1}
        return sorted(lost | more)
    return []


def _is_source(path: str) -> bool:
    return kind_of(path) in (Kind.SOURCE, Kind.KERNEL)
