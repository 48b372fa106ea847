"""A PR of several commits through every command: each is a state of its own, and a branch gives them back."""

from __future__ import annotations

import re
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import fixture, mark, raises

from fork.checkout.message import Message
from fork.errors import ForkError
from fork.page.html import page
from fork.series import Series
from fork.tests.helpers import Tool, commit, committed, fork, git, write
from fork.tests.pages import whole
from fork.tests.tiny import COMMITS, SPLIT, UPSTREAM, on_a_wheel, split
from fork.verify import soundness


@fixture
def stage(tmp_path: Path, quiet_git: None) -> tuple[Path, Path]:
    """The stack's folder, and a checkout of its upstream with a release tag."""
    tree = committed(tmp_path / "tree", UPSTREAM)
    git(tree, "tag", "v2.13.0")
    return split(tmp_path / "ours"), tree


def messages(tree: Path, branch: str) -> str:
    return git(tree, "log", "--reverse", "--format=%B", f"main..{branch}")


def test_a_commit_has_a_name_and_a_place_and_a_state(tmp_path: Path) -> None:
    series = Series.load(split(tmp_path))
    assert [(one.place, one.name) for one in series.outline()] == [
        ("1", "plain"),
        ("2", "fast"),
        ("2.1", "fast.kernel"),
        ("2.2", "fast.name"),
    ]
    for word in ("2", "fast", "2.2", "fast.name", None):
        assert series.find(word) is series.commits[2]
    assert series.find("2.1") is series.find("fast.kernel") is series.commits[1]
    assert [series.build_name(commit) for commit in series.commits] == ["plain", "fast.kernel", "fast"]
    assert [series.mark(series.commits[1], path) for path in series.commits[1].paths] == ["~", "~"]
    assert [series.mark(series.commits[2], path) for path in series.commits[2].paths] == ["~", "~", "-"]
    kernel = series.state("2.1")
    assert kernel["build_variables.bzl"] == tmp_path / "stack/fast.kernel/build_variables.bzl"
    assert kernel["docs/source/ops.md"] == tmp_path / "docs/source/ops.md"
    assert "torch/overrides.py" not in kernel
    assert series.find("1") is series.find("plain") is series.commits[0]
    assert series.commits[2].introduces == ("torch/overrides.py",)
    assert series.commits[2].changes == ("aten/src/ATen/native/Twice.cpp", "build_variables.bzl")
    known = "1 plain, 2 fast, 2.1 fast.kernel, 2.2 fast.name"
    with raises(ForkError, match=f"^no PR '2.3' in {tmp_path}/stack/series.yaml: it has {known}$"):
        series.find("2.3")


def test_a_key_that_nobody_knows(tmp_path: Path) -> None:
    """Keys, of a PR and of its commits; test_cli.py has values that cannot be."""
    errors = []
    for old, new in (
        ("prs:\n", "strickt: false\nprs:\n"),
        ("    title: Add twice\n", "    titel: Add twice\n"),
        (COMMITS, COMMITS.replace("introduces: []", "introduces: []\n        changes: []")),
        (COMMITS, f"    introduces: []\n{COMMITS}"),
        (COMMITS, "    commits: []\n"),
        (COMMITS, COMMITS.replace("name: kernel", "name: the.kernel")),
        (COMMITS, COMMITS.replace("name: kernel", "name: name")),
        (COMMITS, COMMITS.replace("      - name: kernel\n        title", "      - title")),
        (COMMITS, "    commits:\n      - kernel\n"),
    ):
        text = SPLIT["stack/series.yaml"].replace(old, new, 1)
        assert text != SPLIT["stack/series.yaml"]
        with raises(ForkError) as caught:
            Series.load(write(tmp_path, {"stack/series.yaml": text}))
        told = str(caught.value).removeprefix(f"{tmp_path}/stack/series.yaml ")
        errors.append(told.removeprefix("is not a series: "))
    assert_expected_inline(
        "\n".join(errors),
        """\
it has the unknown key `strickt`: it can have prs, anchors, wheel_suffix, operator_tests, strict
PR plain has the unknown key `titel`: it can have name, title, introduces, commits
commit fast.kernel has the unknown key `changes`: it can have name, title, introduces
PR fast has the unknown key `introduces`: it can have name, title, commits
commits of PR fast is not a list of commits: give each a name, title and introduces
commit fast.the.kernel has a name of other signs than letters, digits, `-` and `_`
has the PR fast.name twice: name it once
commit fast has no `name`: write it
commit fast has 'kernel' where an entry belongs: write name, title, introduces""",
    )


def test_it_is_shown(tmp_path: Path, tool: Tool) -> None:
    root = split(tmp_path)
    assert_expected_inline(
        tool("--root", root, "show").out,
        """\
1  plain: Add twice
   + aten/src/ATen/native/Twice.cpp
   ~ aten/src/ATen/native/native_functions.yaml
   ~ build_variables.bzl
   ~ docs/source/ops.md
2  fast: Make twice fast
2.1  fast.kernel: Compute twice by one product
   ~ aten/src/ATen/native/Twice.cpp
   ~ build_variables.bzl
2.2  fast.name: Give twice its name
   ~ torch/overrides.py
   ~ aten/src/ATen/native/Twice.cpp
   - build_variables.bzl
+ a new file; ~ a file of PyTorch, or of a PR before, with changes; - a file without them again
""",
    )
    both = tool("--root", root, "show", "2").out
    assert both.startswith(f"PR 2 of 2: fast\n\n{SPLIT['stack/fast/PR.md']}\nCommit 2.1: fast.kernel\n")
    for word in ("2.1", "2.2"):
        assert tool("--root", root, "show", word).out in both


def test_its_page(tmp_path: Path) -> None:
    """The PR stands above its commits in the picture, and before them in the text."""
    series = Series.load(write(tmp_path, SPLIT | on_a_wheel(SPLIT["stack/series.yaml"])))
    everything = page(series, None)
    found = whole(everything)
    assert [id for id in found.ids if re.fullmatch(r"[\w.]+", id)] == ["plain", "fast", "fast.kernel", "fast.name"]
    picture = everything.partition('class="stack"')[2].partition("</nav>")[0]
    assert re.findall(r'<a href="#([\w.]+)"( class="part")?', picture) == [
        ("fast", ""),
        ("fast.name", ' class="part"'),
        ("fast.kernel", ' class="part"'),
        ("plain", ""),
    ]
    assert "2.1. Compute twice by one product</h2>" in everything
    section = everything.partition('<h2 id="fast.kernel">')[2].partition("</section>")[0]
    assert 'on <a href="#plain">plain</a> · below <a href="#fast.name">fast.name</a>' in section
    assert 'id="fast.kernel/aten/src/ATen/native/Twice.cpp"' in section
    for word, shown in (("fast", ["fast", "fast.kernel", "fast.name"]), ("2.1", ["fast.kernel"])):
        text = page(series, series.named(word))
        whole(text)
        assert re.findall(r'<h2 id="([\w.]+)">', text) == shown


def test_one_commit_each_and_the_first_says_what_the_pr_is(stage: tuple[Path, Path]) -> None:
    root, tree = stage
    assert fork("--root", root, "apply", tree) == 0
    plain, fast = (SPLIT[f"stack/{name}/PR.md"] for name in ("plain", "fast"))
    kernel, name = (f"{SPLIT[f'stack/fast.{one}/COMMIT.md']}\nPart-of: fast.{one}\n" for one in ("kernel", "name"))
    assert messages(tree, "stack") == f"{plain}\n{kernel}\n{fast}\n{name}\n"
    changed = git(tree, "log", "--reverse", "--format=* %s", "--name-status", "main..stack")
    assert_expected_inline(
        "\n".join(line for line in changed.splitlines() if line),
        """\
* Add twice
A	aten/src/ATen/native/Twice.cpp
M	aten/src/ATen/native/native_functions.yaml
M	build_variables.bzl
M	docs/source/ops.rst
* Compute twice by one product
M	aten/src/ATen/native/Twice.cpp
M	build_variables.bzl
* Give twice its name
M	aten/src/ATen/native/Twice.cpp
M	build_variables.bzl
M	torch/overrides.py""",
    )


def test_a_plan_and_a_prefix(stage: tuple[Path, Path], tool: Tool) -> None:
    """A commit of a PR has a number of two parts, and may be the last one that is wanted."""
    root, tree = stage
    said = tool("--root", root, "apply", tree, "--check", "--pr", "2.1").out
    first, head, rest = said.partition("2  fast: Make twice fast\n")
    assert first.startswith("1  plain: Add twice\n") and head
    assert_expected_inline(
        rest,
        """\
2.1  fast.kernel: Compute twice by one product
   +1 -1 aten/src/ATen/native/Twice.cpp: changed
   +1 build_variables.bzl: goes before "Two.cpp", in native
2 commits would go on branch stack; nothing was changed
""",
    )


def test_a_message_says_it_both_ways() -> None:
    for message in (
        Message("One\n"),
        Message("One\n\nIts text.\n", "fast", "kernel"),
        Message("One\n\nIts text.\n", "fast", "kernel", "Fast\n\nWhy.\n\n## How\n"),
    ):
        assert Message.of(str(message)) == message
    # `git commit --signoff` writes into the paragraph of the trailer.
    signed = "One\n\nText.\n\nPart-of: fast.kernel\nSigned-off-by: Ada\n"
    assert Message.of(signed) == Message("One\n\nText.\n\nSigned-off-by: Ada\n", "fast", "kernel")
    assert Message.of(f"{signed}\nFast\n").whole == "Fast\n"


def branch(tree: Path, *said: str) -> Path:
    """A branch of a commit for each message, and the folder that the stack of it would go into."""
    git(tree, "switch", "--quiet", "--create", "mine", "v2.13.0")
    for n, text in enumerate(said):
        commit(tree, {f"torch/new{n}.py": f"x = {n}\n"}, text)
    return tree.parent / "imported"


def test_a_branch_says_by_one_line_which_commits_belong_together(stage: tuple[Path, Path]) -> None:
    """A PR that no commit describes has the title of its first."""
    _, tree = stage
    said = ("A\n\nPart-of: all.a", "B\n\nText.\n\nPart-of: all.b", "C")
    folder = branch(tree, *said)
    assert fork("import", tree, folder) == 0
    series = Series.load(folder)
    names = [("all", "A"), ("all.a", "A"), ("all.b", "B"), ("c", "C")]
    assert [(one.name, one.title) for one in series.outline()] == names
    assert [commit.introduces for commit in series.commits] == [(f"torch/new{n}.py",) for n in range(3)]
    stored = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.glob("stack/*/*.md")}
    assert stored == {
        "stack/all.a/COMMIT.md": "A\n",
        "stack/all.b/COMMIT.md": "B\n\nText.\n",
        "stack/c/PR.md": "C\n",
    }
    git(tree, "switch", "--quiet", "--detach", "v2.13.0")
    assert fork("--root", folder, "apply", tree, "--branch", "again") == 0
    assert messages(tree, "again") == messages(tree, "mine")


@mark.parametrize(
    ("said", "reason"),
    [
        (("A\n\nPart-of: all.a", "B", "C\n\nPart-of: all.c"), "the commits of PR all do not follow one another"),
        (("A\n\nPart-of: all.a", "B\n\nPart-of: all.a"), ""),  # told apart by their numbers
        (("A\n\nPart-of: b.a", "B"), ""),
    ],
)
def test_a_branch_of_commits_that_are_not_neighbours(
    stage: tuple[Path, Path], tool: Tool, said: tuple[str, ...], reason: str
) -> None:
    folder = branch(stage[1], *said)
    assert reason in tool("import", stage[1], folder, status=bool(reason)).err
    if not reason:
        assert len({one.name for one in Series.load(folder).commits}) == len(said)


def test_its_descriptions_are_checked(tmp_path: Path) -> None:
    """Those of its commits, COMMIT.md; test_check.py has PR.md."""
    series = Series.load(split(tmp_path))
    assert [*soundness.files(series), *soundness.descriptions(series)] == []
    (tmp_path / "stack/fast.name/COMMIT.md").unlink()
    wrong = "Fast\n\nPart-of: slow.kernel\n"
    write(tmp_path, {"stack/fast.kernel/COMMIT.md": wrong, "stack/fast/build_variables.bzl": ""})
    assert_expected_inline(
        "\n".join([*soundness.files(series), *soundness.descriptions(series)]),
        """\
stack/fast/build_variables.bzl: no commit is called fast
stack/fast.kernel/COMMIT.md: it does not begin with 'Compute twice by one product' and an empty line
stack/fast.kernel/COMMIT.md:3: `fork apply` writes such a line itself: 'Part-of: slow.kernel'
stack/fast.name/COMMIT.md: missing""",
    )
