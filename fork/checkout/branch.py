"""A branch of a PyTorch checkout as the states of a stack: one per commit, and one for what is not committed yet."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fork.checkout.git import Checkout
from fork.checkout.message import Message
from fork.errors import ForkError, NothingToBuild
from fork.series import Commit, PullRequest

# Where a branch can have begun, besides the release tags.
TRUNKS = ("main", "master", "nightly", "viable/strict", "release/*", "orig/release/*")
RELEASE = re.compile(r"v\d+\.\d+(\.\d+)?(-rc\d+)?")
UNFINISHED = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
UNCOMMITTED = "Changes that are not committed yet"
# What stands in the description of a PR of a stack.
STACK = "Stack (oldest at bottom):"


@dataclass(frozen=True)
class Start:
    """The commit that the branch left, and what it is called."""

    commit: str
    name: str


@dataclass(frozen=True)
class State:
    """A commit's message, and what its tree has other than the start: files by path, None where one is gone."""

    commit: str
    message: str
    contents: Mapping[str, bytes | None]
    strange: Mapping[str, str] = field(default_factory=dict)


def start(checkout: Checkout, since: str | None) -> Start:
    """`since`, or the release tag or main branch from which the fewest commits lead to HEAD."""
    if since is not None:
        # A fresh clone has the branches of others below the name of the remote alone.
        for name in (since, *checkout.git("for-each-ref", "--format=%(refname)", f"refs/remotes/*/{since}").split()):
            if commit := checkout.commit_of(name):
                return _left(checkout, commit, name.removeprefix("refs/remotes/"))
        raise ForkError(f"{checkout.path} has no commit {since}: give --since a tag, a branch or a hash")
    patterns = [f"refs/{kind}/{trunk}" for trunk in TRUNKS for kind in ("heads", "remotes/*")]
    own = checkout.git("rev-parse", "--symbolic-full-name", "HEAD").strip()
    refs = checkout.git("for-each-ref", "--format=%(refname)", *patterns).split()
    tags = checkout.git("tag", "--list", "v[0-9]*", "--merged", "HEAD", "--sort=-creatordate").split()
    releases = [tag for tag in tags if RELEASE.fullmatch(tag)]
    begun = [_left(checkout, f"refs/tags/{tag}", tag) for tag in releases[:1]]
    for ref in refs:
        if ref != own:
            with suppress(ForkError):  # a branch of another history
                begun.append(_left(checkout, ref, ref.split("/", 2)[2]))
    if not begun:
        raise ForkError(f"{checkout.path} has neither a release tag nor a main branch that HEAD left: give --since REV")
    return min(begun, key=lambda one: int(checkout.git("rev-list", "--count", f"{one.commit}..HEAD")))


def _left(checkout: Checkout, commit: str, name: str) -> Start:
    try:
        return Start(checkout.git("merge-base", commit, "HEAD").strip(), name)
    except ForkError as error:
        raise ForkError(
            f"HEAD of {checkout.path} has no history in common with {name}: give another --since"
        ) from error


def states(checkout: Checkout, begun: Start, line: bool = True) -> list[State]:
    """The stack, oldest first. Only reads: neither the files nor the index of the checkout are written.

    What is no line of commits, because of a merge, is one state where nobody needs a `line`.
    """
    _refuse_unfinished(checkout)
    rows = checkout.git("rev-list", "--reverse", "--parents", f"{begun.commit}..HEAD").splitlines()
    commits = [row.split()[0] for row in rows]
    merge = next((row.split()[0] for row in rows if len(row.split()) > 2), None)
    if merge and line:
        subject = checkout.git("show", "-s", "--format=%h (%s)", merge).strip()
        raise ForkError(
            f"commit {subject} of {checkout.path} is a merge, and a stack is a line: "
            f"`git rebase {begun.name}` on your branch, or give a later --since"
        )
    found = []
    for commit in commits[-1:] if merge else commits:
        differing = checkout.git("diff-tree", "-r", "-z", "--no-renames", begun.commit, commit)
        message = checkout.git("show", "-s", "--format=%B", commit).rstrip("\n") + "\n"
        found.append(_state(checkout, commit, message, differing, {}))
    loose = _uncommitted(checkout, begun)
    if loose.contents != (found[-1].contents if found else {}) or loose.strange != (found[-1].strange if found else {}):
        found.append(loose)
    if not found:
        raise NothingToBuild(
            f"{checkout.path} has nothing after {begun.name}: neither a commit nor a changed file; "
            "edit or commit something, or give an earlier --since"
        )
    return found


def _uncommitted(checkout: Checkout, begun: Start) -> State:
    """The working tree. Files that git does not know yet are part of it where they are text."""
    flags = ("--raw", "-z", "--no-renames", "--no-ext-diff", "--no-abbrev", "--ignore-submodules=dirty")
    rows = checkout.git("diff", *flags, begun.commit)
    loose = checkout.git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
    extra: dict[str, bytes] = {}
    for path in filter(None, loose):
        try:
            content = (checkout.path / path).read_bytes()
            content.decode()
        except (UnicodeDecodeError, OSError):  # such as a repository of its own, which is a folder
            continue
        extra[path] = content
    return _state(checkout, "", f"{UNCOMMITTED}\n", rows, extra)


def _state(checkout: Checkout, commit: str, message: str, rows: str, extra: Mapping[str, bytes]) -> State:
    contents: dict[str, bytes | None] = {}
    blobs: dict[str, str] = {}
    strange: dict[str, str] = {}
    fields = rows.split("\0")
    for meta, path in zip(fields[::2], fields[1::2]):
        old_mode, new_mode, _, blob, _ = meta.lstrip(":").split()
        if reason := _mode(old_mode, new_mode):
            strange[path] = reason
            continue
        if new_mode == "000000":
            contents[path] = None
        elif set(blob) == {"0"}:
            contents[path] = (checkout.path / path).read_bytes()
        else:
            blobs[path] = blob
    return State(commit, message, {**contents, **checkout.contents(blobs), **extra}, strange)


def _mode(old: str, new: str) -> str:
    if "160000" in (old, new):
        return "is a submodule, and a wheel has none: take its change back, or copy the files that you need"
    if "120000" in (old, new):
        return "is a symbolic link: put the file itself there"
    if new == "100755" and old == "000000":
        return "is executable, and the files of a stack are not: `chmod -x` it"
    if old != new and "000000" not in (old, new):
        return f"changes the mode of the file from {old} to {new}: take that back"
    return ""


def _refuse_unfinished(checkout: Checkout) -> None:
    for name, what in UNFINISHED.items():
        if Path(checkout.path, checkout.git("rev-parse", "--git-path", name).strip()).exists():
            raise ForkError(f"{checkout.path} is in the middle of {what}: finish or abort it first")
    conflicts = checkout.git("ls-files", "--unmerged").splitlines()
    if conflicts:
        path = conflicts[0].partition("\t")[2]
        raise ForkError(f"{checkout.path} has conflicts that are not resolved ({path}): resolve them first")


def pull_requests(found: Sequence[State]) -> tuple[list[PullRequest], dict[str, str]]:
    """The PRs of a branch: one for each commit, or for commits in a row whose messages name the same one; and what
    describes PRs and commits, by their names. A commit introduces or changes what the state before has otherwise."""
    prs: list[PullRequest] = []
    told: dict[str, str] = {}
    seen: set[str] = set()
    before: Mapping[str, bytes | None] = {}
    for state in found:
        said, contents = Message.of(state.message), state.contents
        new = tuple(sorted(contents.keys() - seen))
        other = tuple(sorted(path for path in seen if contents.get(path, ...) != before.get(path, ...)))
        seen |= contents.keys()
        before = contents
        name = said.pr or _unlike(_name(state, said.title), [pr.name for pr in prs])
        if said.pr and prs and prs[-1].split and prs[-1].name == name:
            there = prs[-1].commits
            own = _unlike(f"{name}.{said.commit}", [commit.name for commit in there])
            commit = Commit(own, said.title, f"{len(prs)}.{len(there) + 1}", new, other)
            prs[-1] = replace(prs[-1], commits=(*there, commit))
            # What only a PR's first commit can say is part of the description of any other.
            told[own] = "\n".join(filter(None, (said.description, said.whole)))
            continue
        if name in [pr.name for pr in prs]:
            raise ForkError(
                f"the commits of PR {name} do not follow one another (see {said.title!r}): "
                "reorder them by `git rebase -i`, or change the line `Part-of` of their messages"
            )
        place = str(len(prs) + 1)
        own, part = (f"{name}.{said.commit}", f"{place}.1") if said.pr else (name, place)
        title = said.whole.partition("\n")[0] or said.title
        prs.append(PullRequest(name, title, place, (Commit(own, said.title, part, new, other),)))
        told |= {own: said.description} | ({name: said.whole} if said.whole else {})
    return prs, told


def _name(state: State, title: str) -> str:
    """The name that its description gives a PR, else its title in small letters."""
    own = re.search(r"^\* \*\*(\w[\w-]*)\*\* \(this PR\)$", state.message, re.MULTILINE)
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return own[1] if own else "uncommitted" if not state.commit else words[:40].strip("-") or "pr"


def _unlike(name: str, given: Collection[str]) -> str:
    while name in given:
        name = f"{name}-{len(given) + 1}"
    return name
