"""The fork as its users meet it: the examples run, in Python and in C++, and type checkers know the operator."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks import ROOT
from checks.built import built, run
from fork.engine.build import environment


@pytest.fixture(scope="module")
def site() -> Path:
    return built()


def shape(printed: str) -> str:
    """The lines without what differs between machines: numbers, the folder, and the instructions."""
    kept = re.sub(r"(?m)^torch \S+ from .*/|AVX\S+|DEFAULT", "", printed)
    return re.sub(r"[\d.]+", "0", re.sub(r" +", " ", kept))


def test_the_example_learns(site: Path) -> None:
    printed = run(sys.executable, "examples/attn.py", site=site)
    assert str(site.resolve()) in printed and "250 steps" in printed
    assert shape(printed) in shape((ROOT / "README.md").read_text()), "the README shows other lines"


@pytest.mark.long
def test_a_layer_of_heads_trains_everywhere(site: Path) -> None:
    """Eager, compiled, in bfloat16 by autocast: each loss falls, and compiled ones are eager's."""
    code = (
        "import torch\nfrom examples.heads import train\neager, compiled = train(), train(compiled=True)\n"
        "torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4)\n"
        "assert all(x[-1] < 0.05 * x[0] for x in (eager, train(dtype=torch.bfloat16)))"
    )
    run(sys.executable, "-c", code, site=site)


@pytest.mark.long
def test_four_processes_train_the_same_layer(site: Path) -> None:
    alone = run(sys.executable, "examples/heads.py", site=site).splitlines()
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    shared = run(*words, "examples/heads.py", site=site).splitlines()
    assert (alone[0], shared[0]) == ("4 heads; processes: 1", "4 heads; processes: 4")
    assert alone[1] == shared[1]


@pytest.mark.long
def test_a_cpp_program_finds_the_operator_through_cmake(site: Path, tmp_path: Path) -> None:
    prefix = site / "torch/share/cmake"
    compiler = shutil.which("c++") or "g++"
    configure = ("cmake", "-S", "examples/cpp", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(*configure, f"-DCMAKE_CXX_COMPILER={compiler}", site=site)
    run("cmake", "--build", tmp_path, site=site)
    assert "output [64, 4], attn [64, 64]" in run(tmp_path / "attn_example", site=site)


@pytest.mark.long
def test_type_checkers_know_the_named_outputs(site: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n\n\ndef f(x: torch.Tensor) -> torch.Tensor:\n"
        "    result = torch.attn(x, x, x)\n    output, attn = result\n"
        "    reveal_type(result.output)\n    return result.attn + attn + output\n\n\ntorch.attn(1, 2, 3)\n"
    )
    words = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", str(program)]
    variables = environment(site, Path(sys.executable)) | {"MYPYPATH": str(site)}
    printed = subprocess.run(words, env=variables, capture_output=True, text=True, cwd=tmp_path).stdout
    assert 'Revealed type is "torch._tensor.Tensor"' in printed
    assert 'Argument 1 to "attn" has incompatible type "int"; expected "Tensor"' in printed


def test_its_help_says_what_it_computes(site: Path) -> None:
    printed = run(sys.executable, "-c", "import torch; help(torch.attn)", site=site)
    assert "tanh" in printed and "(*, M, D)" in printed and "Example" in printed


def test_the_examples_of_its_help_run(site: Path) -> None:
    code = (
        "import doctest, sys, torch\n"
        "examples = doctest.DocTestParser().get_doctest(torch.attn.__doc__, {'torch': torch}, 'torch.attn', None, 0)\n"
        "failed, tried = doctest.DocTestRunner().run(examples)\nprint(tried)\nsys.exit(failed)"
    )
    assert int(run(sys.executable, "-c", code, site=site)) >= 20


def test_it_is_in_op_db_and_in_the_return_types(site: Path) -> None:
    code = (
        "import torch\nfrom torch.testing._internal.common_methods_invocations import op_db\n"
        "print([op.name for op in op_db].count('attn'))\n"
        "x = torch.ones(1, 1)\nleaves, spec = torch.utils._pytree.tree_flatten(torch.attn(x, x, x))\n"
        "print(len(leaves), torch.utils._pytree.tree_unflatten(leaves, spec).__class__ is torch.return_types.attn)"
    )
    assert run(sys.executable, "-c", code, site=site).split() == ["1", "2", "True"]
