"""`fork import` and `--checkout`: a branch of a checkout as a stack, and what a stack cannot have."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import MonkeyPatch, fixture, mark, raises

from fork import process
from fork.buildable import refuse_unbuildable
from fork.checkout import whole_branch
from fork.commands import compat
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.series import Series
from fork.tests.helpers import ROOT, Tool, commit, committed, fork, git, python, write
from fork.tests.tiny import NATIVE, UPSTREAM, split, stack
from fork.upstream import DERIVATIVES
from fork.weave import cpp_inverse
from fork.weave import file_kinds as kinds
from fork.weave.file_kinds import Fragment

OPS = "aten/src/ATen/native/Ops.cpp"
TWICE = "Tensor twice(const Tensor& a) {\n  return a + a;\n}\n"
MORE = {
    OPS: """\
#include <ATen/core/Tensor.h>

namespace at::native {

Tensor one(const Tensor& a) {
  return a;
}

} // namespace at::native
""",
    "torch/_ops.py": "def ops():\n    first()\n    second()\n    return 2\n",
}


@fixture
def tree(tmp_path: Path, quiet_git: None) -> Path:
    """A checkout with a release tag, on a branch of its own."""
    path = committed(tmp_path / "tree", UPSTREAM | MORE)
    git(path, "tag", "v2.13.0")
    git(path, "switch", "--quiet", "--create", "mine")
    return path


def released(tree: Path, files: dict[str, str]) -> None:
    """Puts files into the release, and the branch behind it."""
    git(tree, "switch", "--quiet", "--detach", "v2.13.0")
    commit(tree, files, "Have it")
    git(tree, "tag", "--force", "v2.13.0")
    git(tree, "switch", "--quiet", "--force-create", "mine")


def edited(tree: Path, path: str, before: str, after: str) -> dict[str, str]:
    text = (tree / path).read_text()
    assert before in text
    return {path: text.replace(before, after, 1)}


def with_function(text: str, function: str) -> str:
    """A source with a function more at its end."""
    end = "} // namespace at::native\n"
    assert end in text
    return text.replace(end, f"{function}\n{end}")


def of(tree: Path) -> tuple[object, ...]:
    """The words that take the checkout's branch as the stack."""
    return "--root", tree.parent / "root", "--checkout", tree


def read(tree: Path) -> whole_branch.Branch:
    """The branch as a command takes it."""
    return whole_branch.read(tree, None, tree.parent / "root/build/checkouts/tree")


def home(tree: Path) -> Path:
    """Where a command has put the builds of the branch."""
    (folder,) = (tree.parent / "root/build/checkouts").glob("tree-*/")
    return folder


def imported(tree: Path, *words: str) -> Path:
    folder = tree.parent / f"imported-{len(list(tree.parent.iterdir()))}"
    assert fork("import", tree, folder, *words) == 0
    return folder


def trees(tree: Path, branch: str, since: str = "v2.13.0") -> list[str]:
    return git(tree, "log", "--reverse", "--format=%T", f"{since}..{branch}").split()


def same_again(tree: Path, folder: Path) -> None:
    """The imported stack gives the branch's commits: the same trees and the same messages."""
    git(tree, "switch", "--quiet", "--detach", "v2.13.0")
    assert fork("--root", folder, "apply", tree, "--branch", "again") == 0
    assert trees(tree, "again") == trees(tree, "mine")
    bodies = [git(tree, "log", "--format=%B", f"v2.13.0..{branch}") for branch in ("again", "mine")]
    assert bodies[0] == bodies[1]
    git(tree, "switch", "--quiet", "mine")


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder by a digest of its bytes, git's own among them."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@mark.parametrize("made", [stack, split])
def test_it_undoes_apply(tmp_path: Path, tree: Path, made: Callable[[Path], Path]) -> None:
    root = made(tmp_path / "ours")
    git(tree, "switch", "--quiet", "--detach", "v2.13.0")
    git(tree, "branch", "--quiet", "--delete", "--force", "mine")
    assert fork("--root", root, "apply", tree, "--branch", "mine") == 0
    folder = imported(tree)
    same_again(tree, folder)
    ours, theirs = Series.load(root), Series.load(folder)
    for one, other in zip(ours.outline(), theirs.outline(), strict=True):
        assert (one.name, one.title, ours.description(one)) == (other.name, other.title, theirs.description(other))
    for step in ours.commits:
        old, new = ({path: file.read_text() for path, file in one.state(step.name).items()} for one in (ours, theirs))
        # What differs: the checkout is of an older release, and a list is opened as the checkout's.
        assert (old.pop("docs/source/ops.md"), new.pop("docs/source/ops.rst")) == (
            "# Operators\n\n    twice\n",
            "### Operators\n\n    twice\n",
        )
        if "torch/overrides.py" in old:
            old["torch/overrides.py"] = "names = [\n    'twice',\n]\n"
        assert new == old


def test_the_stack_of_a_branch(tree: Path, tool: Tool) -> None:
    """Two entries of one list at two places, a function, odd spacing, and a file that is not committed yet."""
    native = UPSTREAM[NATIVE] + "\n- func: zwei(Tensor a) -> Tensor\n"
    native = native.replace("- func: two", "- func: twice(Tensor a) -> Tensor\n\n- func: two")
    commit(tree, {NATIVE: native, OPS: with_function(MORE[OPS], TWICE)}, "Add twice\n\nAnd zwei.")
    commit(tree, edited(tree, "torch/_ops.py", "    second()\n", "\n    third()\n\n\n    second()\n"), "Call it")
    write(tree, {"torch/overrides.py": "names = [\n    'one',\n    'twice',\n    'two',\n]\n", "notes.txt": "new\n"})
    before = content(tree)
    folder = tree.parent / "stack"
    said = tool("import", tree, folder).err
    assert content(tree) == before
    assert "2 commits of mine and what is not committed yet, since v2.13.0" in said
    assert_expected_inline(
        (folder / "stack/series.yaml").read_text(),
        """\
# The stack: its PRs in order, the paths each introduces, and where the fragments go in PyTorch's files. A path with an
# anchor is a fragment: what the stack adds to PyTorch's file, and beside what. Without one it is a new file.
# `fork check` runs `operator_tests`, PyTorch's OpInfo suites, which the tool brings, for each operator.
wheel_suffix: mine
operator_tests: test/test_ops.py
strict: false
prs:
- name: add-twice
  title: Add twice
  introduces:
  - aten/src/ATen/native/Ops.cpp
  - aten/src/ATen/native/native_functions.yaml
- name: call-it
  title: Call it
  introduces:
  - torch/_ops.py
- name: uncommitted
  title: Changes that are not committed yet
  introduces:
  - notes.txt
  - torch/overrides.py
anchors:
  aten/src/ATen/native/Ops.cpp:
    namespace at::native: last
  aten/src/ATen/native/native_functions.yaml:
    file:
      twice:
      - after one
      - before two
      zwei: after two
  torch/_ops.py:
    piece 1:
    - after first()
    - before second()
  torch/overrides.py:
    names:
    - after one
    - before two
""",
    )
    assert (folder / "stack/add-twice/PR.md").read_text() == "Add twice\n\nAnd zwei.\n"
    headers = (f"#include <ATen/ops/{name}.h> // fragment only\n" for name in ("twice", "twice_native", "twice_ops"))
    without_one = MORE[OPS].replace("Tensor one(const Tensor& a) {\n  return a;\n}\n\n", "")
    assert (folder / OPS).read_text() == "".join(headers) + with_function(without_one, TWICE)
    commit(tree, {}, "Changes that are not committed yet")
    same_again(tree, folder)


def test_a_changed_line_of_python_is_a_piece_that_replaces_it(tree: Path) -> None:
    commit(tree, edited(tree, "torch/_ops.py", "    return 2\n", "    return 3\n"), "Count")
    commit(tree, edited(tree, "torch/_ops.py", "    first()\n", ""), "Drop the first")
    folder = imported(tree)
    same_again(tree, folder)
    fragment = Series.load(folder).anchors["torch/_ops.py"]
    assert isinstance(fragment, Fragment) and fragment.places["piece 1"][0].replaces


def test_what_a_stack_cannot_have_is_named_and_the_rest_is_taken(tree: Path, tool: Tool) -> None:
    one, out = "- func: one(Tensor a) -> Tensor\n", tree.parent / "out"
    files = edited(tree, NATIVE, one, f"{one}  variants: method\n")
    files |= {OPS: with_function(MORE[OPS].replace("  return a;\n", "  return a.clone();\n"), TWICE)}
    commit(tree, files | {"data.bin": "a\0b", "crlf.txt": "a\r\n", "good.txt": "good\n"}, "Change much")
    (tree / "latin.txt").write_bytes(b"caf\xe9\n")
    os.symlink("good.txt", tree / "link.txt")
    (tree / "tool.sh").write_text("#!/bin/sh\n")
    (tree / "tool.sh").chmod(0o755)
    (tree / "run.sh").chmod(0o755)
    git(tree, "rm", "--quiet", "build_variables.bzl")
    library = committed(tree.parent / "library", {"lib.cpp": "// lib\n"})
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "third_party/library")
    git(tree, "rm", "--quiet", "--cached", ".gitmodules")
    (tree / ".gitmodules").unlink()
    commit(tree, {}, "More")
    said = tool("import", tree, out, status=1).err.replace(str(tree), "TREE").replace("aten/src/ATen/native", "N")
    assert not out.exists()
    assert_expected_inline(
        said.partition("\n")[2],
        """\
fork: 10 changes of TREE cannot be part of a stack; --added-only leaves them out and takes the rest:
  N/Ops.cpp:6 changes `return a;`, compiled into PyTorch's libraries: add a function or a file instead
  N/native_functions.yaml:2 adds `variants: method` to an entry, compiled into PyTorch's libraries: add an entry instead
  build_variables.bzl is removed or renamed, and a stack only adds: put it back
  crlf.txt has CRLF at the end of its lines: `dos2unix` it
  data.bin is binary, and a stack holds text: leave it out of the branch
  latin.txt line 1 is not UTF-8: convert the file
  link.txt is a symbolic link: put the file itself there
  run.sh changes the mode of the file from 100644 to 100755: take that back
  third_party/library is a submodule, and a wheel has none: take its change back, or copy the files that you need
  tool.sh is executable, and the files of a stack are not: `chmod -x` it
""",
    )
    assert "left out data.bin is binary" in tool("import", tree, out, "--added-only").err
    assert sorted(Series.load(out).state("2")) == [OPS, "good.txt"]
    assert "Tensor twice" in (out / OPS).read_text()


def test_where_a_branch_begins(tree: Path, tool: Tool) -> None:
    """The nearest of the release tags and main branches, or what --since says."""
    git(tree, "switch", "--quiet", "main")
    commit(tree, {"README.md": "later\n"}, "Later")
    git(tree, "switch", "--quiet", "--create", "next")
    commit(tree, {"a.txt": "a\n"}, "A")
    commit(tree, {"b.txt": "b\n"}, "B")
    assert "since main" in tool("import", tree, tree.parent / "out").err
    assert [pr.title for pr in Series.load(tree.parent / "out").prs] == ["A", "B"]
    assert [pr.title for pr in Series.load(imported(tree, "--since", "v2.13.0")).prs] == ["Later", "A", "B"]
    assert [pr.title for pr in Series.load(imported(tree, "--since", "HEAD~")).prs] == ["B"]


def test_nothing_to_take(tree: Path, tool: Tool) -> None:
    out, full = tree.parent / "out", write(tree.parent / "full", {"mine.txt": "mine\n"})
    for words, reason in (
        ((tree, out), "has nothing after v2.13.0: neither a commit nor a changed file"),
        ((tree, out, "--since", "v9"), "has no commit v9: give --since a tag, a branch or a hash"),
        ((full, out), "is not a git checkout"),
        ((tree, full), "is not empty: give a new folder"),
        ((tree, tree / "new"), "would become part of its branch: choose a folder outside"),
    ):
        assert reason in tool("import", *words, status=1).err
    assert not out.exists() and not (tree / "new").exists() and content(full).keys() == {"mine.txt"}


@mark.parametrize(
    ("prepare", "reason"),
    [
        ("git merge --no-edit --no-ff side", "is a merge, and a stack is a line"),
        ("git merge --no-edit clash", "is in the middle of a merge: finish or abort it first"),
        ("git rebase clash", "is in the middle of a rebase: finish or abort it first"),
        ("sh -c 'git merge clash; rm .git/MERGE_HEAD'", "has conflicts that are not resolved (a.txt): resolve them"),
        ("git cherry-pick clash", "is in the middle of a cherry-pick: finish or abort it first"),
    ],
)
def test_an_unfinished_or_branching_history(tree: Path, tool: Tool, prepare: str, reason: str) -> None:
    commit(tree, {"a.txt": "a\n"}, "A")
    for branch, path in (("side", "side.txt"), ("clash", "a.txt")):
        git(tree, "switch", "--quiet", "--create", branch, "main")
        commit(tree, {path: f"{branch}\n"}, branch)
    git(tree, "switch", "--quiet", "mine")
    subprocess.run(shlex.split(prepare), cwd=tree, capture_output=True)
    before = content(tree)
    assert reason in tool("import", tree, tree.parent / "out", status=1).err
    assert content(tree) == before


def test_a_detached_head_is_a_stack_too(tree: Path) -> None:
    commit(tree, {"a.txt": "a\n"}, "A")
    git(tree, "switch", "--quiet", "--detach", "mine")
    series = Series.load(imported(tree))
    assert [pr.name for pr in series.prs] == ["a"] and series.wheel_suffix == "fork"


def test_commands_take_the_branch_as_it_is_now(tree: Path, tool: Tool) -> None:
    """Nothing of it is written anywhere."""
    commit(tree, {"torch/new.py": "x = 1\n"}, "Add x")
    commit(tree, {"torch/newer.py": "y = 1\n"}, "Add y")
    assert "add-x" in tool(*of(tree), "show").out
    assert not (tree.parent / "root").exists()
    write(tree, {"torch/newer.py": "y = 2\n"})
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--amend", "--no-edit")
    assert "y = 2" in tool(*of(tree), "show", "2").out
    series = read(tree)  # its name is the branch's, so that the next build goes on with this one
    assert [series.build_name(pr) for pr in series.commits] == ["add-x", "branch"]
    git(tree, "reset", "--quiet", "--hard", "HEAD~")
    assert "add-y" not in tool(*of(tree), "show").out


def test_check_of_a_branch_that_changes_a_formula_and_a_kernel(tree: Path, tool: Tool) -> None:
    """A build takes what the release has otherwise from there, so that is no fault of the stack."""
    released(tree, {DERIVATIVES: "- name: one(Tensor a) -> Tensor\n  a: grad\n"})
    changed = edited(tree, DERIVATIVES, "a: grad", "a: grad * 2") | edited(tree, OPS, "return a", "return a + 1")
    commit(tree, changed, "Change both")
    assert "files            sound\n" in tool(*of(tree), "check", "--static").out


def test_a_partial_clone_that_cannot_load_a_text(tree: Path, tmp_path: Path, tool: Tool) -> None:
    """The file is named, and the command that brings it."""
    git(tree, "config", "uploadpack.allowFilter", "true")
    commit(tree, edited(tree, "torch/_ops.py", "    second()\n", "    third()\n    second()\n"), "Call it")
    partial, away = tmp_path / "partial", tmp_path / "away"
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", tree.as_uri(), str(partial))
    tree.rename(away)
    command = f"git -C {partial} fetch --refetch --no-filter"
    lacks = f"{partial} is a partial clone and lacks a text of torch/_ops.py: `{command}` brings all of them"
    for promise in (True, False):  # Without one, git says only that the text is missing.
        if not promise:
            git(partial, "config", "--unset", "remote.origin.promisor")
        assert tool("import", partial, tmp_path / "out", status=1).err == f"fork: {lacks}\n"
    away.rename(tree)
    git(partial, *command.split()[3:])
    assert fork("import", partial, tmp_path / "out") == 0


def test_the_patches_of_a_branch_are_its_own_commits(tree: Path, tmp_path: Path, tool: Tool) -> None:
    """On the commit that it left, not on HEAD, which has them already; `git am` gives the same trees."""
    commit(tree, {"torch/new.py": "x = 1\n"}, "Add x")
    commit(tree, edited(tree, "torch/_ops.py", "    second()\n", "    third()\n    second()\n"), "Call it")
    said = tool(*of(tree), "export", tree, tree / "patches", status=1).err  # They would be new files of the branch.
    assert "would become part of its branch: choose a folder outside" in said
    assert fork(*of(tree), "export", tree, tmp_path / "patches") == 0
    patches = sorted(map(str, (tmp_path / "patches").glob("*.patch")))
    assert len(patches) == 2
    git(tree, "switch", "--quiet", "--create", "again", "v2.13.0")
    git(tree, "am", "--quiet", *patches)
    assert trees(tree, "again") == trees(tree, "mine")


def test_an_error_names_the_file_of_the_checkout(tree: Path) -> None:
    """A new or changed file is a copy of the checkout's, and an edit of the copy would be lost."""
    source = "aten/src/ATen/native/New.cpp"
    commit(tree, {source: "// new\n", OPS: with_function(MORE[OPS], TWICE)}, "Add two files")
    state = read(tree).state("1")
    assert kinds.edited(state[source]) == tree / source and kinds.edited(state[OPS]) == tree / OPS


def test_compat_runs_tests_that_exist(tree: Path, monkeypatch: MonkeyPatch, tool: Tool) -> None:
    """Of a stack that brings none, they are this project's; without an operator there is nothing to run."""
    commit(tree, {NATIVE: f"{UPSTREAM[NATIVE]}\n- func: zwei(Tensor a) -> Tensor\n"}, "Add zwei")
    ran: list[Path] = []

    def attempt(command: list[str], cwd: Path, env: object) -> subprocess.CompletedProcess[str]:
        ran.append(cwd / next(word for word in command if word.endswith(".py")))
        return subprocess.CompletedProcess(command, 1, "2 passed, 1 failed in 3 s", "")

    installed = bases.installed()
    monkeypatch.setattr(bases, "obtain", lambda *_: installed)
    monkeypatch.setattr(compat, "make", lambda made: made.base.site)
    monkeypatch.setattr(process, "attempt", attempt)
    logs = write(tree.parent / "compat", {"forks/another/current": "", "bases/2.13.0/complete": ""})
    said = tool("--root", imported(tree), "compat", "--keep", "--build", logs, "2.13.0", status=1).out
    assert [file.is_file() for file in ran] == [True]
    assert "2 passed, 1 failed" in said and f"log      {logs}/2.13.0.log" in said
    tool("--root", imported(tree), "compat", "--build", logs, "2.13.0", status=1)
    left = [(logs / folder).is_dir() for folder in ("forks/another", "bases/2.13.0")]
    assert left == [True, False], "nothing but what was made for a release is removed"
    commit(tree, {NATIVE: UPSTREAM[NATIVE], "a.txt": "a\n"}, "Take it back")
    said = tool("--root", imported(tree), "compat", "2.13.0", status=1).err
    assert "take-it-back has no public operator" in said


COMMENTED = """\
#include <ATen/core/Tensor.h>
#include <ATen/Ops.h>

// What follows is old.
namespace at::native {

namespace {
// Twice.
Tensor inner(const Tensor& a) {
  return a + a; // a sum
}
struct Pair {
  Tensor a;
};
} // namespace

static Tensor outer(const Tensor& a) {
  return inner(a);
}

// Twice.
Tensor one(const Tensor& a) {
  const char* text = "// no comment";
  return outer(a);
}

} // namespace at::native
"""


@fixture
def commented(tree: Path) -> Path:
    """The same checkout, whose source has comments, and helpers that no other file sees."""
    released(tree, {OPS: COMMENTED})
    return tree


@mark.parametrize(
    ("before", "after"),
    [
        ("// What follows is old.\n", "/* What follows\n * is new. */\n"),
        ("return a + a; // a sum", "// Added.\n  return a + a;"),
        ("// Twice.\nTensor one", "Tensor one"),
    ],
)
def test_a_comment_of_a_source_may_change(commented: Path, before: str, after: str) -> None:
    """It has no code, so a wheel need not have it; it goes with the branch wherever that goes."""
    commit(commented, edited(commented, OPS, before, after), "Explain")
    folder = imported(commented)
    assert not cpp_inverse.has_code((folder / OPS).read_text())
    same_again(commented, folder)


def test_a_comment_beside_a_new_function(commented: Path) -> None:
    text = COMMENTED.replace("// What follows is old.\n", "// What follows is new.\n")
    commit(commented, {OPS: with_function(text, TWICE.replace("a + a;", "a.neg(); // -a"))}, "Add twice")
    folder = imported(commented)
    assert cpp_inverse.has_code((folder / OPS).read_text())
    same_again(commented, folder)


@mark.parametrize(
    ("before", "after", "reason"),
    [
        ('"// no comment"', '"// a comment"', ':22 changes `const char* text = "// no comment";`, compiled into'),
        ("return a + a; // a sum", "return a - a; // a sum", ":9 changes `return a + a; // a sum`, compiled into"),
    ],
)
def test_what_only_looks_like_a_comment(commented: Path, tool: Tool, before: str, after: str, reason: str) -> None:
    """And a state that could be taken is not named beside the one that cannot."""
    commit(commented, edited(commented, OPS, "// What follows is old.\n", ""), "Explain")
    commit(commented, edited(commented, OPS, before, after), "Change")
    said = tool("import", commented, commented.parent / "out", status=1).err.partition("\n")[2]
    assert said.count(OPS) == 1 and reason in said


@mark.parametrize(
    ("calls", "helper"),
    [("return outer(a);", "outer"), ("return native::inner(a);", "inner"), ("return Pair{a}.a;", "Pair")],
)
def test_a_function_that_calls_what_only_its_file_sees(commented: Path, tool: Tool, calls: str, helper: str) -> None:
    commit(commented, {OPS: with_function(COMMENTED, TWICE.replace("return a + a;", calls))}, "Add twice")
    said = tool("import", commented, commented.parent / "out", status=1).err
    assert f"{OPS}:27 calls `{helper}`, which only this file sees, and would be compiled without it: put your" in said
    imported(commented, "--added-only")


@mark.parametrize("calls", ["return at::outer(a);", "return a.outer();", "return mine(a);"])
def test_a_function_that_calls_others(commented: Path, calls: str) -> None:
    """Of the same name elsewhere, or of the branch itself."""
    text = with_function(COMMENTED, "static Tensor mine(const Tensor& a) {\n  return a;\n}\n")
    commit(commented, {OPS: with_function(text, TWICE.replace("return a + a;", calls))}, "Add twice")
    same_again(commented, imported(commented))


def test_since_a_branch_that_only_the_remote_has(tree: Path, tmp_path: Path, tool: Tool) -> None:
    git(tree, "branch", "base", "v2.13.0")
    commit(tree, {"a.txt": "a\n"}, "A")
    git(tmp_path, "clone", "--quiet", "--no-tags", str(tree), "clone")
    said = tool("import", tmp_path / "clone", tmp_path / "out", "--since", "base").err
    assert "1 commit of mine, since origin/base" in said


def test_what_cannot_be_built_is_refused_before_a_download(tree: Path, tool: Tool, monkeypatch: MonkeyPatch) -> None:
    commit(tree, {"notes.txt": "One.\n"}, "Add it")
    monkeypatch.setattr(bases, "obtain", lambda *_: 1 / 0)
    said = tool(*of(tree), "build", "--torch", "2.12.0", status=1).err
    assert "changes nothing that a wheel of torch holds: there is nothing to build" in said


def test_an_entry_of_a_list_needs_those_that_use_the_list(tree: Path) -> None:
    """A folder's stack cannot tell them, a checkout can; autocast's lists alone have somebody who registers them."""
    lists = {"aten/src/ATen/autocast_mode.h": "#define ALL(_) \\\n  _(one)  \\\n  _(two)\n"}
    lists["torch/csrc/jit/tokens.h"] = lists["aten/src/ATen/autocast_mode.h"]
    released(tree, lists)
    for path in lists:
        commit(tree, edited(tree, path, "  _(two)", "  _(mid)  \\\n  _(two)"), "Add mid")
        series = Series.load(imported(tree))
        if "autocast" in path:
            refuse_unbuildable(series, series.find())
        else:
            with raises(ForkError, match="tokens.h adds entries to ALL, and whoever uses that list has to be compiled"):
                refuse_unbuildable(series, series.find())
    series = read(tree)
    refuse_unbuildable(series, series.find())


@mark.parametrize(
    ("path", "reason"),
    [
        ("functorch/csrc/dim/dim.cpp", "is compiled into what is not made again: take its change back"),
        ("torch/lib/libshm/core.cpp", "is compiled into what is not made again: take its change back"),
        ("aten/src/ATen/native/Kernel.zig", "is of no kind that the tool knows"),
        ("aten/src/ATen/native/ts_native_functions.yaml", "is generated from: take its change back"),
    ],
)
@mark.parametrize("base", ["int a;\n", None])
def test_what_a_build_does_not_make_is_refused(
    tree: Path, tool: Tool, path: str, reason: str, base: str | None
) -> None:
    """Whether it is new, or has more lines or other ones."""
    if base:
        released(tree, {path: base})
    for text in ("int a;\nint b;\n", "long a;\n"):
        commit(tree, {path: text}, "Change it")
        assert f"{path} {reason}" in tool(*of(tree), "show", status=1).err


def test_what_no_wheel_has_is_told(tree: Path, tool: Tool) -> None:
    told = ["aten/src/ATen/test/add_test.cpp", "c10/test/util/one.cpp", "caffe2/CMakeLists.txt"]
    told += ["torchgen/static_runtime/mine.py", "aten/src/ATen/native/mps/operations/Add.mm"]
    commit(tree, dict.fromkeys((*told, "torch/new.py"), "x = 1\n"), "Add them")
    said = tool(*of(tree), "build", "--plan").out
    assert all(f"left out {path}: " in said for path in told)


def test_a_merge_is_built_as_it_is(tree: Path, tool: Tool) -> None:
    """Only its final text counts; a stack to keep has to be a line."""
    commit(tree, {"torch/one.py": "x = 1\n"}, "One")
    git(tree, "switch", "--quiet", "--create", "side", "v2.13.0")
    commit(tree, {"torch/two.py": "x = 2\n"}, "Two")
    git(tree, "switch", "--quiet", "mine")
    git(tree, "merge", "--quiet", "--no-edit", "side")
    said = tool(*of(tree), "show").out
    assert "+ torch/one.py" in said and "+ torch/two.py" in said


@mark.parametrize("changed", [{}, {"notes.txt": "1\n"}])
def test_where_nothing_is_changed_the_base_runs(tree: Path, changed: dict[str, str]) -> None:
    """As `fork run` of every other state of the branch: the same Python, and none of the checkout's own folders."""
    if changed:
        commit(tree, changed, "Note")
    code = "import os, torch; print(torch.__file__); print(os.environ['TORCH_FORK_COMMAND'])"
    words = [*map(str, of(tree)), "run", "--", "python", "-c", code]
    command, environment = [sys.executable, "-m", "fork", *words], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    file, told = done.stdout.splitlines()
    assert Path(file) == bases.installed().site / "torch/__init__.py", done.stderr
    assert told == shlex.join(["python", "-m", "fork", *words[:6]])
    assert f"; so this is torch {bases.installed().version} itself\n" in done.stderr
    assert fork(*words[:4], "build") == 1


def test_a_release_is_downloaded_once(tree: Path, monkeypatch: MonkeyPatch) -> None:
    """Whatever folder a build goes to, and whatever checkout it is of."""
    commit(tree, {"torch/new.py": "x = 1\n"}, "Add x")
    asked = []

    def obtain(version: str, cuda: str, folder: Path) -> bases.Base:
        asked.append(folder)
        raise ForkError("enough")

    monkeypatch.setattr(bases, "obtain", obtain)
    for more in ((), ("--build", tree.parent / "elsewhere")):
        assert fork(*of(tree), "build", "--torch", "2.12.0", *more) == 1
    assert len(asked) == 2 and len(set(asked)) == 1


def test_python_changes_alone(tree: Path, monkeypatch: MonkeyPatch) -> None:
    """No compiler is needed: the edit stands in a copy of the installed torch, whose other files stay as they are."""
    base = bases.installed()
    old = (base.site / "torch/_VF.py").read_text()
    released(tree, {"torch/_VF.py": old, OPS: MORE[OPS]})
    commit(tree, {"torch/_VF.py": old + "\n\nMINE = 1\n", "torch/mine.py": "x = 2\n"}, "Edit Python")
    commit(tree, edited(tree, OPS, "namespace at", "// Explained.\nnamespace at"), "Explain")
    monkeypatch.setattr("fork.engine.compile.toolchain.check_tools", lambda *_: 1 / 0)
    assert fork(*of(tree), "build") == 0
    (site,) = home(tree).glob("build/forks/*/current")
    code = "import torch, torch.mine; print(torch.mine.x, torch.add(torch.ones(1), 1).item())"
    assert python(site, "-c", code) == "2 2.0\n"
    assert "MINE = 1" in (site / "torch/_VF.py").read_text() and (base.site / "torch/_VF.py").read_text() == old
