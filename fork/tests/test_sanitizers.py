"""A fork with sanitizers: which there are, that it stands beside the plain one, and what its processes need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest import mark, raises

from fork.engine.compile import sanitizers, toolchain
from fork.errors import ForkError
from fork.tests.helpers import Tool, fork_of, script
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
def test_what_cannot_be(tmp_path: Path, tool: Tool, words: list[str], sentence: str) -> None:
    assert tool.refusal("--root", stack(tmp_path), "build", *words).startswith(f"fork: {sentence}")


def test_it_stands_beside_the_plain_fork(tmp_path: Path) -> None:
    plain, names = fork_of(stack(tmp_path)), ("address,undefined", "undefined", "thread")
    others = [replace(plain, sanitize=sanitizers.named(words)) for words in names]
    assert len({build.home for build in (plain, *others)}) == len({build.digest() for build in (plain, *others)}) == 4
    assert replace(plain, sanitize=sanitizers.named("undefined,address")) == others[0]


def test_the_runtimes_are_preloaded_and_the_users_options_count() -> None:
    compiler = toolchain.cxx()
    found = sanitizers.variables(("address", "undefined"), compiler)
    names = [Path(path).name for path in found["LD_PRELOAD"].split(":")]
    assert names[:3] == ["libasan.so", "libubsan.so", "libstdc++.so.6"]
    assert found["ASAN_OPTIONS"].startswith("detect_leaks=0")


def test_a_compiler_without_a_runtime(tmp_path: Path) -> None:
    compiler = script(tmp_path / "c++", 'echo "${1#-print-file-name=}"')
    with raises(ForkError, match="has no libtsan.so for --sanitize thread: set CXX to a GCC with its sanitizers"):
        sanitizers.variables(("thread",), compiler)
