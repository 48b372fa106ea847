"""This project's stack, every state of it, woven into the files that the installed torch ships."""

import ast
import re
from pathlib import Path

import yaml
from pytest import mark, raises

from checks import ROOT
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.series import Series
from fork.weave import weave_all
from fork.weave.file_kinds import edited

SERIES = Series.load(ROOT)
BASE = bases.installed()


def read(path: str) -> str | None:
    shipped = BASE.wheel_path(path)
    return (BASE.site / shipped).read_text() if shipped else None


def shipped_state(pr: str) -> dict[str, Path]:
    state = SERIES.state(pr).items()
    return {path: edited(file) for path, file in state if path in SERIES.anchors and read(path)}


@mark.parametrize("pr", [pr.name for pr in SERIES.commits])
def test_every_state_only_adds_and_stays_well_formed(pr: str) -> None:
    """An earlier state weaves what differs from the last one, which weaves the rest alike."""
    last = shipped_state(SERIES.commits[-1].name) if pr != SERIES.commits[-1].name else {}
    state = {path: file for path, file in shipped_state(pr).items() if last.get(path) != file}
    for path, text in weave_all(state, SERIES.anchors, read).items():
        base = read(path)
        assert base is not None
        rest = iter(text.splitlines())
        assert all(line in rest for line in base.splitlines()), f"{path} lost a line"
        if path.endswith(".py"):
            ast.parse(text)
        if path.endswith(".yaml"):
            entries, ours = yaml.safe_load(text), yaml.safe_load(state[path].read_text())
            assert len(entries) == len(yaml.safe_load(base)) + len(ours)
            assert all(entry in entries for entry in ours)
        assert not re.search(r"fragment only", text)


@mark.parametrize("pr", [pr.name for pr in SERIES.commits if shipped_state(pr.name)])
def test_a_base_that_has_the_stack_already_is_refused(pr: str) -> None:
    state = {path: file for path, file in shipped_state(pr).items() if path.endswith(".yaml")}
    texts = weave_all(state, SERIES.anchors, read)
    with raises(ForkError, match="already"):
        weave_all(state, SERIES.anchors, texts.get)
