"""A branch of a checkout as a stack in memory: every changed file whole, and what a build does with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fork.checkout import branch
from fork.checkout.branch_to_stack import OPERATOR_TESTS, refuse_left_out
from fork.checkout.git import Checkout
from fork.cpp.scan import lines
from fork.series import Commit, PullRequest, Series
from fork.series import State as Files
from fork.tree import OF_NO_KIND, Fate, Kind, kind_of
from fork.weave import yamls
from fork.weave.file_kinds import Held, New, Whole

READ_BY_GENERATORS = (Kind.OPERATORS, Kind.INPUT)  # their comments are not C++'s
HALF = 0.5  # the share of lines by which git takes a file for another that was renamed


@dataclass(frozen=True, kw_only=True)
class Branch(Series):
    """`since` is where the branch `called` so began; `texts` are its files after each commit, None for one less."""

    checkout: Checkout
    since: str
    called: str
    texts: Sequence[Mapping[str, Held | None]]
    told: Mapping[str, str]  # descriptions, by the names of PRs and commits
    summary: str = ""
    left_out: Sequence[str] = field(default=())

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

    def changed(self, commit: Commit) -> dict[str, str]:
        """The text of each file that is compiled in the place of PyTorch's, by the path there; other comments are no
        change."""
        state = self.state(commit)
        texts = {old: state[new].read_text() for old, new in self.moved(commit).items()}
        for path, file in self.of_kind(state, Whole).items():
            kind, start = kind_of(path), self.anchors[path]
            assert isinstance(start, Whole)
            text = file.read_text()
            if kind and kind.fate is Fate.COMPILED and (kind in READ_BY_GENERATORS or lines(text) != lines(start.text)):
                texts[path] = text
        return texts

    def moved(self, commit: Commit) -> dict[str, str]:
        """The sources of PyTorch that the branch has renamed, each with the new one that has most of its lines, if half
        of them."""
        found: dict[str, str] = {}
        new = self.of_kind(self.state(commit), New)
        sources = {path: Counter(new[path].read_text().splitlines()) for path in new if _is_source(path)}
        for path in sorted(filter(_is_source, self.gone(commit))):
            start = self.anchors[path]
            assert isinstance(start, Whole)
            own = Counter(start.text.splitlines())
            shares = {other: _share(own, text) for other, text in sources.items() if other not in found.values()}
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


def read(path: Path, since: str | None, home: Path, added_only: bool = False) -> Branch:
    """The branch that is checked out there; builds of it lie in `home`. Raises where a change has no place in a build,
    unless such changes are to be left out."""
    taken = branch.Taken.of(path, since, line=False)
    texts = [dict(state.contents) for state in taken.states]
    strange = {path: why for state in taken.states for path, why in state.strange.items()}
    problems = [f"{path} {why}" for path, why in strange.items()]
    for changed in dict.fromkeys(path for state in texts for path in state):
        states = [state[changed] for state in texts if changed in state]
        reasons = _problems(changed, taken.starts.get(changed), states)
        problems += reasons
        for state in texts if reasons else ():
            state.pop(changed, None)
    if not added_only:
        refuse_left_out(problems, taken.checkout, "fork")
    return _series(taken, texts, home, problems)


def _problems(path: str, start: bytes | None, contents: Sequence[bytes | None]) -> list[str]:
    """Why no build can have a change."""
    kind = kind_of(path)
    if kind is None:
        return [f"{path} {OF_NO_KIND}"]
    if kind.fate is Fate.REFUSED:
        return [f"{path} {kind.says}"]
    if kind is Kind.OPERATORS and None in contents:
        return [f"{path} is removed, and every wheel has it: put it back"]
    if kind is Kind.OPERATORS and start is not None:
        known = Counter(yamls.names(start.decode()))
        now = [Counter(yamls.names(text.decode())) for text in contents if text]
        why = "which is compiled into PyTorch's libraries: put it back"
        lost = {f"{path} no longer has {name}, {why}" for names in now for name in known - names if not names[name]}
        more = {f"{path} has {name} twice: keep one" for names in now for name in names - known if names[name] > 1}
        return sorted(lost | more)
    return []


def _series(
    taken: branch.Taken, texts: Sequence[Mapping[str, bytes | None]], home: Path, left_out: Sequence[str]
) -> Branch:
    top = taken.checkout.path
    return Branch(
        root=home,
        prs=tuple(_pull_requests(taken.pulls, texts)),
        anchors={path: Whole(start) for path, start in taken.starts.items() if any(path in state for state in texts)},
        wheel_suffix=taken.wheel_suffix,
        operator_tests=OPERATOR_TESTS,
        strict=taken.strict,
        checkout=taken.checkout,
        since=taken.begun.commit,
        called=taken.called,
        texts=[{path: text if text is None else Held(text, top / path) for path, text in one.items()} for one in texts],
        told={name: text for pull in taken.pulls for name, text in _descriptions(pull)},
        summary=taken.summary,
        left_out=left_out,
    )


def _descriptions(pull: branch.Pull) -> Iterator[tuple[str, str]]:
    if pull.split:
        yield from ((name, said.description) for name, said in pull.commits.items())
    if pull.description:
        yield pull.name, pull.description


def _pull_requests(pulls: Sequence[branch.Pull], texts: Sequence[Mapping[str, bytes | None]]) -> Iterator[PullRequest]:
    """The branch's, whose commits introduce or change what the state before has otherwise."""
    seen: set[str] = set()
    before: Mapping[str, bytes | None] = {}
    states = iter(texts)
    for place, pull in enumerate(pulls, 1):
        commits = []
        for part, (name, said) in enumerate(pull.commits.items(), 1):
            state = next(states)
            new = tuple(sorted(path for path in state if path not in seen))
            other = tuple(sorted(path for path in seen if state.get(path, ...) != before.get(path, ...)))
            commits.append(Commit(name, said.title, f"{place}.{part}" if pull.split else f"{place}", new, other))
            seen |= state.keys()
            before = state
        yield PullRequest(pull.name, pull.title, str(place), tuple(commits))


def _is_source(path: str) -> bool:
    return kind_of(path) in (Kind.SOURCE, Kind.KERNEL)


def _share(one: Counter[str], other: Counter[str]) -> float:
    return (one & other).total() / max(one.total(), other.total(), 1)
