"""`fork apply` and `fork export` on a small checkout: commits, patches, and refusals."""

from collections.abc import Iterator
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import CaptureFixture, MonkeyPatch, fixture

from fork.cli import main
from fork.commands.export import COVER
from fork.tests.helpers import committed, git, write
from fork.tests.tiny import NATIVE, STACK, UPSTREAM, stack


@fixture
def stage(tmp_path: Path, quiet_git: None) -> Iterator[tuple[Path, Path]]:
    """The stack's folder, and a checkout of its upstream."""
    yield stack(tmp_path / "ours"), committed(tmp_path / "tree", UPSTREAM)


def fork(root: Path, *words: str | Path) -> int:
    return main(["--root", str(root), *map(str, words)])


def said(capsys: CaptureFixture[str], *folders: Path) -> str:
    """What a command printed, both streams, without the names of folders."""
    out, err = capsys.readouterr()
    text = out + err
    for folder in folders:
        text = text.replace(str(folder), folder.name.upper())
    return text


def test_one_commit_per_pr(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    assert fork(root, "apply", tree, "--branch", "twice") == 0
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


def test_a_prefix(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    assert fork(root, "apply", tree, "--pr", "1") == 0
    assert git(tree, "log", "--format=%s", "main..stack") == "Add twice\n"
    assert "\n1 commit is on branch stack of " in said(capsys)


def test_the_rest_of_the_tree_is_as_it_was(stage: tuple[Path, Path]) -> None:
    root, tree = stage
    (tree / "run.sh").chmod(0o755)
    git(tree, "commit", "--quiet", "--all", "--message=executable")
    fork(root, "apply", tree)
    numbers = git(tree, "diff", "--numstat", "main", "stack").splitlines()
    assert [line.split("\t")[1] for line in numbers] == ["0"] * len(numbers)
    assert git(tree, "ls-tree", "stack", "run.sh").startswith("100755")


def test_check_changes_nothing(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    assert fork(root, "apply", "--check", tree) == 0
    assert_expected_inline(
        said(capsys, tree),
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
    assert git(tree, "branch", "--list") == "* main\n"
    assert git(tree, "status", "--porcelain") == ""


def refused(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> str:
    root, tree = stage
    before = (git(tree, "rev-parse", "HEAD"), git(tree, "branch", "--list"))
    assert fork(root, "apply", tree) == 1
    assert (git(tree, "rev-parse", "HEAD"), git(tree, "branch", "--list")) == before
    return said(capsys, tree)


def test_a_dirty_tree(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    write(stage[1], {"torch/overrides.py": "names = []\n"})
    told = "fork: TREE has changes that are not committed (M torch/overrides.py): commit or stash them first\n"
    assert refused(stage, capsys) == told


def test_changes_inside_a_submodule(stage: tuple[Path, Path], tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    library = committed(tmp_path / "library", {"lib.cpp": "// as it came\n"})
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "third_party/library")
    git(tree, "commit", "--quiet", "--message=library")
    write(tree, {"third_party/library/lib.cpp": "// as a build left it\n"})
    assert fork(root, "apply", tree) == 0
    assert git(tree, "diff", "--name-only", "main", "stack", "--", "third_party") == ""
    assert (tree / "third_party/library/lib.cpp").read_text() == "// as a build left it\n"


def test_a_file_of_the_readers_in_the_way(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    write(stage[1], {"aten/src/ATen/native/Twice.cpp": "mine\n"})
    told = "fork: TREE/aten/src/ATen/native/Twice.cpp is not under git and in the way: move it\n"
    assert refused(stage, capsys) == told
    assert (stage[1] / "aten/src/ATen/native/Twice.cpp").read_text() == "mine\n"


def test_a_tree_that_is_not_pytorch(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    git(stage[1], "rm", "--quiet", NATIVE)
    git(stage[1], "commit", "--quiet", "--message=less")
    told = "fork: TREE is not the top of a PyTorch checkout: it has no aten/src/ATen/native/native_functions.yaml\n"
    assert refused(stage, capsys) == told
    for folder in (stage[0], stage[1] / "torch", stage[1] / "nowhere"):
        assert fork(stage[0], "apply", folder) == 1
    assert_expected_inline(
        said(capsys, *stage),
        """\
fork: OURS is not a git checkout with a commit: clone PyTorch there
fork: TREE/torch is not the top of a PyTorch checkout: it has no aten/src/ATen/native/native_functions.yaml
fork: TREE/nowhere is not a folder: give a git checkout of PyTorch
""",
    )
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=stack"]):
        git(stage[0], *words)
    assert fork(stage[0], "apply", stage[0]) == 1
    told = "fork: OURS holds a stack, not PyTorch: give a checkout of PyTorch, or the stack by --root\n"
    assert said(capsys, *stage) == told


def test_a_stack_that_is_there_already(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    fork(stage[0], "apply", stage[1])
    capsys.readouterr()
    told = "fork: TREE has the stack already (aten/src/ATen/native/Twice.cpp): check out its base\n"
    assert refused(stage, capsys) == told
    git(stage[1], "switch", "--quiet", "main")
    assert refused(stage, capsys) == "fork: TREE has a branch stack already: give another by --branch\n"


def test_all_anchors_that_do_not_fit(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    other = {"torch/overrides.py": "names = ['two', 'one', 'one']\n", "docs/source/ops.rst": "x\n"}
    write(stage[1], other)
    git(stage[1], "commit", "--quiet", "--all", "--message=other")
    assert_expected_inline(
        refused(stage, capsys),
        """\
fork: 2 places do not fit: see the anchors in stack/series.yaml
  docs/source/ops.rst: container 'Operators' found 0 times
  torch/overrides.py: anchor 'after one' in 'names' found 2 times
""",
    )


def test_no_author(stage: tuple[Path, Path], capsys: CaptureFixture[str], monkeypatch: MonkeyPatch) -> None:
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.delenv(f"GIT_{name}")
    git(stage[1], "config", "user.useConfigOnly", "true")
    assert refused(stage, capsys) == "fork: git knows no author for TREE: set user.name and user.email\n"


def test_an_export_is_the_same_every_time_and_gives_the_tree_of_apply(
    stage: tuple[Path, Path], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    root, tree = stage
    fork(root, "export", tree, tmp_path / "one")
    first = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert sorted(first) == [COVER, "0001-Add-twice.patch", "0002-Make-twice-fast.patch"]
    fork(root, "export", tree, tmp_path / "one")
    assert {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()} == first

    assert git(tree, "branch", "--list") == "* main\n"
    fork(root, "apply", tree)
    git(tree, "switch", "--quiet", "--create", "by-mail", "main")
    git(tree, "am", "--quiet", *map(str, sorted((tmp_path / "one").glob("*.patch"))))
    for commit in ("~1", ""):
        assert git(tree, "diff", f"stack{commit}", f"by-mail{commit}") == ""
        messages = [git(tree, "show", "-s", "--format=%B", b + commit) for b in ("stack", "by-mail")]
        assert messages[0] == messages[1]


def test_the_cover_letter(stage: tuple[Path, Path], tmp_path: Path) -> None:
    fork(stage[0], "export", stage[1], tmp_path / "out")
    letter = (tmp_path / "out" / COVER).read_text()
    base = git(stage[1], "rev-parse", "HEAD").strip()
    assert_expected_inline(
        letter.replace(base, "BASE"),
        """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Ada <ada@example.org>
Date: Fri, 2 Jan 2026 03:04:05 +0000
Subject: [PATCH 0/2] Make twice fast

The stack, oldest first, on BASE:

  1. Add twice
  2. Make twice fast

Each applies, builds and passes its tests on top of those before it:
`git am *.patch` in this folder takes them in order.

 aten/src/ATen/native/Twice.cpp             | 1 +
 aten/src/ATen/native/native_functions.yaml | 2 ++
 docs/source/ops.rst                        | 1 +
 torch/overrides.py                         | 1 +
 4 files changed, 5 insertions(+)
 create mode 100644 aten/src/ATen/native/Twice.cpp
""",
    )


def test_what_changed_since_an_earlier_export(
    stage: tuple[Path, Path], tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    root, tree = stage
    fork(root, "export", tree, tmp_path / "old")
    write(root, {"torch/overrides.py": "names = ['twice', 'thrice']\n"})
    capsys.readouterr()
    assert fork(root, "export", tree, "--compare-to", tmp_path / "old") == 0
    text = said(capsys)
    assert "1:" in text and " = 1:" in text and "+    'thrice'," in text
    assert fork(root, "export", tree, "--compare-to", tmp_path / "nowhere") == 1
    assert fork(root, "export", tree) == 1
    assert_expected_inline(
        said(capsys, tmp_path),
        """\
fork: TEST_WHAT_CHANGED_SINCE_AN_EAR0/nowhere holds no export: it has no patches
fork: fork export has nothing to do: give DIR, --compare-to OLD, or both
""",
    )


def test_a_branch_that_git_cannot_have_changes_nothing(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    git(tree, "branch", "stack")
    before = git(tree, "for-each-ref") + git(tree, "status", "--porcelain")
    for name in ("stack", "stack/v2", "a b", "v..2"):
        for more in ([], ["--check"]):
            assert fork(root, "apply", tree, "--branch", name, *more) == 1
            assert name in said(capsys)
    assert git(tree, "for-each-ref") + git(tree, "status", "--porcelain") == before
    assert git(tree, "branch", "--show-current") == "main\n"


def test_patches_of_the_readers_own_are_left_alone(stage: tuple[Path, Path], tmp_path: Path) -> None:
    root, tree = stage
    own = write(tmp_path / "patches", {"0001-my-own.patch": "mine\n", "0007-other.patch": "mine too\n"})
    assert fork(root, "export", tree, own) == 1
    assert sorted(file.name for file in own.iterdir()) == ["0001-my-own.patch", "0007-other.patch"]
    assert fork(root, "export", tree, tmp_path / "new") == 0
    (tmp_path / "new/0009-stale.patch").write_text("of a longer stack\n")
    assert fork(root, "export", tree, tmp_path / "new") == 0
    assert COVER in {file.name for file in (tmp_path / "new").iterdir()}
    assert not (tmp_path / "new/0009-stale.patch").exists()


def test_an_export_does_not_depend_on_gits_configuration(stage: tuple[Path, Path], tmp_path: Path) -> None:
    root, tree = stage
    exports = []
    settings = (
        "diff.noprefix=true diff.mnemonicPrefix=true diff.context=9 diff.suppressBlankEmpty=true color.ui=always "
        "format.signOff=true format.suffix=.txt format.to=a@b format.headers=X:y format.filenameMaxLength=20 "
        "format.from=true format.notes=true"
    )
    for setting in (None, *settings.split()):
        if setting:
            git(tree, "config", *setting.split("=", 1))
        folder = tmp_path / "export"
        assert fork(root, "export", tree, folder) == 0
        exports.append({file.name: file.read_bytes() for file in folder.iterdir()})
        if setting:
            git(tree, "config", "--unset", setting.split("=", 1)[0])
    assert len(exports[0]) == 3
    assert all(export == exports[0] for export in exports)


def test_a_fragment_that_goes_nowhere_is_named(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    """A list of the base that is not a list any more, lines in a list without an anchor, entries that are none."""
    root, tree = stage
    for path, text, message in (
        ("torch/overrides.py", "names = build()\n", "container 'names' is not a list"),
        ("torch/overrides.py", "names = ['one'] + more\n", "container 'names' is not a list"),
    ):
        write(tree, {path: text})
        git(tree, "commit", "-qam", "changed")
        assert fork(root, "apply", tree) == 1
        assert message in said(capsys)
    write(tree, {"torch/overrides.py": UPSTREAM["torch/overrides.py"]})
    git(tree, "commit", "-qam", "back")
    for path, text, message in (
        ("stack/plain/build_variables.bzl", 'nativ = [\n    "Twice.cpp",\n]\n', "has none of 'native'"),
        (
            "stack/plain/build_variables.bzl",
            'native = [\n    "Twice.cpp",\n]\nother = [\n    "Lost.cpp",\n]\n',
            "line 4 of the fragment is in no container",
        ),
        (NATIVE, "# nothing yet\n", "the fragment has no entry"),
    ):
        before = (root / path).read_text()
        write(root, {path: text})
        assert fork(root, "apply", tree) == 1
        assert message in said(capsys)
        write(root, {path: before})
    assert fork(root, "apply", tree) == 0


def test_what_a_release_lacks_is_told(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    source, file = "aten/src/ATen/native/Twice.cpp", "torch/overrides.py"
    series = (root / "stack/series.yaml").read_text()
    note = f"note     {source} does not compile here: {file} has no 'three', which a later release has\n"
    for name, told in (("'three'", True), ("'two'", False)):
        (root / "stack/series.yaml").write_text(f'{series}needs:\n  {source}:\n    {file}: "{name}"\n')
        assert fork(root, "apply", tree, "--check") == 0
        assert (note in capsys.readouterr().out) == told
    (root / "stack/series.yaml").write_text(series)


def test_what_is_left_to_write_is_told(stage: tuple[Path, Path], capsys: CaptureFixture[str]) -> None:
    root, tree = stage
    write(root, {"aten/src/ATen/native/Twice.cpp": "// TODO: explain.\n// TODO: test.\n"})
    assert fork(root, "apply", tree) == 0
    assert "note     2 lines are left to write, which `fork check --static` names" in capsys.readouterr().out


def test_gits_own_reason_is_told(
    stage: tuple[Path, Path], capsys: CaptureFixture[str], monkeypatch: MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert fork(stage[0], "apply", stage[1]) == 1
    assert "detected dubious ownership" in said(capsys)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fork(stage[0], "apply", stage[1]) == 1
    assert said(capsys) == "fork: git is not on the PATH: install it\n"
