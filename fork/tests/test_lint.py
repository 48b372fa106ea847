"""`fork check --lint`: the linters that a checkout names run on the stack's lines, and tell nothing of others."""

from __future__ import annotations

import json
import stat
import time
from contextlib import suppress
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import fixture, mark

from fork.checkout.git import Checkout
from fork.tests.helpers import Said, Tool, commit, committed, git
from fork.tests.tiny import UPSTREAM, stack
from fork.verify.lint import concerns, needed, touched

# As PyTorch's adapters do: a line of JSON for each message about the paths that a file names. A linter goes on with it.
SAY = """\
import json, sys

code, paths = sys.argv[1], open(sys.argv[2][1:]).read().split()

def say(path, line, name, description, original=None, replacement=None):
    said = dict(path=path, line=line, char=None, code=code, severity="error", name=name, original=original)
    print(json.dumps(said | dict(replacement=replacement, description=description)))
"""
WORD = """\
for path in paths:
    for number, line in enumerate(open(path), 1):
        if "twice" in line or "two" in line:
            say(path, number, "a number", f"{line.strip()} is a number\\nand so on")
"""
QUOTES = """\
for path in paths:
    text = open(path).read()
    if "'" in text:
        say(path, None, "format", "Run it", text, text.replace("'", '"'))
"""
WHOLE = """\
for path in paths:
    say(path, None, "size", "too small")
"""

FILES, CPP = "@{{PATHSFILE}}", ["**/*.cpp"]


def linter(code: str, patterns: list[str], program: str, *words: str, **more: object) -> str:
    """A linter as PyTorch's configuration has it."""
    command = ["python3", f"tools/linter/{program}.py", *words]
    rows = {"code": code, "include_patterns": patterns, "command": command, **more}
    return "[[linter]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rows.items())


PIP = ["python3", "tools/linter/adapters/pip_init.py", "--dry-run={{DRYRUN}}", "no requirement"]
CONFIG = "\n".join(
    [
        linter("WORD", ["**"], "word", "WORD", FILES),
        linter("QUOTES", ["**/*.py"], "quotes", "QUOTES", FILES, is_formatter=True),
        linter("WHOLE", [*CPP, "torch/*.py"], "whole", "WHOLE", FILES),
        linter("NOWHERE", ["c10/**"], "broken"),
        linter("BROKEN", CPP, "broken", FILES),
        linter("UNKNOWN", CPP, "word", "UNKNOWN", FILES, init_command=PIP),
        linter("BUILT", CPP, "word", "--build_dir=./build", FILES),
        linter("STORED", CPP, "word", FILES, init_command=["bash", "store.sh", "{{DRYRUN}}"]),
    ]
)
ADAPTERS = {
    ".lintrunner.toml": CONFIG,
    "tools/linter/word.py": SAY + WORD,
    "tools/linter/quotes.py": SAY + QUOTES,
    "tools/linter/whole.py": SAY + WHOLE,
    "tools/linter/broken.py": "import sys; sys.exit('no such thing')\n",
}


@fixture
def tree(tmp_path: Path, quiet_git: None) -> Path:
    return committed(tmp_path / "tree", UPSTREAM | ADAPTERS)


def linted(tool: Tool, tree: Path, *words: str) -> Said:
    """What is told where a linter of the checkout finds something."""
    return tool("--root", stack(tree.parent / "ours"), "check", "--lint", tree, *words, status=1)


def test_only_the_stacks_lines_are_told(tool: Tool, tree: Path) -> None:
    before = (git(tree, "status", "--porcelain"), git(tree, "branch"), git(tree, "rev-parse", "HEAD"))
    said = linted(tool, tree)
    found = [line.strip() for line in said.err.splitlines() if ": WORD" in line or "QUOTES" in line or "WHOLE" in line]
    # Of native_functions.yaml and overrides.py, which have a "two" themselves, the inserted lines alone.
    assert_expected_inline(
        "\n".join(found) + "\n",
        """\
aten/src/ATen/native/Twice.cpp:1: WHOLE: size: too small
aten/src/ATen/native/native_functions.yaml:3: WORD: a number: - func: twice(Tensor a) -> Tensor is a number
docs/source/ops.rst:5: WORD: a number: twice is a number
torch/overrides.py:3: QUOTES: format: Run it
torch/overrides.py:3: WORD: a number: 'twice', is a number
""",
    )
    # What is wrong with the files comes before what takes minutes, and each step of that tells when it has ended.
    lines = said.out.splitlines()
    faults = [n for n, line in enumerate(lines) if line.startswith("  fault   torch/overrides.py: ")]
    steps = [n for n, line in enumerate(lines) if line.startswith(("copied ", "installed ", "linted "))]
    assert faults and steps and max(faults) < min(steps)
    assert sorted(lines[n].split()[1] for n in steps[2:]) == ["BROKEN", "QUOTES", "WHOLE", "WORD"]
    told = [line for line in lines if line.startswith(("linters", "left out"))]
    assert told[0] == "linters          WORD QUOTES WHOLE ran"
    assert [line.split()[2] for line in told[1:]] == ["UNKNOWN:", "BUILT:", "STORED:", "BROKEN:"]
    assert "Invalid requirement" in told[1] and told[2].endswith("it reads a build of PyTorch")
    assert told[3].endswith("pip does not have what `bash store.sh {{DRYRUN}}` sets up")
    assert told[4].endswith("no such thing")
    assert (git(tree, "status", "--porcelain"), git(tree, "branch"), git(tree, "rev-parse", "HEAD")) == before


@mark.long
def test_some_linters_or_none(tool: Tool, tree: Path) -> None:
    assert "linters          WHOLE ran" in linted(tool, tree, "--linters", "WHOLE").out
    said = linted(tool, tree, "--linters", "NOWHERE").err
    assert "--linters NOWHERE: no linter of the stack's files has this name: they are WORD" in said
    said = tool("--root", tree.parent / "ours", "check", "--lint", status=1).err
    assert said.endswith("name one, as in `--lint ~/pytorch`\n")
    (tree / ".lintrunner.toml").unlink()
    commit(tree, {}, "none")
    assert "has no .lintrunner.toml" in linted(tool, tree).err


@mark.long
def test_a_branch_of_a_checkout(tmp_path: Path, tree: Path, tool: Tool) -> None:
    """Committed and not, on the commit that it left."""
    git(tree, "tag", "v2.13.0")
    git(tree, "switch", "--quiet", "--create", "mine")
    commit(tree, {"torch/new.py": "x = 'two'\n"}, "Add x")
    (tree / "torch/newer.py").write_text('y = "twice"\n')
    words = ("--root", tmp_path / "root", "--checkout", tree, "check", "--lint", "--linters", "WORD,QUOTES")
    found = tool(*words, status=1).err
    assert "torch/new.py:1: QUOTES" in found and "torch/new.py:1: WORD" in found and "torch/newer.py:1: WORD" in found
    assert "torch/newer.py:1: QUOTES" not in found
    # Where those of every other checkout are.
    assert (tmp_path / "root/build/lint").is_dir()


# Writes what the linter below reads; the other generator is there and fails.
GENERATED = {
    "tools/pyi/gen_pyi.py": "import sys; open('torch/typing.pyi', 'w').write(sys.argv[1])\n",
    "tools/generate_torch_version.py": "import sys; sys.exit('no version')\n",
    "tools/linter/word.py": f'{SAY}say(paths[0], 1, "typing", open("torch/typing.pyi").read())\n',
}


@mark.long
def test_linters_read_what_pytorch_generates_before(tool: Tool, tree: Path) -> None:
    said = linted(tool, commit(tree, GENERATED, "generators"), "--linters", "WORD")
    assert "typing: --native-functions-path=aten/src/ATen/native/native_functions.yaml" in said.err
    assert "what tools/generate_torch_version.py generates and linters read: no version" in said.out
    assert git(tree, "status", "--porcelain") == ""


# As dmypy does, which tells its process by this file.
DAEMON = """\
import pathlib, subprocess

quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
pid = subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet).pid
pathlib.Path(".dmypy.json").write_text(json.dumps({"pid": pid}))
say(paths[0], 1, "daemon", str(pid))
"""


@mark.long
def test_no_daemon_stays(tool: Tool, tree: Path) -> None:
    commit(tree, {"tools/linter/word.py": SAY + DAEMON}, "daemon")
    pid = linted(tool, tree, "--linters", "WORD").err.split("daemon: ")[1].split()[0]
    status = Path(f"/proc/{pid}/status")

    def runs() -> bool:
        """Whether it does, and does not only wait for its parent to ask how it ended."""
        with suppress(OSError):
            return "State:\tZ" not in status.read_text()
        return False

    deadline = time.monotonic() + 10
    while runs() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs()


@mark.long
def test_a_program_of_pytorchs_store_is_taken_from_pip(tmp_path: Path) -> None:
    address = "https://example.org/linux64/19.1.4/clang-format"
    setting_up = "python3 tools/linter/adapters/s3_init.py --config-json=config.json --linter=clang-format "
    setting_up += "--output-dir=.lintbin --output-name=clang-format"
    command = ["python3", "adapter.py", "--binary=.lintbin/clang-format"]
    entry = {"code": "CLANGFORMAT", "command": command, "init_command": setting_up.split()}
    found = []
    for url in (address, "latest"):
        (tmp_path / "config.json").write_text(json.dumps({"clang-format": {"Linux": {"download_url": url}}}))
        found.append(needed(entry, tmp_path))
    assert (found[0].packages, found[0].program) == (("clang-format==19.1.4",), ".lintbin/clang-format")
    assert "pip does not have what" in found[1].lacks


def test_patterns_and_lines(tree: Path) -> None:
    taken = {"include_patterns": ["**/*.py", "aten/src/ATen/*.h"], "exclude_patterns": ["test/**"]}
    paths = ["setup.py", "a/b/c.py", "aten/src/ATen/native/a.h", "test/a.py", "b.h"]
    assert [path for path in paths if concerns(taken, path)] == paths[:2]
    head = Checkout.open(tree).head
    (tree / "run.sh").chmod(0o755 | stat.S_IXUSR)
    files = {"torch/overrides.py": "names = [\n    'one',\n]\n# 1\n# 2\n", "new name.txt": "++ b/x\n"}
    commit(tree, files, "more")
    tip = Checkout.open(tree).head
    lines = touched(Checkout(tree, head), tip)
    assert lines == {"new name.txt": None, "torch/overrides.py": {4, 5}}
