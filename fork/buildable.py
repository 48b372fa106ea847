"""What refuses a build by its texts and folders, before a release is fetched or anything is made."""

from __future__ import annotations

import re
from pathlib import Path

from fork.errors import ForkError, NothingToBuild
from fork.refusals import Refusal
from fork.series import Commit, Series
from fork.tree import HEADERS, Fate, kind_of
from fork.weave.cpp import DEFINE
from fork.weave.file_kinds import Fragment

# The one list whose entries the tool itself registers.
AUTOCAST = "aten/src/ATen/autocast_mode.h"


def refuse_unbuildable(series: Series, commit: Commit) -> None:
    """Raises where a state of a stack has nothing for a wheel, or a list that others would have to be compiled for."""
    state = series.state(commit)
    kinds = [kind_of(path) for path in (*state, *series.gone(commit))]
    if not any(kind and kind.fate in (Fate.COMPILED, Fate.INSTALLED) for kind in kinds):
        raise NothingToBuild(f"{commit.name} changes nothing that a wheel of torch holds: there is nothing to build")
    for path, file in series.of_kind(state, Fragment).items():
        if path.endswith(HEADERS) and path != AUTOCAST and (found := DEFINE.search(file.read_text())):
            raise ForkError(Refusal.LIST_OF_A_STACK.of(path=path, name=found[1]))


def refuse_names(*paths: Path) -> None:
    """What a path of a build may not have: compilers and linkers read these signs as their own."""
    for path in map(str, paths):
        if wrong := re.search(r'["\\\n]', path):
            raise ForkError(f"a build takes no path with {wrong[0]!r}, as in {path!r}: give the folder another name")
