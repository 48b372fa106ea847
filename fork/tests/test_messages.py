"""What the tool says of files and releases that it cannot take: what is wrong, where, and what helps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pytest import CaptureFixture, MonkeyPatch, mark, raises

from fork import process
from fork.engine.compile.compiler import Compiler, Unit
from fork.engine.compile.diagnostics import REMEDY, NamesForErrors, errors
from fork.engine.link.link import error
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.tests import tiny
from fork.tests.helpers import Tool, flags_of

SOURCE = "aten/src/ATen/native/Twice.cpp"


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    root = tiny.stack(tmp_path)
    (root / SOURCE).chmod(0)
    # Without these rights root may read no more than others.
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    command = [*drop, sys.executable, "-m", "fork", "--root", str(root), "show"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"fork: {root / SOURCE} cannot be read: `chmod u+r` it, or ask its owner to\n"


def test_a_folder_in_place_of_a_file(tmp_path: Path, tool: Tool) -> None:
    root = tiny.stack(tmp_path)
    (root / "torch/overrides.py").unlink()
    (root / "torch/overrides.py").mkdir()
    wrong = f"torch/overrides.py of fast is missing in {root}: {root}/torch/overrides.py is a folder, so put a file"
    assert tool.refusal("--root", root, "show", "2").startswith(f"fork: {wrong}")


@mark.parametrize("path", [SOURCE, f"stack/plain/{SOURCE}", "stack/fast/PR.md"])
def test_a_file_that_is_not_text(path: str, tmp_path: Path, tool: Tool) -> None:
    root = tiny.stack(tmp_path)
    (root / path).write_bytes(b"one\ncaf\xe9\n")
    assert tool.refusal("--root", root, "show") == f"fork: {root / path}:2 is not UTF-8: convert the file\n"


def test_an_error_is_printed_once(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """A kernel is compiled once per instruction set, and each says the same. The first error is told at the end."""
    line = "Kernel.cpp:3:1: error: no such name"
    quoted = ["    3 |   nosuch(x); // error: none", "      |   ^~~~~~"]
    text = [line, *quoted, "Kernel.cpp:9:1: note: beside", *quoted, line, *quoted, "Other.cpp:1: error: another"]
    first, *below = str(error(tmp_path, errors("\n".join(text), NamesForErrors(), tmp_path))).splitlines()
    assert capsys.readouterr().out == "error    Other.cpp:1: error: another\n"
    assert first == f"compiling failed: {line} (all of it: {tmp_path / 'compile.log'})"
    assert below == [f"         {part}" for part in quoted]


def test_an_error_by_the_name_that_somebody_edits(tmp_path: Path) -> None:
    """Wherever the compiler reads the text, by whichever path it tells that; and a linker's, without the section."""
    names = NamesForErrors({SOURCE: "/tree/a.cpp", "headers/b.h": "/tree/b.h"}, {"sine": "native.yaml:3 `CPU: sine`"})
    for place in (f"units/{SOURCE}", f"{tmp_path}/units/{SOURCE}", f"units.AVX2/{SOURCE}"):
        (found,) = errors(f"{place}:3:1: error: no", names, tmp_path)
        assert found.error == "/tree/a.cpp:3:1: error: no"
    assert errors(f"{tmp_path}/headers/b.h:1:2: error: no", names, tmp_path)[0].error == "/tree/b.h:1:2: error: no"
    said = f"/ld: x.o: in function `f()':\nunits/{SOURCE}:(.text.f+0x1): undefined reference to `g()'"
    assert [one.error for one in errors(said, names, tmp_path)] == [
        "/tree/a.cpp uses `g()`, which neither the branch nor the installed torch defines: "
        "define it, or rebase the branch onto the release"
    ]
    said = "x.o:(.text.f+0x1): undefined reference to `at::native::sine(at::Tensor const&)'"
    said_so = "native.yaml:3 `CPU: sine` names at::native::sine, which no source defines"
    assert [one.error for one in errors(said, names, tmp_path)] == [said_so]
    said = "/ld: y.o:(.data.s+0x0): multiple definition of `Stub::AVX2'; x.o:(.data.s+0x0): first defined here"
    assert errors(said, names, tmp_path)[0].error.startswith("more than one object defines `Stub::AVX2`: a source of")


def test_what_a_fragment_misses(tmp_path: Path) -> None:
    """A function of the rest of its file; a whole file that misses one has its own reasons."""
    missed = "error: 'helper' was not declared in this scope"
    names = NamesForErrors({"a.cpp": "/tree/a.cpp"}, fragments=frozenset(["a.cpp"]))
    found = errors(f"units/a.cpp:3:1: {missed}\nunits/b.cpp:1:1: {missed}\n", names, tmp_path)
    assert [one.error for one in found] == [f"/tree/a.cpp:3:1: {missed}{REMEDY}", f"b.cpp:1:1: {missed}"]


@mark.parametrize(
    "missed",
    [
        "error: 'sigmoid' is not a member of 'at'",
        "error: ‘sigmoid’ is not a member of ‘at’; did you mean ‘sgn’?",
        "error: no member named 'sigmoid' in namespace 'at'",
    ],
)
def test_an_operator_without_its_header(missed: str, tmp_path: Path) -> None:
    """The first edit of a new operator calls others, and each has a header of its own."""
    (found,) = errors(f"/a.cpp:3:1: {missed}", NamesForErrors(), tmp_path)
    assert "or the file lacks its `#include <ATen/ops/sigmoid.h>`" in found.error


@mark.parametrize(
    ("status", "stderr", "why"),
    [
        (1, "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", "compilation term"),
        (-9, "", "it was ended by "),
    ],
)
def test_a_compiler_that_was_killed_blames_no_source(status: int, stderr: str, why: str, tmp_path: Path) -> None:
    compiler, unit = Compiler(flags_of(bases.installed(), tmp_path)), Unit(SOURCE, "")
    with raises(ForkError, match=f"^the compiler stopped at {SOURCE}, and not by an error in it: {why}"):
        compiler._failed(unit, subprocess.CompletedProcess([], status, "", stderr))
    missed = "In file included from a.cpp:1:\n/a.h:3:10: fatal error: mkl.h: No such file or directory"
    found = compiler._failed(unit, subprocess.CompletedProcess([], 1, "", f"{missed}\n{stderr}"))
    assert found.error == missed.splitlines()[1]


PIP = {
    "ERROR: Could not find a version that satisfies the requirement torch==9.9.9 (from versions: 2.7.0, 2.8.0)\n"
    "ERROR: No matching distribution found for torch==9.9.9": "pip finds no torch 9.9.9 for this Python and machine; "
    "the newest is 2.8.0",
    "ERROR: Could not find a version that satisfies the requirement torch==9.9.9 (from versions: none)": "pip finds no "
    "release of torch at all, so torch 9.9.9 could not be installed: is there a network?",
    "ERROR: Cannot install torch==9.9.9 because these package versions have conflicting dependencies.": "pip finds no "
    "torch 9.9.9 that it may install here: choose another release, or see PIP_CONSTRAINT",
    "ERROR: Something else": "torch 9.9.9 could not be installed: Something else",
}


@mark.parametrize("stderr", PIP)
def test_a_release_that_there_is_not(stderr: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def attempt(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, "install" in command, "", stderr)

    monkeypatch.setattr(process, "attempt", attempt)
    with raises(ForkError) as error:
        bases.obtain("9.9.9", "auto", tmp_path)
    assert str(error.value) == PIP[stderr]


def test_a_torch_whose_files_are_gone(tmp_path: Path) -> None:
    installed = bases.installed()
    shutil.copytree(installed.dist_info, tmp_path / installed.dist_info.name)
    version = installed.version.partition("+")[0]
    with raises(ForkError, match="its files are gone") as error:
        bases._describe(Path("python"), [str(tmp_path)])
    assert str(error.value).endswith(f"`python -m pip install --force-reinstall --no-deps torch=={version}`")
