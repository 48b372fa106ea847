"""Every kind of path that PyTorch's tree has, and what a build does with it."""

from __future__ import annotations

import re
from pathlib import Path

from pytest import mark

from fork.engine.wheel import base as bases
from fork.tree import HEADERS, Fate, Kind, kind_of

LISTED = Path(__file__).with_name("paths.txt").read_text().split("\n[")[1:]
PATHS = {Kind[name]: rows.split() for name, _, rows in (block.partition("]") for block in LISTED)}


@mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_the_kind_of_every_path(kind: Kind) -> None:
    """As somebody read what PyTorch's build does with it; the paths are of a tree of 2.7, some of later ones."""
    assert {path: kind_of(path) for path in PATHS[kind]} == dict.fromkeys(PATHS[kind], kind)


def test_a_path_of_no_kind() -> None:
    """Beside sources, an ending that nobody knows; elsewhere, what somebody has in a checkout is no part of a wheel."""
    assert (
        kind_of("aten/src/ATen/native/Kernel.zig") is kind_of("torchgen/gen.lua") is kind_of("functorch/_C.rs") is None
    )
    assert kind_of("notes/today.txt") is kind_of("try.py") is kind_of("mine/kernel.cpp") is Kind.OUTSIDE


def test_the_wheel_ships_what_is_installed_and_nothing_that_is_left_out() -> None:
    """By the installed release, as far as its tree has the paths of the list; and all of its Python is installed."""
    base = bases.installed()
    shipped = {path for paths in PATHS.values() for path in paths if base.wheel_path(path)}
    python = {path for path in base.record if re.match(r"(?:torch|functorch|torchgen)/(?!packaged/).*\.py$", path)}
    left = {path for path in shipped | python if (kind := kind_of(path)) and kind.fate in (Fate.LEFT_OUT, Fate.REFUSED)}
    assert {path for path in left if not path.endswith((*HEADERS, ".yaml"))} == set()
    assert len(python) > 2000
