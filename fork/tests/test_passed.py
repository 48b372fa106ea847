"""What a test of a state reads: it is the fork where the test names an operator of the stack."""

from __future__ import annotations

from pathlib import Path

from pytest import MonkeyPatch, mark

from fork.checkout.git import Checkout
from fork.checkout.whole_branch import Branch
from fork.engine.wheel import base as bases
from fork.series import Series
from fork.tests import halve
from fork.tests.helpers import write
from fork.verify import memory_of_tests


@mark.parametrize(
    ("text", "reads"),
    [
        ("torch.halve(x)", True),
        ("torch.ops.aten.halve.default", True),
        ('getattr(torch, "halve")', True),
        ('m.impl("aten::halve", f)', True),
        ("halve = torch.halved(x)", False),
        ("a test of halve without it", False),
    ],
)
def test_a_test_reads_the_fork_where_it_names_an_operator(tmp_path: Path, text: str, reads: bool) -> None:
    series = Series.load(halve.stack(tmp_path))
    assert memory_of_tests.calls(series, series.state("composite"), text) is reads
    # A branch may change whatever a test calls.
    own = Branch(
        root=tmp_path,
        prs=series.prs,
        anchors={},
        checkout=Checkout(tmp_path, ""),
        since="",
        called="",
        texts=(),
        told={},
    )
    assert memory_of_tests.calls(own, series.state("composite"), text)


def test_a_test_reads_the_new_files_that_it_names(tmp_path: Path) -> None:
    state = {name: tmp_path / name for name in ("docs/halve.md", "test/test_a.py", halve.KERNEL)}
    series = Series.load(halve.stack(tmp_path))
    assert set(memory_of_tests.beside(series, state, "open('docs/halve.md')")) == {"docs/halve.md"}
    for line in ("from test_a import x", "import test_a"):
        assert set(memory_of_tests.beside(series, state, line)) == {"test/test_a.py"}
    assert set(memory_of_tests.beside(series, state, "halve = test_a_b")) == set()


def test_settings_that_change_what_is_computed_are_read(monkeypatch: MonkeyPatch) -> None:
    base = bases.installed()
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    before = memory_of_tests.machine(base)
    monkeypatch.setenv("TORCH_FORK", "/elsewhere")
    assert memory_of_tests.machine(base) == before
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert memory_of_tests.machine(base) != before


def test_the_fork_is_its_libraries_and_the_python_files_that_a_state_changes(tmp_path: Path) -> None:
    base = bases.installed()
    state = {"torch/overrides.py": tmp_path / "x", halve.KERNEL: tmp_path / "y"}
    files = {"torch/lib/libtorch.so": "1", "torch/overrides.py": "2", "torch/functional.py": "3"}
    before = memory_of_tests.built(write(tmp_path, files), base, state)
    for path in files:
        changed = memory_of_tests.built(write(tmp_path, files | {path: "other"}), base, state)
        assert (changed != before) is (path != "torch/functional.py"), path
