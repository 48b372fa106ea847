"""`fork apply` and `fork export` on a small checkout: commits, patches, and refusals."""

from dataclasses import dataclass
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import MonkeyPatch, fixture, mark

from fork.tests.helpers import Tool, commit, committed, git, write
from fork.tests.tiny import NATIVE, STACK, UPSTREAM, stack

SOURCE, BAZEL = "aten/src/ATen/native/Twice.cpp", "stack/plain/build_variables.bzl"


@dataclass(frozen=True)
class Stage:
    """The stack's folder, and a checkout of its upstream."""

    root: Path
    tree: Path
    tool: Tool

    def fork(self, *words: object, status: int = 0) -> str:
        """What a command of the stack prints, both streams, without the names of folders."""
        text = "".join(self.tool("--root", self.root, *words, status=status))
        return text.replace(str(self.root), "OURS").replace(str(self.tree), "TREE")

    def refused(self) -> str:
        """What `fork apply` says where it cannot, and leaves the checkout as it was."""
        before = self.state()
        told = self.fork("apply", self.tree, status=1)
        assert self.state() == before
        return told

    def state(self) -> list[str]:
        return [
            git(self.tree, *words) for words in (["rev-parse", "HEAD"], ["for-each-ref"], ["status", "--porcelain"])
        ]


@fixture
def stage(tmp_path: Path, quiet_git: None, tool: Tool) -> Stage:
    return Stage(stack(tmp_path / "ours"), committed(tmp_path / "tree", UPSTREAM), tool)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_one_commit_per_pr(stage: Stage) -> None:
    tree = stage.tree
    stage.fork("apply", tree, "--branch", "twice")
    assert git(tree, "branch", "--show-current") == "twice\n"
    assert git(tree, "status", "--porcelain") == ""
    said = git(tree, "log", "--reverse", "--format=%B%an", "main..twice")
    assert said == "".join(f"{STACK[f'stack/{name}/PR.md']}Ada\n" for name in ("plain", "fast"))
    shown = git(tree, "log", "--reverse", "-p", "-U1", "--format=* %s", "main..twice")
    lines = [line for line in shown.splitlines() if not line.startswith(("index ", "--- ", "+++ "))]
    assert_expected_inline(
        "\n".join(line.rstrip() for line in lines),
        """\
* Add twice

diff --git a/aten/src/ATen/native/Twice.cpp b/aten/src/ATen/native/Twice.cpp
new file mode 100644
@@ -0,0 +1 @@
+// a + a
diff --git a/aten/src/ATen/native/native_functions.yaml b/aten/src/ATen/native/native_functions.yaml
@@ -2,2 +2,4 @@

+- func: twice(Tensor a) -> Tensor
+
 - func: two(Tensor a) -> Tensor
diff --git a/build_variables.bzl b/build_variables.bzl
@@ -2,2 +2,3 @@ native = [
     "One.cpp",
+    "Twice.cpp",
     "Two.cpp",
diff --git a/docs/source/ops.rst b/docs/source/ops.rst
@@ -4,2 +4,3 @@ Operators
     one
+    twice
     two
* Make twice fast

diff --git a/aten/src/ATen/native/Twice.cpp b/aten/src/ATen/native/Twice.cpp
@@ -1 +1 @@
-// a + a
+// 2 * a, and fast
diff --git a/build_variables.bzl b/build_variables.bzl
@@ -2,3 +2,2 @@ native = [
     "One.cpp",
-    "Twice.cpp",
     "Two.cpp",
diff --git a/torch/overrides.py b/torch/overrides.py
@@ -2,2 +2,3 @@ names = [
     'one',
+    'twice',
     'two',""",
    )


def test_a_prefix(stage: Stage) -> None:
    assert "\n1 commit is on branch stack of " in stage.fork("apply", stage.tree, "--pr", "1")
    assert git(stage.tree, "log", "--format=%s", "main..stack") == "Add twice\n"


def test_the_rest_of_the_tree_is_as_it_was(stage: Stage) -> None:
    tree = stage.tree
    (tree / "run.sh").chmod(0o755)
    commit(tree, {}, "executable")
    stage.fork("apply", tree)
    numbers = git(tree, "diff", "--numstat", "main", "stack").splitlines()
    assert [line.split("\t")[1] for line in numbers] == ["0"] * len(numbers)
    assert git(tree, "ls-tree", "stack", "run.sh").startswith("100755")


def test_check_changes_nothing(stage: Stage) -> None:
    assert_expected_inline(
        stage.fork("apply", "--check", stage.tree),
        """\
1  plain: Add twice
   +1 aten/src/ATen/native/Twice.cpp: a new file
   +2 aten/src/ATen/native/native_functions.yaml: goes after one
   +1 build_variables.bzl: goes before "Two.cpp", in native
   +1 docs/source/ops.rst: goes after one_and_a_half or after one in Operators (older releases: docs/source/ops.rst)
2  fast: Make twice fast
   +1 torch/overrides.py: goes after one in names
   +1 -1 aten/src/ATen/native/Twice.cpp: changed
   +0 -1 build_variables.bzl: dropped: upstream's file is as it was
2 commits would go on branch stack; nothing was changed
""",
    )
    assert git(stage.tree, "branch", "--list") == "* main\n"
    assert git(stage.tree, "status", "--porcelain") == ""


def test_a_dirty_tree(stage: Stage) -> None:
    write(stage.tree, {"torch/overrides.py": "names = []\n"})
    told = "fork: TREE has changes that are not committed (M torch/overrides.py): commit or stash them first\n"
    assert stage.refused() == told


def test_changes_inside_a_submodule(stage: Stage, tmp_path: Path) -> None:
    tree = stage.tree
    library = committed(tmp_path / "library", {"lib.cpp": "// as it came\n"})
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "third_party/library")
    git(tree, "commit", "--quiet", "--message=library")
    write(tree, {"third_party/library/lib.cpp": "// as a build left it\n"})
    stage.fork("apply", tree)
    assert git(tree, "diff", "--name-only", "main", "stack", "--", "third_party") == ""
    assert (tree / "third_party/library/lib.cpp").read_text() == "// as a build left it\n"


def test_a_file_of_the_readers_in_the_way(stage: Stage) -> None:
    write(stage.tree, {SOURCE: "mine\n"})
    assert stage.refused() == f"fork: TREE/{SOURCE} is not under git and in the way: move it\n"
    assert (stage.tree / SOURCE).read_text() == "mine\n"


def test_a_tree_that_is_not_pytorch(stage: Stage) -> None:
    git(stage.tree, "rm", "--quiet", NATIVE)
    commit(stage.tree, {}, "less")
    assert stage.refused() == f"fork: TREE is not the top of a PyTorch checkout: it has no {NATIVE}\n"
    folders = (stage.root, stage.tree / "torch", stage.tree / "nowhere")
    assert_expected_inline(
        "".join(stage.fork("apply", folder, status=1) for folder in folders),
        """\
fork: OURS is not a git checkout with a commit: clone PyTorch there
fork: TREE/torch is not the top of a PyTorch checkout: it has no aten/src/ATen/native/native_functions.yaml
fork: TREE/nowhere is not a folder: give a git checkout of PyTorch
""",
    )
    told = "fork: OURS holds a stack, not PyTorch: give a checkout of PyTorch, or the stack by --root\n"
    assert stage.fork("apply", committed(stage.root, {}), status=1) == told


def test_a_stack_that_is_there_already(stage: Stage) -> None:
    stage.fork("apply", stage.tree)
    assert stage.refused() == f"fork: TREE has the stack already ({SOURCE}): check out its base\n"
    git(stage.tree, "switch", "--quiet", "main")
    assert stage.refused() == (
        "fork: git branch failed in TREE: a branch named 'stack' already exists: give another name by --branch\n"
    )
    git(stage.tree, "branch", "--quiet", "-D", "stack")
    commit(stage.tree, {SOURCE: "// PyTorch's own\n"}, "Another")
    assert f"fork: TREE has another {SOURCE} already" in stage.refused()


def test_all_anchors_that_do_not_fit(stage: Stage) -> None:
    other = {"torch/overrides.py": "names = ['two', 'one', 'one']\n", "docs/source/ops.rst": "x\n"}
    commit(stage.tree, other, "other")
    assert_expected_inline(
        stage.refused(),
        """\
fork: 2 places do not fit: see the anchors in stack/series.yaml
  docs/source/ops.rst: container 'Operators' found 0 times
  torch/overrides.py: anchor 'after one' in 'names' found 2 times
""",
    )


def test_no_author(stage: Stage, monkeypatch: MonkeyPatch) -> None:
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.delenv(f"GIT_{name}")
    git(stage.tree, "config", "user.useConfigOnly", "true")
    assert stage.refused() == "fork: git knows no author for TREE: set user.name and user.email\n"


def test_an_export_is_the_same_every_time_and_gives_the_tree_of_apply(stage: Stage, tmp_path: Path) -> None:
    tree = stage.tree
    stage.fork("export", tree, tmp_path / "one")
    first = files(tmp_path / "one")
    assert sorted(first) == ["0001-Add-twice.patch", "0002-Make-twice-fast.patch"]
    stage.fork("export", tree, tmp_path / "one")
    assert files(tmp_path / "one") == first

    assert git(tree, "branch", "--list") == "* main\n"
    stage.fork("apply", tree)
    git(tree, "switch", "--quiet", "--create", "by-mail", "main")
    git(tree, "am", "--quiet", *map(str, sorted((tmp_path / "one").glob("*.patch"))))
    for back in ("~1", ""):
        assert git(tree, "diff", f"stack{back}", f"by-mail{back}") == ""
        messages = [git(tree, "show", "-s", "--format=%B", branch + back) for branch in ("stack", "by-mail")]
        assert messages[0] == messages[1]


@mark.parametrize("name", ["stack", "stack/v2", "a b", "v..2"])
def test_a_branch_that_git_cannot_have_changes_nothing(stage: Stage, name: str) -> None:
    git(stage.tree, "branch", "stack")
    before = stage.state()
    assert name in stage.fork("apply", stage.tree, "--branch", name, status=1)
    assert stage.state() == before
    assert git(stage.tree, "branch", "--show-current") == "main\n"


def test_patches_of_the_readers_own_are_left_alone(stage: Stage, tmp_path: Path) -> None:
    tree = stage.tree
    own = write(tmp_path / "patches", {"0001-my-own.patch": "mine\n", "0007-other.patch": "mine too\n"})
    stage.fork("export", tree, own, status=1)
    assert sorted(files(own)) == ["0001-my-own.patch", "0007-other.patch"]
    stage.fork("export", tree, tmp_path / "new")
    (tmp_path / "new/0009-stale.patch").write_text(f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n")
    stage.fork("export", tree, tmp_path / "new")
    assert sorted(files(tmp_path / "new")) == ["0001-Add-twice.patch", "0002-Make-twice-fast.patch"]


def test_an_export_does_not_depend_on_gits_configuration(stage: Stage, tmp_path: Path) -> None:
    tree, folder = stage.tree, tmp_path / "export"
    stage.fork("export", tree, folder)
    first = files(folder)
    assert len(first) == 2
    settings = (
        "diff.noprefix=true diff.mnemonicPrefix=true diff.context=9 diff.suppressBlankEmpty=true color.ui=always "
        "format.signOff=true format.suffix=.txt format.to=a@b format.headers=X:y format.filenameMaxLength=20 "
        "format.from=true format.notes=true"
    )
    for name, value in (setting.split("=", 1) for setting in settings.split()):
        git(tree, "config", name, value)
        stage.fork("export", tree, folder)
        assert files(folder) == first, name
        git(tree, "config", "--unset", name)


@mark.parametrize("text", ["names = build()\n", "names = ['one'] + more\n"])
def test_a_list_of_the_base_that_is_none_any_more(stage: Stage, text: str) -> None:
    commit(stage.tree, {"torch/overrides.py": text}, "changed")
    assert "container 'names' is not a list" in stage.refused()


@mark.parametrize(
    ("path", "text", "told"),
    [
        (BAZEL, 'nativ = [\n    "Twice.cpp",\n]\n', "line 1 of the fragment is in no container"),
        (BAZEL, f'{STACK[BAZEL]}other = [\n    "Lost.cpp",\n]\n', "line 4 of the fragment is in no container"),
        ("docs/source/ops.md", "twice\n", "line 1 of the fragment is under no heading"),
        ("docs/source/ops.md", "# Operator\n\n    twice\n", "container 'Operator' found 0 times"),
        (NATIVE, "# nothing yet\n", "the fragment has no entry"),
    ],
)
def test_a_fragment_that_goes_nowhere_is_named(stage: Stage, path: str, text: str, told: str) -> None:
    """A list without an anchor, lines under a heading that is none, entries that are none."""
    write(stage.root, {path: text})
    assert told in stage.refused()


def test_what_is_left_to_write_is_told(stage: Stage) -> None:
    write(stage.root, {SOURCE: "// TODO: explain.\n// TODO: test.\n"})
    told = "note     2 lines are left to write, which `fork check --static` names"
    assert told in stage.tool("--root", stage.root, "apply", stage.tree).out


def test_gits_own_reason_is_told(stage: Stage, monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert "detected dubious ownership" in stage.fork("apply", stage.tree, status=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stage.fork("apply", stage.tree, status=1) == "fork: git is not on the PATH: install it\n"
