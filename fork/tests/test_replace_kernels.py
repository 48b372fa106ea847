"""Kernels that a branch gives operators of the base: what is registered again, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fork.checkout import whole_branch
from fork.checkout.git import Checkout
from fork.checkout.operators import operators
from fork.checkout.release_tree import Tree
from fork.cli import main
from fork.engine.generate import generators
from fork.engine.generate.kernels import SHIM, Kernels, kernels_of
from fork.engine.wheel import base as bases
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.tests.helpers import committed, git, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave.file_kinds import Whole

LIST = """\
- func: plain(Tensor a) -> Tensor
  variants: function

- func: half(Tensor a) -> Tensor
  dispatch:
    CPU, CUDA: half_cpu
    SparseCPU: half_sparse

- func: half_(Tensor(a!) a) -> Tensor(a!)
  dispatch:
    CPU: half_cpu_

- func: seen.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)
  dispatch:
    CompositeExplicitAutograd: seen_out

- func: whole.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  dispatch:
    CPU: whole_out
"""


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A torch of the tests' own without a GPU, for which nothing is generated or compiled."""
    site = tmp_path / "site"
    files = {
        "torch/version.py": "cuda = None\n",
        "torch.dist-info/RECORD": "torch/lib,sha256=1,1\n",
        "torchgen/packaged/ATen/native/native_functions.yaml": LIST,
        "torch/include/" + SHIM.format("cpu"): "AOTITorchError aoti_torch_cpu_seen_out(AtenTensorHandle out);\n",
    }
    write(site, files)
    return Base(Path("python"), site, "2.13.0", site / "torch.dist-info")


def kernels(base: Base, folder: Path, text: str, before: str = LIST, device: bool = False) -> Kernels:
    """Of a branch whose list is this text."""
    checkout = committed(folder / "tree", {**UPSTREAM, NATIVE_FUNCTIONS: before})
    tree = Tree.of(Checkout.open(checkout), "main", "2.13.0", "0" * 40, device)
    return kernels_of(base, tree, text, folder / "work", folder / "stage")


REFUSED = {
    "a key that is gone": (
        "    SparseCPU: half_sparse\n",
        "",
        "4 no longer has `SparseCPU: half_sparse` of half, which the base has registered",
    ),
    "one of several keys that is gone": (
        "CPU, CUDA: half_cpu",
        "CPU: half_cpu",
        "4 no longer has `CUDA: half_cpu` of half, which the base has registered",
    ),
    "an entry without one": (
        "  variants: function\n",
        "  variants: function\n  dispatch:\n    CPU: plain_cpu\n",
        "4 `CPU: plain_cpu` of plain gives the operator another autograd, and the base's would stay",
    ),
    "an implicit kernel": (
        "    SparseCPU: half_sparse\n",
        "    SparseCPU: half_sparse\n    CompositeImplicitAutograd: half\n",
        "8 `CompositeImplicitAutograd: half` of half gives the operator another autograd, and the base's would stay",
    ),
    "a composite kernel of what has a generated one": (
        "    CPU: half_cpu_\n",
        "    CPU: half_cpu_\n    CompositeExplicitAutograd: half_\n",
        "12 `CompositeExplicitAutograd: half_` of half_ would take the place of the Meta kernel that PyTorch generated",
    ),
    "a kernel of AOTInductor's": (
        "    CompositeExplicitAutograd: seen_out\n",
        "    CompositeExplicitAutograd: seen_out\n    CPU: seen_out_cpu\n",
        "16 `CPU: seen_out_cpu` of seen.out is new, and what AOTInductor has compiled calls another",
    ),
    "a structured kernel": (
        "CPU: whole_out",
        "CPU: whole_out_new",
        "20 `CPU: whole_out_new` of whole.out is a structured kernel, for which PyTorch generates a class",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_would_not_run_is_refused(base: Base, tmp_path: Path, name: str) -> None:
    before, after, reason = REFUSED[name]
    assert LIST.count(before) == 1
    with pytest.raises(ForkError) as error:
        kernels(base, tmp_path, LIST.replace(before, after))
    assert str(error.value).startswith(f"{NATIVE_FUNCTIONS}:{reason}")


def test_a_kernel_of_a_device(
    base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the wheel was not built for is left out; of a wheel for CUDA, its own is generated."""
    text = LIST.replace("CPU, CUDA: half_cpu", "CPU: half_cpu\n    CUDA: half_cuda\n    MPS: half_mps")
    assert kernels(base, tmp_path, text) == Kernels()
    said = "left out {} of half: torch 2.13.0 was built without it\n"
    assert capsys.readouterr().out == said.format("CUDA") + said.format("MPS")
    assert (tmp_path / "stage/torchgen/packaged/ATen/native/native_functions.yaml").read_text() == text
    write(base.site, {"torch/version.py": "cuda: str = '13.0'\n"})
    other = Base(base.python, base.site, base.version, base.dist_info)
    asked: list[object] = []

    def run(*words: object) -> Path:
        asked.append(words[-1])
        raise ForkError("no generator runs here")

    monkeypatch.setattr(generators, "run", run)
    with pytest.raises(ForkError, match="no generator"):
        kernels(other, tmp_path / "other", text, device=True)
    assert asked == [[("CUDA", "half")]] and capsys.readouterr().out == said.format("MPS")
    assert kernels(other, tmp_path / "off", text) == Kernels()
    assert "left out CUDA of half: the GPU keeps the base's, as --cuda off asks\n" in capsys.readouterr().out


def test_another_release_than_the_checkouts(base: Base, tmp_path: Path) -> None:
    """Only the branch's entries count, and the release must have them as the branch found them."""
    before = LIST.replace("SparseCPU: half_sparse", "SparseCPU: half_other").replace("CPU: whole_out", "CPU: out")
    assert kernels(base, tmp_path / "same", before, before) == Kernels()
    with pytest.raises(ForkError, match=":4 changes an entry that torch 2.13.0 has otherwise: rebase the branch"):
        kernels(base, tmp_path / "otherwise", before.replace("half_cpu\n", "half_new\n"), before)
    start = LIST.partition("- func: half_(")[0]
    with pytest.raises(ForkError, match=":9 adds seen.out, which torch 2.13.0 has: give it another name"):
        kernels(base, tmp_path / "there", start + "- func: seen.out" + LIST.partition("seen.out")[2], start)


def test_what_the_generators_reject(tmp_path: Path) -> None:
    base = bases.installed()
    before = base.read(NATIVE_FUNCTIONS) or ""
    text = before.replace("    CPU: trace_cpu\n", "    CPU: trace_cpu\n    CPUU: trace_mine\n")
    line = text.count("\n", 0, text.index("- func: trace(")) + 1
    with pytest.raises(ForkError, match=f"reject {NATIVE_FUNCTIONS}:{line}: unknown dispatch key CPUU$"):
        kernels(base, tmp_path, text, before)


def test_what_is_registered_and_declared(tmp_path: Path) -> None:
    """By PyTorch's own generators: the changed kernels alone, and all declarations of the operator's header."""
    base = bases.installed()
    before = base.read(NATIVE_FUNCTIONS) or ""
    at = before.index("    CPU: median_cpu\n")
    text = before[:at] + before[at:].replace("CPU: median_cpu\n", "CPU: median_mine\n    Meta: median_meta\n", 1)
    found = kernels(base, tmp_path, text, before)
    source, meta = found.sources
    assert source.path == "aten/src/ATen/RegisterCPUEverything.cpp" and "median_meta(self)" in meta.after
    assert source.after.count("m.impl(") == 1 and "return at::native::median_mine(self);" in source.after
    assert "nanmedian" not in source.after
    assert found.headers == ["ATen/ops/median_meta_dispatch.h", "ATen/ops/median_native.h"]
    assert found.names == {"median_cpu"}
    header = (tmp_path / "work/changed/ATen/ops/median_native.h").read_text()
    assert "median_mine(" in header and "median_out_cpu(" in header and "median_cpu(" not in header


def test_a_branch_with_other_kernels_is_a_stack(
    tmp_path: Path, quiet_git: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an operator that it adds before; what else an entry says is refused as it was, and so is the import."""
    tree = committed(tmp_path / "tree", {**UPSTREAM, NATIVE_FUNCTIONS: LIST})
    git(tree, "switch", "--quiet", "--create", "mine")
    added = LIST.replace("- func: half_(", "- func: twice(Tensor a) -> Tensor\n\n- func: half_(")
    for text, title in ((added, "Add twice"), (added.replace("half_cpu\n", "half_new\n"), "Change half")):
        write(tree, {NATIVE_FUNCTIONS: text})
        git(tree, "commit", "--quiet", "--all", f"--message={title}")
    series = whole_branch.read(tree, None, tmp_path / "home")
    assert isinstance(series.kind(NATIVE_FUNCTIONS), Whole)
    assert [operators(series, commit) for commit in series.commits] == [["twice"], ["half", "twice"]]
    assert main(["import", str(tree), str(tmp_path / "out")]) == 1
    assert "changes or removes `CPU, CUDA: half_cpu`, compiled into" in capsys.readouterr().err
    for before, after in (("half(Tensor a)", "half(Tensor a, int n)"), ("structured: True", "device_guard: False")):
        write(tree, {NATIVE_FUNCTIONS: added.replace("half_cpu\n", "half_new\n").replace(before, after)})
        assert main(["--root", str(tmp_path / "root"), "--checkout", str(tree), "show"]) == 1
        said = capsys.readouterr().err
        assert "no longer has half, " in said or " changes whole.out beyond its `dispatch`" in said
