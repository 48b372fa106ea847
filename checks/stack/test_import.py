"""This stack on a checkout and back: `fork import` undoes `fork apply`, on files as the installed torch has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest import TempPathFactory, fixture, mark

from checks.stack.upstream import BASE, SERIES, UPSTREAM, applied
from fork.cli import main
from fork.series import Series
from fork.tests.helpers import git
from fork.weave import base_path, weave
from fork.weave.file_kinds import Fragment, Place

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [mark.xdist_group("import_stack"), mark.long]


@fixture(scope="module")
def tree(tmp_path_factory: TempPathFactory) -> Iterator[Path]:
    """The checkout, with this stack on one branch and what was imported from there on another."""
    with applied(tmp_path_factory.mktemp("pytorch")) as path:
        assert main(["import", str(path), str(path.parent / "imported")]) == 0
        git(path, "switch", "--quiet", "--detach", "main")
        assert main(["--root", str(path.parent / "imported"), "apply", str(path), "--branch", "again"]) == 0
        yield path


@fixture(scope="module")
def imported(tree: Path) -> Series:
    return Series.load(tree.parent / "imported")


def test_most_files_are_pytorchs_own() -> None:
    assert sum(BASE.read(path) is not None for path in SERIES.anchors) >= 15


def test_the_commits_are_the_same(tree: Path) -> None:
    for what in ("%T", "%B"):
        ours, again = (git(tree, "log", f"--format={what}", f"main..{branch}") for branch in ("stack", "again"))
        assert ours == again


def test_the_prs_are_the_same(imported: Series) -> None:
    for one, other in zip(SERIES.outline(), imported.outline(), strict=True):
        assert (one.name, one.title, SERIES.description(one)) == (other.name, other.title, imported.description(other))
    anchors = SERIES.anchors
    for one, other in zip(SERIES.commits, imported.commits, strict=True):
        there = {base_path(path, anchors[path], UPSTREAM.get) if path in anchors else path for path in one.introduces}
        assert there == set(other.introduces)


def test_files_of_its_own_are_the_same_bytes(imported: Series) -> None:
    for commit in SERIES.commits:
        ours, theirs = SERIES.state(commit), imported.state(commit.name)
        for path in ours.keys() - SERIES.anchors.keys():
            assert ours[path].read_bytes() == theirs[path].read_bytes(), path


@mark.parametrize("path", sorted(SERIES.anchors))
def test_anchors_mean_the_same(imported: Series, path: str) -> None:
    """Our own fragment at the anchor that import found gives our own file; so does its fragment at our anchor."""
    here = base_path(path, SERIES.anchors[path], UPSTREAM.get)
    base, ours, theirs = UPSTREAM[here], SERIES.anchors[path], imported.anchors[here]
    assert isinstance(theirs, Fragment)
    assert not any(place.replaces for places in theirs.places.values() for place in places)
    if here != path:
        return  # of an older release, where the fragment's markup is another
    for commit in SERIES.commits:
        one, other = SERIES.state(commit).get(path), imported.state(commit.name).get(here)
        assert (one is None) == (other is None)
        if one is None or other is None:
            continue
        wanted = weave(path, base, one.read_text(), ours)
        assert weave(path, base, other.read_text(), theirs) == wanted
        assert weave(path, base, other.read_text(), ours) == wanted
        for n in range(2):  # each of the places that it found, alone
            alone = {key: (places[min(n, len(places) - 1)],) for key, places in theirs.places.items()}
            assert weave(path, base, one.read_text(), Fragment(alone)) == wanted


def test_anchors_name_neighbours_not_lines(imported: Series) -> None:
    """Every one of our files is taken apart by its structure, but for the one that goes into a function."""
    anchors = {path: kind.places for path, kind in imported.anchors.items() if isinstance(kind, Fragment)}
    by_lines = {path for path, places in anchors.items() if any(key.startswith("piece ") for key in places)}
    assert by_lines == {"torch/csrc/jit/passes/autocast.cpp"}
    beside = anchors["torch/overrides.py"]["get_testing_overrides.ret"]
    assert beside[0] == Place("after", "torch.atleast_3d")
