"""Reading a stack: the PRs, their states, and what is wrong with a bad one."""

from pathlib import Path

from expecttest import assert_expected_inline
from pytest import raises

from fork.errors import ForkError
from fork.series import Series
from fork.tests.tiny import stack
from fork.weave.file_kinds import edited


def listed(series: Series, pr: str) -> str:
    state = series.state(pr)
    return "".join(f"{path} <- {edited(state[path]).relative_to(series.root)}\n" for path in state)


def test_a_state_takes_each_path_from_the_nearest_pr_that_stores_it(tmp_path: Path) -> None:
    series = Series.load(stack(tmp_path))
    assert_expected_inline(
        listed(series, "plain"),
        """\
aten/src/ATen/native/Twice.cpp <- stack/plain/aten/src/ATen/native/Twice.cpp
aten/src/ATen/native/native_functions.yaml <- aten/src/ATen/native/native_functions.yaml
build_variables.bzl <- stack/plain/build_variables.bzl
docs/source/ops.md <- docs/source/ops.md
""",
    )
    assert_expected_inline(
        listed(series, "2"),
        """\
aten/src/ATen/native/Twice.cpp <- aten/src/ATen/native/Twice.cpp
aten/src/ATen/native/native_functions.yaml <- aten/src/ATen/native/native_functions.yaml
docs/source/ops.md <- docs/source/ops.md
torch/overrides.py <- torch/overrides.py
""",
    )


def test_a_path_that_nobody_wrote(tmp_path: Path) -> None:
    series = Series.load(stack(tmp_path))
    (tmp_path / "docs/source/ops.md").unlink()
    with raises(ForkError) as caught:
        series.state("fast")
    told = "docs/source/ops.md of plain is missing in ROOT: write it"
    assert str(caught.value).replace(str(tmp_path), "ROOT") == told


def test_a_folder_without_a_series(tmp_path: Path) -> None:
    with raises(ForkError, match=f"^no stack in {tmp_path}: {tmp_path}/stack/series.yaml does not exist$"):
        Series.load(tmp_path)


def test_a_description_has_no_comments(tmp_path: Path) -> None:
    """Tools of a stack find by them what they fill in; the commit message is for readers."""
    series = Series.load(stack(tmp_path))
    file = series.description_file(series.find("plain"))
    plain = file.read_text()
    file.write_text(f"{plain}\n<!--table-->\n| a |\n<!--/-->\n\nIt takes<!--time--> 3 ms<!--/-->.\n")
    assert series.description(series.find("plain")) == f"{plain}\n| a |\n\nIt takes 3 ms.\n"
