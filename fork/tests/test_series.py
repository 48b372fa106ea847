"""Reading a stack: the PRs, their states, and what is wrong with a bad one."""

from pathlib import Path

from expecttest import assert_expected_inline
from pytest import raises

from fork.errors import ForkError
from fork.series import Series
from fork.tests.helpers import write
from fork.tests.tiny import stack


def listed(series: Series, pr: str) -> str:
    state = series.state(pr)
    return "".join(f"{path} <- {state[path].relative_to(series.root)}\n" for path in state)


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


def test_a_pr_introduces_changes_and_drops_paths(tmp_path: Path) -> None:
    fast = Series.load(stack(tmp_path)).find("fast")
    assert fast.introduces == ("torch/overrides.py",)
    assert fast.changes == ("aten/src/ATen/native/Twice.cpp", "build_variables.bzl")


def test_a_pr_has_a_name_and_a_place(tmp_path: Path) -> None:
    series = Series.load(stack(tmp_path))
    assert series.find("1") is series.find("plain") is series.commits[0]
    with raises(ForkError) as caught:
        series.find("3")
    assert_expected_inline(
        str(caught.value).replace(str(tmp_path), "ROOT"),
        """no PR '3' in ROOT/stack/series.yaml: it has 1 plain, 2 fast""",
    )


def test_a_path_that_nobody_wrote(tmp_path: Path) -> None:
    series = Series.load(stack(tmp_path))
    (tmp_path / "docs/source/ops.md").unlink()
    with raises(ForkError) as caught:
        series.state("fast")
    assert_expected_inline(
        str(caught.value).replace(str(tmp_path), "ROOT"),
        """docs/source/ops.md of plain is missing in ROOT: write it""",
    )


def test_a_path_introduced_twice(tmp_path: Path) -> None:
    text = (stack(tmp_path) / "stack/series.yaml").read_text()
    twice = text.replace("- torch/overrides.py", "- build_variables.bzl")
    (tmp_path / "stack/series.yaml").write_text(twice)
    with raises(ForkError) as caught:
        Series.load(tmp_path)
    assert_expected_inline(
        str(caught.value).replace(str(tmp_path), "ROOT"),
        """ROOT/stack/series.yaml has the path build_variables.bzl twice: name it once""",
    )


def test_a_series_that_is_none(tmp_path: Path) -> None:
    errors = []
    with raises(ForkError) as caught:
        Series.load(tmp_path)
    errors.append(str(caught.value))
    for text in (
        "prs:\n  - name: a\n",
        "prs: []\nanchors: {a: {file: beside x}}\n",
        "prs: []\nanchors: {a: {file: after}}\n",
    ):
        write(tmp_path, {"stack/series.yaml": text})
        with raises(ForkError) as caught:
            Series.load(tmp_path)
        errors.append(str(caught.value))
    assert_expected_inline(
        "\n".join(errors).replace(str(tmp_path), "ROOT"),
        """\
no stack in ROOT: ROOT/stack/series.yaml does not exist
ROOT/stack/series.yaml is not a series: PR a has no `title`: write it
ROOT/stack/series.yaml is not a series: 'beside x' is not a place: write after X, before X, replaces X or last
ROOT/stack/series.yaml is not a series: 'after' is not a place: write after X, before X, replaces X or last""",
    )


def test_a_description_has_no_comments(tmp_path: Path) -> None:
    """Tools of a stack find by them what they fill in; the commit message is for readers."""
    series = Series.load(stack(tmp_path))
    file = series.description_file(series.find("plain"))
    plain = file.read_text()
    file.write_text(f"{plain}\n<!--table-->\n| a |\n<!--/-->\n\nIt takes<!--time--> 3 ms<!--/-->.\n")
    assert series.description(series.find("plain")) == f"{plain}\n| a |\n\nIt takes 3 ms.\n"
