"""The reasons why a change is not built: one list, of which the tool tells each; and those that no build here meets."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork.checkout.git import Checkout
from fork.checkout.release_tree import Text, Tree
from fork.engine.binary.libraries import Caller, Held
from fork.engine.generate.schemas import redefinitions
from fork.engine.replace.decide import Decided
from fork.engine.replace.source import CHANGED, Source
from fork.engine.replace.trace import Trace
from fork.errors import ForkError
from fork.folders import PACKAGE
from fork.refusals import Refusal
from fork.tests.helpers import commit, committed, git
from fork.tests.test_objects import compiled
from fork.tests.tiny import UPSTREAM

TESTS = " ".join(" ".join(path.read_text() for path in sorted(PACKAGE.glob("tests/test_*.py"))).split())


@pytest.mark.parametrize("refusal", Refusal)
def test_the_tool_tells_each_and_a_test_meets_it(refusal: Refusal) -> None:
    code = " ".join(path.read_text() for path in PACKAGE.rglob("*.py") if "tests" not in path.parts)
    assert f"Refusal.{refusal.name}" in code
    words = max(re.split(r"\{\w+\}", refusal.value), key=len).split()
    assert any(" ".join(words[n : n + 3]) in TESTS for n in range(max(1, len(words) - 2)))


@pytest.mark.parametrize("room", ["replace", "generate"])
def test_no_reason_stands_elsewhere(room: str) -> None:
    for path in (PACKAGE / "engine" / room).glob("*.py"):
        assert not re.search(r"problems\.append\(\s*f?\"", path.read_text()), path


def test_lines_that_the_release_has_otherwise(tmp_path: Path) -> None:
    path = "aten/src/ATen/native/One.cpp"
    root = committed(tmp_path, {**UPSTREAM, path: "int a;\nint b;\nint c;\n"})
    start = git(root, "rev-parse", "HEAD").strip()
    commit(root, {path: "int a;\nint b_of_release;\nint c;\n"}, "release")
    git(root, "tag", "v2.13.0")
    tree = Tree.of(Checkout.open(root), start, "2.13.0+cpu", "", False, {})
    assert tree.merged(path, "int a;\nint b;\nint c;\nint d;\n") == "int a;\nint b_of_release;\nint c;\nint d;\n"
    with pytest.raises(ForkError, match=f"^{path}:2 is changed by the branch, and the wheel's release has other lines"):
        tree.merged(path, "int a;\nint b_of_branch;\nint c;\n")


def test_other_arguments_of_an_operator() -> None:
    before = 'm.def("mm(Tensor self, int n=1) -> Tensor", tags_0);\n'
    with pytest.raises(ForkError, match="gives mm other arguments, and code of the base passes the old ones"):
        redefinitions(before, before.replace("int n=1", "int n=1, int m=1"))


NODE = "_ZTVN5torch8autograd9generated11MmBackward0E"
TRACED = """
int launches(int a) { return a; }
namespace torch::autograd::generated {
struct MmBackward0 { virtual int apply(); };
int MmBackward0::apply() { return 1; }
}
"""


def test_what_the_base_launches_or_makes(tmp_path: Path) -> None:
    """A kernel that an older nvcc shows to other libraries; a node that code makes which is not compiled again."""
    one = compiled(tmp_path / "one.o", TRACED)
    one.kernels = {one.where["_Z8launchesi"]}
    user = Caller("_ZN5torch8autograd6custom4makeEv", "", "libtorch_cpu.so")
    held = Held(exported={"_Z8launchesi"})
    held.users[NODE].append(user)
    libraries: Any = SimpleNamespace(held=lambda *_: held, files={})
    compiler: Any = None
    source = Source(Text("aten/One.cu", None, TRACED), CHANGED, compiler)
    source.new.append(one)
    source.old.append(None)
    decided = Decided({}, set(), set())
    generated: Any = SimpleNamespace(unlike={"MmBackward0"}, headers={}, declared=set())
    problems = Trace(libraries, [source], decided, generated, lambda _: ["aten/One.cu"]).run().problems
    assert "aten/One.cu:2 `launches` would be launched by the base's code too: take nvcc 12.8" in problems
    assert (
        "MmBackward0 is also made by the base's torch::autograd::custom::make, which is not compiled again" in problems
    )
