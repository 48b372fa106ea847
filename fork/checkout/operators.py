"""Which operators a state of a stack adds; where a branch has PyTorch's own list with changes, those of the branch."""

from __future__ import annotations

import re

import yaml

from fork.checkout.git import Checkout
from fork.series import Commit, Series
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.file_kinds import Whole


def operators(series: Series, commit: str | Commit) -> list[str]:
    """The names of the public operators of a state; their overloads and in-place variants share one."""
    native = series.state(commit).get(NATIVE_FUNCTIONS)
    text = native.read_text() if native else ""
    own = altered(series, NATIVE_FUNCTIONS, text) if isinstance(series.kind(NATIVE_FUNCTIONS), Whole) else text
    names = {re.split(r"[.(]", entry["func"])[0] for entry in yaml.safe_load(own) or ()}
    return sorted(name for name in names if not name.startswith("_") and name.rstrip("_") not in names - {name})


def altered(series: Series, path: str, text: str, added: bool = False) -> str:
    """Of a list that replaces PyTorch's, the entries that differ from those where the branch began, or that are
    `added`."""
    assert series.checkout is not None and series.since is not None
    before = yamls.entries(Checkout.open(series.checkout).read_at(series.since, path) or "")
    code = {schema: yamls.code(entry) for schema, entry in before.items()}
    own = yamls.entries(text).items()
    return "".join(
        entry for schema, entry in own if schema not in code or not (added or code[schema] == yamls.code(entry))
    )
