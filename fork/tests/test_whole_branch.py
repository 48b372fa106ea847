"""A branch as a value: its files whole, merged onto the release's; what it removes and renames; what of it is told."""

from __future__ import annotations

from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, fixture, mark, raises

from fork.buildable import refuse_unbuildable
from fork.checkout import whole_branch
from fork.checkout.whole_branch import Branch
from fork.engine.build import Build
from fork.engine.wheel import base as bases
from fork.engine.wheel.woven import write_woven
from fork.errors import ForkError, NothingToBuild
from fork.tests.helpers import Tool, commit, committed, git, write
from fork.tests.test_tree import PATHS
from fork.tests.tiny import UPSTREAM
from fork.tree import Fate, Kind, kind_of
from fork.verify import prefix
from fork.weave.merge import merged

CROSS, OTHER = "aten/src/ATen/native/Cross.cpp", "aten/src/ATen/native/Other.cpp"
SOURCE = "#include <ATen/ATen.h>\n\nint one() {\n  return 1;\n}\n\nint two() {\n  return 2;\n}\n"
PYTHON, RENAMED, DATA = "torch/utils/mkldnn.py", "torch/utils/throughput_benchmark.py", "torch/utils/viz/_cycles.py"
PAGE = "torch/utils/model_dump/skeleton.html"


@fixture
def tree(tmp_path: Path, quiet_git: None) -> Path:
    """A checkout of the wheel's own Python, on a branch of its own."""
    site = bases.installed().site
    shipped = {path: (site / path).read_text() for path in (PYTHON, RENAMED, PAGE, "functorch/__init__.py")}
    path = committed(tmp_path / "tree", UPSTREAM | shipped | {CROSS: SOURCE})
    git(path, "tag", "v2.13.0")
    git(path, "switch", "--quiet", "--create", "mine")
    return path


def read(tree: Path, added_only: bool = False) -> Branch:
    return whole_branch.read(tree, None, tree.parent / "home", added_only)


def installed(tree: Path) -> tuple[Branch, Path]:
    """What a build puts into a folder of the wheel's files for the branch."""
    found, stage = read(tree), tree.parent / "stage"
    for path in (PYTHON, RENAMED):
        write(stage, {path: "released\n"})
    write_woven(bases.installed(), found, found.find(), stage, tree.parent / "work")
    return found, stage


def test_python_and_data_are_installed_where_the_wheel_has_them(tree: Path, capsys: CaptureFixture[str]) -> None:
    """Removed and renamed Python as well, what is no text, and a package beside torch."""
    git(tree, "rm", "--quiet", PYTHON)
    git(tree, "mv", RENAMED, "torch/utils/throughput.py")
    for path in (PAGE, "functorch/__init__.py"):
        write(tree, {path: (tree / path).read_text() + "# mine\n"})
    (tree / "torch/utils/model_dump/blob.js").write_bytes(b"a\0\xff")
    write(tree, {"torch/utils/model_dump/blob.xyz": "a"})
    commit(tree, {}, "Change much")
    found, stage = installed(tree)
    there = {str(file.relative_to(stage)) for file in stage.rglob("*.*")}
    assert there == {PAGE, "functorch/__init__.py", "torch/utils/throughput.py", "torch/utils/model_dump/blob.js"}
    assert (stage / "torch/utils/model_dump/blob.js").read_bytes() == b"a\0\xff"
    assert (stage / "functorch/__init__.py").read_text().endswith("# mine\n")
    assert "left out torch/utils/model_dump/blob.xyz: torch " in capsys.readouterr().out
    assert found.gone(found.find()) == {PYTHON, RENAMED}


def test_patches_and_pages_have_what_is_gone_and_what_is_no_text(tree: Path, tmp_path: Path, tool: Tool) -> None:
    git(tree, "rm", "--quiet", PYTHON)
    git(tree, "mv", RENAMED, "torch/utils/throughput.py")
    (tree / "torch/utils/blob.bin").write_bytes(b"a\0\xff")
    commit(tree, {}, "Change much")
    words = ("--root", tmp_path / "root", "--checkout", tree)
    assert f"   - {PYTHON}\n" in tool(*words, "show").out
    tool(*words, "show", "1", "--html", tmp_path / "page.html")
    assert "torch/utils/blob.bin" in (tmp_path / "page.html").read_text()
    tool(*words, "export", tree, tmp_path / "patches")
    git(tree, "switch", "--quiet", "--create", "again", "v2.13.0")
    git(tree, "am", "--quiet", *map(str, (tmp_path / "patches").glob("*.patch")))
    assert git(tree, "rev-parse", "again^{tree}") == git(tree, "rev-parse", "mine^{tree}")


def test_a_branch_that_only_removes_has_something_to_build(tree: Path) -> None:
    git(tree, "rm", "--quiet", PYTHON)
    refuse_unbuildable(found := read(tree), found.find())
    git(tree, "reset", "--quiet", "--hard")
    git(tree, "rm", "--quiet", "run.sh")
    with raises(NothingToBuild):
        refuse_unbuildable(found := read(tree), found.find())


def test_a_source_that_is_renamed_takes_the_old_ones_place(tree: Path) -> None:
    """Also where lines of it changed, and where git has not been told; one with other lines is a new source."""
    text = SOURCE.replace("return 2", "return 3")
    (tree / CROSS).unlink()
    write(tree, {"aten/src/ATen/native/Product.cpp": text, OTHER: "int other() {\n  return 4;\n}\n"})
    found = read(tree)
    assert found.moved(found.find()) == {CROSS: "aten/src/ATen/native/Product.cpp"}
    assert found.changed(found.find()) == {CROSS: text}
    assert not [*found.left(found.find())]


def test_a_source_that_is_removed_stays_and_is_told(tree: Path) -> None:
    git(tree, "rm", "--quiet", CROSS)
    found = read(tree)
    assert found.changed(found.find()) == found.moved(found.find()) == {}
    assert [*found.left(found.find())] == [
        f"{CROSS}: the branch removes it, and what the wheel's libraries have of it stays"
    ]


def test_lines_that_the_wheel_has_otherwise(tree: Path) -> None:
    """A change is brought to the wheel's text; where both changed a line, that is named."""
    text = (tree / PYTHON).read_text()
    commit(tree, {PYTHON: "# older\n" + text}, "Older")
    git(tree, "tag", "--force", "v2.13.0")
    commit(tree, {PYTHON: f"# older\n{text}\nMINE = 1\n"}, "Mine")
    _, stage = installed(tree)
    assert (stage / PYTHON).read_text() == f"{text}\nMINE = 1\n"
    commit(tree, {PYTHON: f"# mine\n{text}"}, "Mine")
    with raises(
        ForkError, match=f"^{PYTHON}:1 is changed by the branch, and the wheel's release has other lines there"
    ):
        installed(tree)


def test_a_merge_of_what_is_no_text() -> None:
    assert merged(b"a\0b", b"a\0", b"a\0", "x.js") == b"a\0b" == merged(b"a\0b", b"a\0", b"a\0b", "x.js")
    with raises(ForkError, match="^x.js is changed by the branch"):
        merged(b"a\0b", b"a\0", b"c\0", "x.js")


@mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.OPERATORS], ids=lambda kind: kind.name)
def test_what_becomes_of_every_kind_of_path(tree: Path, kind: Kind) -> None:
    """Each path of PyTorch's tree, changed in a branch: refused, told to be left out, or taken; none without a word."""
    paths = [path for path in PATHS[kind] if not (tree / path).exists()]
    write(tree, dict.fromkeys(paths, "a\n"))
    found = read(tree, added_only=True)
    taken, told = found.state(found.find()), [*found.left(found.find())]
    for path in paths:
        if kind.fate is Fate.REFUSED:
            assert path not in taken and f"{path} {kind.says}" in found.left_out
        elif path in taken:
            assert (f"{path}: {kind.says}" in told) == (kind.fate is Fate.LEFT_OUT or kind is Kind.PROGRAM)
    assert set(taken) <= {*paths, *UPSTREAM} and all(map(kind_of, taken))


def test_check_builds_a_commit_that_changes_a_source_alone(tree: Path, monkeypatch: MonkeyPatch) -> None:
    """A wheel has no file of it; a commit that changes no part of a wheel runs on the wheel."""
    commit(tree, {"run.sh": "#!/bin/sh\nexit\n"}, "Change nothing")
    commit(tree, {CROSS: SOURCE.replace("return 2", "return 3")}, "Change two")
    built: list[str] = []

    def make(build: Build) -> Path:
        built.append(build.commit.name)
        return build.base.site

    monkeypatch.setattr(prefix, "make", make)
    found = read(tree)
    for one in found.commits:
        prefix.build_and_test(found, one, tree.parent / "folder")
    assert built == ["change-two"]


def test_entries_of_a_list_that_are_gone(tree: Path, tool: Tool) -> None:
    path = "aten/src/ATen/native/native_functions.yaml"
    words = ("--root", tree.parent / "root", "--checkout", tree, "show")
    write(tree, {path: UPSTREAM[path].replace("- func: two(Tensor a) -> Tensor\n", "")})
    assert f"{path} no longer has two, which is compiled into PyTorch's libraries" in tool(*words, status=1).err
    write(tree, {path: f"{UPSTREAM[path]}\n- func: two(Tensor a) -> Tensor\n"})
    assert f"{path} has two twice: keep one" in tool(*words, status=1).err
