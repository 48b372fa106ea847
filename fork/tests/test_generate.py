"""PyTorch's generators on entries that only upstream's own build could take as they are."""

import json
import os
import re
import subprocess
from pathlib import Path

from pytest import mark

from fork.engine.compile.compiler import Compiler, Unit
from fork.engine.generate import generators
from fork.engine.generate.joined import AUTOGRAD, OPS, join
from fork.engine.wheel import base as bases
from fork.tests.helpers import flags_of, write

NATIVE = """\
- func: softclip(Tensor self) -> Tensor
  variants: function, method
  dispatch:
    CompositeExplicitAutograd: softclip
"""
FORMULA = "- name: softclip(Tensor self) -> Tensor\n  self: grad\n"


def made(folder: Path, native: str, derivatives: str) -> str:
    """What is generated for autograd, for Python's torch functions and for its methods, as one text."""
    write(folder, {"native_functions.yaml": native, "derivatives.yaml": derivatives, "out/empty": ""})
    formulas = str(folder / "derivatives.yaml") if derivatives else ""
    base, program = bases.installed(), Path(generators.__file__).with_name("generate.py")
    command: list[str | Path] = [base.python, program, folder / "native_functions.yaml", formulas, folder / "out"]
    variables = os.environ | generators.environment(base, base.site)
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    names = ("VariableTypeEverything.cpp", "python_torch_functionsEverything.cpp", "python_variable_methods.cpp")
    return "".join(file.read_text() for name in names for file in folder.glob(f"out/autograd/**/{name}"))


@mark.parametrize("derivatives", ["", FORMULA])
def test_an_operator_with_a_method_and_a_kernel(tmp_path: Path, derivatives: str) -> None:
    """C++'s class has no such method, so all call the function; without a formula, its gradient is refused."""
    text = made(tmp_path, NATIVE, derivatives)
    assert text.count("return at::softclip(self)") == 2 and "self.softclip()" not in text
    assert ("autogradNotImplementedFallback" in text) == (not derivatives)


@mark.parametrize(("variants", "ways"), [("function", [1, 0]), ("method", [0, 1]), ("function, method", [1, 1])])
def test_how_python_calls_an_operator(tmp_path: Path, variants: str, ways: list[int]) -> None:
    """By torch and by the class of tensors, each if the list says so; in the typing files too."""
    schema = "softclip_(Tensor(a!) self) -> Tensor(a!)"
    text = made(tmp_path, f"- func: {schema}\n  variants: {variants}\n", "")
    found = [
        text.count('{"softclip_", castPyCFunctionWithKeywords(THPVariable_softclip_), METH'),
        text.count('{"softclip_", THPVariable_softclip__method, METH'),
    ]
    assert found == ways
    stubs = json.loads((tmp_path / "out/stubs.json").read_text())
    assert [len(stubs["functions"]), len(stubs["methods"])] == ways


def test_a_composition_needs_no_kernel_for_autograd(tmp_path: Path) -> None:
    text = made(tmp_path, "- func: softclip(Tensor self) -> Tensor\n", "")
    assert "at::softclip(self)" in text and 'm.impl("softclip"' not in text


def test_a_variant_with_out_alone(tmp_path: Path) -> None:
    """Batch rules have no variants with `out`, so there is nothing that they would be registered through."""
    arguments = "str equation, Tensor[] tensors, *, int[]? path=None, Tensor(a!) out"
    text = made(tmp_path, f"- func: einsum.out({arguments}) -> Tensor(a!)\n", "")
    assert "at::einsum_out(out, equation, tensors, path)" in text


def test_headers_declare_what_the_base_has_and_what_is_added(tmp_path: Path) -> None:
    """Whatever the branch changes of one: all code reads the same, and one source can include them all."""
    overload = "- func: fliplr.scaled(Tensor self, Scalar by) -> Tensor\n"
    made(tmp_path, f"{NATIVE}\n{overload}", FORMULA)
    base, work, nodes = bases.installed(), tmp_path / "work", f"{AUTOGRAD}Functions.h"
    (work / "generated").parent.mkdir()
    (tmp_path / "out").rename(work / "generated")
    texts = {path: base.read(path) or "" for path in (nodes, f"{OPS}fliplr_ops.h")}
    changed = {nodes: texts[nodes].replace("SincBackward0", "OtherBackward0")}
    changed |= {path: text + "// changed\n" for path, text in texts.items() if path != nodes}
    folder = join(base, work, tmp_path / "site", changed)
    includes = ""
    for file in sorted(folder.rglob("*.h")):
        name = str(file.relative_to(folder))
        text, path = file.read_text(), name if name.startswith("torch/") else f"aten/src/{name}"
        assert text.startswith(changed.get(path, base.read(path) or ""))
        assert (tmp_path / "site/torch/include" / name).read_text() == text
        includes += f"#include <{name}>\n" if not re.search("_inl.h|RegistrationDecl|NativeMeta", name) else ""
    assert "ATen/ops/softclip.h" in includes and "ATen/VmapGeneratedPlumbing.h" in includes
    source = """
#include <torch/csrc/autograd/FunctionsManual.h>
torch::autograd::generated::SoftclipBackward0 added;
torch::autograd::generated::OtherBackward0 changed;
torch::autograd::generated::SinBackward0 left;
auto known = at::native::fliplr(at::native::softclip(at::fliplr(at::softclip(at::ones({1})), 2)), 2);
"""
    unit = Unit("all.cpp", f"#include <ATen/ATen.h>\n{includes}{source}", words=("-O0",))
    made_of = Compiler(flags_of(base, work, [folder], capabilities={"DEFAULT": ()})).compile_all([unit])[unit]
    assert isinstance(made_of, Path), made_of
