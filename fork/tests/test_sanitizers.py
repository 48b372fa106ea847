"""A fork with sanitizers: which there are, that it stands beside the plain one, and what its processes need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest import CaptureFixture, mark, raises

from fork.cli import main
from fork.engine.compile import sanitizers, toolchain
from fork.engine.fork import Fork
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.series import Series
from fork.tests.tiny import stack


@mark.parametrize(
    "words,sentence",
    [
        (["--sanitize", "foo"], "--sanitize foo: no sanitizer 'foo': the sanitizers are address, undefined, thread"),
        (["--sanitize", ""], "--sanitize : no sanitizer '': the sanitizers are address, undefined, thread"),
        (["--sanitize", "thread,address"], "--sanitize thread,address: address and thread exclude each other"),
        (["--sanitize", "thread", "--cuda", "on"], "--sanitize is for the CPU: leave out --cuda on"),
        (["--sanitize", "thread", "--install"], "--install is for a fork without sanitizers"),
    ],
)
def test_what_cannot_be(tmp_path: Path, capsys: CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["--root", str(stack(tmp_path)), "build", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fork: {sentence}") and error.count("\n") == 1


def test_it_stands_beside_the_plain_fork(tmp_path: Path) -> None:
    series = Series.load(stack(tmp_path))
    plain = Fork(series, series.find(), bases.installed(), "off", tmp_path / "build")
    others = [
        replace(plain, sanitize=sanitizers.named(words)) for words in ("address,undefined", "undefined", "thread")
    ]
    assert len({fork.home for fork in (plain, *others)}) == len({fork.digest() for fork in (plain, *others)}) == 4
    assert replace(plain, sanitize=sanitizers.named("undefined,address")) == others[0]


def test_the_runtimes_are_preloaded_and_the_users_options_count() -> None:
    compiler = toolchain.cxx()
    found = sanitizers.variables(("address", "undefined"), compiler)
    names = [Path(path).name for path in found["LD_PRELOAD"].split(":")]
    assert names[:3] == ["libasan.so", "libubsan.so", "libstdc++.so.6"]
    assert found["ASAN_OPTIONS"].startswith("detect_leaks=0")
    assert sanitizers.variables((), compiler) == {}


def test_a_compiler_without_a_runtime(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\necho "${1#-print-file-name=}"\n')
    compiler.chmod(0o755)
    with raises(ForkError, match="has no libtsan.so for --sanitize thread: set CXX to a GCC with its sanitizers"):
        sanitizers.variables(("thread",), compiler)
