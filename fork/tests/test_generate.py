"""PyTorch's generators on entries that only upstream's own build could take as they are."""

import os
import subprocess
from pathlib import Path

from pytest import mark

from fork.engine.generate import generators
from fork.engine.wheel import base as bases
from fork.tests.helpers import write

NATIVE = """\
- func: softclip(Tensor self) -> Tensor
  variants: function, method
  dispatch:
    CompositeExplicitAutograd: softclip
"""
FORMULA = "- name: softclip(Tensor self) -> Tensor\n  self: grad\n"


def made(folder: Path, native: str, derivatives: str) -> str:
    """What is generated for autograd and for Python's torch functions, as one text."""
    write(folder, {"native_functions.yaml": native, "derivatives.yaml": derivatives, "out/empty": ""})
    formulas = str(folder / "derivatives.yaml") if derivatives else ""
    base, program = bases.installed(), Path(generators.__file__).with_name("generate.py")
    command: list[str | Path] = [base.python, program, folder / "native_functions.yaml", formulas, folder / "out"]
    variables = os.environ | generators.environment(base, base.site)
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    names = ("VariableTypeEverything.cpp", "python_torch_functionsEverything.cpp")
    return "".join(file.read_text() for name in names for file in folder.glob(f"out/autograd/**/{name}"))


@mark.parametrize("derivatives", ["", FORMULA])
def test_an_operator_with_a_method_and_a_kernel(tmp_path: Path, derivatives: str) -> None:
    """A wheel's Tensor has no such method, so its function is called; without a formula, its gradient is refused."""
    text = made(tmp_path, NATIVE, derivatives)
    assert "at::softclip(self)" in text and "self.softclip()" not in text
    assert ("autogradNotImplementedFallback" in text) == (not derivatives)


def test_a_composition_needs_no_kernel_for_autograd(tmp_path: Path) -> None:
    text = made(tmp_path, "- func: softclip(Tensor self) -> Tensor\n", "")
    assert "at::softclip(self)" in text and 'm.impl("softclip"' not in text


def test_a_variant_with_out_alone(tmp_path: Path) -> None:
    """Batch rules have no variants with `out`, so there is nothing that they would be registered through."""
    arguments = "str equation, Tensor[] tensors, *, int[]? path=None, Tensor(a!) out"
    text = made(tmp_path, f"- func: einsum.out({arguments}) -> Tensor(a!)\n", "")
    assert "at::einsum_out(out, equation, tensors, path)" in text
