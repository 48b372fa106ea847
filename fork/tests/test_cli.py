"""What the command line says when the system refuses: one sentence, and no traceback."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from pytest import MonkeyPatch, mark, raises

from fork import folders
from fork.cli import COMMANDS
from fork.engine.compile import toolchain
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.tests.helpers import ROOT, Tool, committed, write
from fork.tests.tiny import SERIES, STACK, UPSTREAM, stack


def test_a_build_folder_that_cannot_be(tmp_path: Path, tool: Tool, monkeypatch: MonkeyPatch) -> None:
    root = stack(tmp_path / "ours")
    monkeypatch.setattr("fork.verify.soundness.problems", lambda *_: [])
    monkeypatch.setattr("fork.verify.operator_map.report", lambda *_: [])
    (tmp_path / "file").write_text("")
    for folder, why in ((tmp_path / "file", "File exists"), (Path("/proc/x"), "No such file or directory")):
        said = f"fork: {folder} cannot be made ({why}): choose a folder of yours by --build\n"
        for command in (["run", "--build", folder, "--", "true"], ["check", "--build", folder]):
            assert tool("--root", root, *command, status=1).err == said


def test_a_folder_of_patches_that_is_a_file(tmp_path: Path, tool: Tool, quiet_git: None) -> None:
    root, tree = stack(tmp_path / "ours"), committed(tmp_path / "tree", UPSTREAM)
    (tmp_path / "file").write_text("mine")
    said = tool.refusal("--root", root, "export", tree, tmp_path / "file")
    assert said == f"fork: {tmp_path}/file is a file: choose a folder for the patches\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_of_wheels_that_is_a_file(tmp_path: Path, tool: Tool) -> None:
    """Found before a build that takes minutes."""
    (tmp_path / "file").write_text("mine")
    said = tool("--root", stack(tmp_path / "ours"), "wheel", "--out", tmp_path / "file", status=1)
    assert said == ("", f"fork: {tmp_path}/file is not a folder: give another by --out\n")


@mark.parametrize(
    "words,sentence",
    [
        (["run", "--checkout", "tree", "--", "true"], "write --checkout before the command"),
        (["build", "--root=here"], "write --root=here before the command"),
        (["--pr", "explicit", "build"], "--pr is an option of build: write it behind the command"),
        (["--cuda=off", "run", "--", "true"], "--cuda is an option of run: write it behind the command"),
        (["build", "--nothing"], "unrecognized arguments: --nothing: see `fork COMMAND --help`"),
        (["build", "--instal", "--cudda=on"], "unrecognized arguments: --cudda=on: did you mean --cuda?"),
        (["build", "--cuda", "of"], "argument --cuda: invalid choice: 'of': did you mean off?"),
        (["nothing"], "see `fork --help`"),
        (["biuld"], "argument COMMAND: invalid choice: 'biuld': did you mean build?"),
        (["show", "--root"], "write --root before the command"),
        (["apply"], "see `fork apply --help`"),
        ([], "see `fork --help`"),
    ],
)
def test_a_command_line_that_cannot_be_read(words: list[str], sentence: str, tool: Tool) -> None:
    assert tool.refusal(*words).endswith(f"{sentence}\n")


@mark.parametrize("own", [True, False])
def test_a_folder_of_pytorchs_sources(own: bool, tmp_path: Path, tool: Tool, monkeypatch: MonkeyPatch) -> None:
    """Neither a stack nor named: its branch was probably meant, not the tool's own stack."""
    tree = write(tmp_path / "tree", {**UPSTREAM, "torch/csrc/Module.cpp": ""})
    monkeypatch.setattr(folders, "PROJECT", stack(tmp_path / "ours") if own else None)
    monkeypatch.chdir(tree)
    begin = f"note     this is the stack of {tmp_path}/ours" if own else f"fork: {tree} has no {folders.SERIES}"
    way = "to take the branch of this PyTorch, write `--checkout .` before the command"
    assert tool("build", "--pr", "none", status=1).err.startswith(f"{begin}: {way}\n")


def test_what_prints_a_version_imports_no_command() -> None:
    """Nor the engine: a command line is read at once, and a command imports what it needs itself."""
    code = "import sys; from fork.cli import parser_of; parser_of(sys.argv[1:]); print(*sys.modules)"
    for words, expected in ((["--version"], set()), (["nothing"], set()), (["show"], {"fork.commands.show"})):
        done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
        loaded = {name for name in done.stdout.split() if name.startswith("fork.commands.")}
        assert {name for name in loaded if name.rpartition(".")[2] in COMMANDS} == expected
        assert expected or "fork.engine" not in done.stdout.split()


def test_a_reader_that_has_seen_enough() -> None:
    words = [sys.executable, "-m", "fork", "show", "4"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def bare_python(site: Path) -> list[str]:
    """A Python that has torch, what comes with torch, and PyYAML, without which there is no stack; nothing else."""
    site.mkdir()
    for name in ("torch", "torchgen", "yaml", "jinja2", "markupsafe", "filelock"):
        module = importlib.util.find_spec(name)
        assert module is not None and module.origin is not None
        package = Path(module.origin).parent
        (site / package.name).symlink_to(package)
    info = bases.installed().dist_info
    (site / info.name).symlink_to(info)
    search = f"import sys; sys.path += [{str(ROOT)!r}, {str(site)!r}]; from fork.cli import main; sys.exit(main())"
    return [sys.executable, "-I", "-S", "-c", search]


def test_a_library_that_is_missing_stops_only_the_command_that_needs_it(tmp_path: Path) -> None:
    python, root = bare_python(tmp_path / "site"), stack(tmp_path / "ours")
    target = str(tmp_path / "page.html")
    shown = subprocess.run([*python, "--root", str(root), "show"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "") and "1  plain: Add twice" in shown.stdout
    page = subprocess.run([*python, "--root", str(root), "show", "--html", target], capture_output=True, text=True)
    assert (page.returncode, page.stdout) == (1, "") and not Path(target).exists()
    assert page.stderr == (
        f"fork: `fork --root {root} show --html {target}` needs markdown_it: "
        f"run `{sys.executable} -m pip install -r {ROOT}/requirements.txt`\n"
    )


@mark.parametrize(
    "old,new,sentence",
    [
        ("name: plain", "name: 2024", "2024 is not a text"),
        ("      - torch/overrides.py", "      torch/overrides.py", "introduces of PR fast is not a list of paths"),
        ("      - torch/overrides.py", "      - /etc/hostname", "/etc/hostname of PR fast leads out of the stack"),
        ("      - torch/overrides.py", "      - a/../../b", "a/../../b of PR fast leads out of the stack"),
        (SERIES[: SERIES.index("anchors:")], "prs: []\n", "prs is empty"),
        (SERIES, "", "names no PRs: write `prs:`"),
        (SERIES, "- plain\n", "names no PRs: write `prs:`"),
        ("prs:", "pr:", "names no PRs: write `prs:`"),
        ("    title: Make twice fast\n", "", "PR fast has no `title`: write it"),
        ("      - torch/overrides.py", "      - torch/overides.py", "did you mean torch/overrides.py?"),
        ("- torch/overrides.py", "- build_variables.bzl", "has the path build_variables.bzl twice: name it once"),
        ("file: after one", "file: beside x", "'beside x' is not a place: write after X, before X, replaces X or last"),
        ("file: after one", "file: after", "is not a series: 'after' is not a place: write after X, before X, repl"),
    ],
)
def test_a_series_that_says_what_cannot_be(tmp_path: Path, tool: Tool, old: str, new: str, sentence: str) -> None:
    root = write(tmp_path, STACK | {"stack/series.yaml": SERIES.replace(old, new)})
    assert sentence in tool.refusal("--root", root, "show")


def test_a_list_of_architectures_that_names_none(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    with raises(ForkError, match="Hopper names no architecture"):
        toolchain._architectures(bases.installed())
