"""Which operators a state of a stack adds; where a branch has PyTorch's own list with changes, those of the branch."""

from __future__ import annotations

from fork.series import Commit, Series
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.file_kinds import Whole


def operators(series: Series, commit: str | Commit) -> list[str]:
    """The names of the public operators of a state; their overloads and in-place variants share one."""
    native = series.state(commit).get(NATIVE_FUNCTIONS)
    text = native.read_text() if native else ""
    kind = series.kind(NATIVE_FUNCTIONS)
    own = altered(kind.text, text) if isinstance(kind, Whole) else text
    names = yamls.operators(own)
    return sorted(name for name in names if not name.startswith("_") and name.rstrip("_") not in names - {name})


def altered(start: str, text: str, added: bool = False) -> str:
    """Of a branch's list, the entries that differ from those where it began, or that are `added`."""
    before = yamls.by_name(start)
    own = yamls.by_name(text).items()
    return "".join(
        entry
        for name, entry in own
        if name not in before or not (added or yamls.code(before[name]) == yamls.code(entry))
    )
