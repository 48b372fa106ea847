"""A branch that changes C++ of PyTorch itself, on the installed torch: what the change does shows, or it is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork.cli import main
from fork.engine.build import environment
from fork.engine.wheel import base as bases
from fork.tests.helpers import committed, edit, git, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS

pytestmark = [pytest.mark.xdist_group("replace"), pytest.mark.long]

NONZERO = "aten/src/ATen/native/Nonzero.cpp"
KERNEL = "aten/src/ATen/native/cuda/Kernel.cu"
SOBOL = "aten/src/ATen/native/Sobol.cpp"
NEW = "aten/src/ATen/native/ThriceSinc.cpp"
MEDIAN = "aten/src/ATen/native/MedianMine.cpp"
DECLARED = "torch/csrc/autograd/FunctionsManual.h"
MANUAL = "torch/csrc/autograd/FunctionsManual.cpp"
PREFIX = "torch/csrc/inductor/cpp_prefix.h"
UNARY, BINARY = (f"aten/src/ATen/functorch/BatchRules{name}Ops.cpp" for name in ("Unary", "Binary"))
MINE = "aten/src/ATen/functorch/BatchRulesMine.cpp"
RULES = "aten/src/ATen/functorch/Rules.h"  # a header of the checkout that no wheel has
BATCHED = """\
#include <ATen/functorch/Rules.h>
TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {{
{}}}
"""
ERF, TRUNC = "  RULE(erf)\n", '  m.impl("trunc", same);\n'  # by a macro, and by its name
COMPARE = "aten/src/ATen/native/TensorCompare.cpp"
# Headers that no wheel has, by how they are included, each with a function that leaves its argument alone.
LEAVING = {
    "ATen/native/sparse/Mine.h": "aten/src/ATen/native/sparse/Mine.h",
    "torch/mine.h": "torch/csrc/api/include/torch/mine.h",
    "qnnpack/mine.h": "aten/src/ATen/native/quantized/cpu/qnnpack/src/qnnpack/mine.h",
}
ONLY_THERE = "aten/src/ATen/native/mkldnn/OnlyThere.h"  # a header of the checkout that no wheel has
# PyTorch's functions in words of our own: one that the base exports, and others that it hides and calls.
SOURCES = {
    KERNEL: "void kernel() {\n  return;\n}\n",
    **{path: f"inline bool left{n}(bool x) {{ return x; }}\n" for n, path in enumerate(LEAVING.values())},
    COMPARE: "".join(f"#include <{name}>\n" for name in LEAVING)
    + """\
#include <ATen/core/Tensor.h>
namespace at::native {
Tensor isreal(const Tensor& self) { return left0(left1(left2(true))) ? self.eq(self) : self.ne(self); }
} // namespace at::native
""",
    NONZERO: """\
#include <ATen/core/Tensor.h>

namespace at::native {

// Whether a tensor of one element is not zero.
bool is_nonzero(const Tensor& self) {
  return self.ne(0).all().const_data_ptr<bool>()[0];
}

} // namespace at::native
""",
    SOBOL: """\
#include <ATen/core/Tensor.h>

namespace at::native::sobol_utils {

at::Tensor cdot_pow2(const at::Tensor& bits) {
  return bits.sum();
}

} // namespace at::native::sobol_utils
""",
    ONLY_THERE: "#pragma once\nconstexpr int kByTwo = 2;\n",
    RULES: """\
#pragma once
#include <torch/library.h>
#define RULE(op) m.impl(#op, same);
#define EACH(_) _(signbit) _(frac)
inline at::Tensor same(const at::Tensor& self) { return self; }
""",
    UNARY: BATCHED.format(f"  EACH(RULE)\n{ERF}{TRUNC}"),
    BINARY: BATCHED.format("RULE(erfc)\n"),
    MANUAL: """\
#include <torch/csrc/autograd/FunctionsManual.h>

namespace torch::autograd::generated::details {

at::Tensor sinc_backward(const at::Tensor& grad, const at::Tensor& self) {
  return grad * self;
}

} // namespace torch::autograd::generated::details
""",
}


@pytest.fixture(scope="module")
def module_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = bases.installed()
    lists = {path: base.read(path) or "" for path in (NATIVE_FUNCTIONS, DERIVATIVES)}
    headers = {path: base.read(path) or "" for path in (DECLARED, PREFIX)}
    tree = committed(tmp_path_factory.mktemp("replace") / "tree", {**UPSTREAM, **SOURCES, **lists, **headers})
    git(tree, "switch", "--quiet", "--create", "mine")
    return tree


@pytest.fixture
def tree(module_tree: Path, quiet_git: None) -> Iterator[Path]:
    yield module_tree
    git(module_tree, "checkout", "--quiet", "--force", "mine")
    git(module_tree, "clean", "--quiet", "--force", "-d")


def build(tree: Path, *words: str) -> int:
    return main(["--root", str(tree.parent / "root"), "--checkout", str(tree), "build", "--cuda", "off", *words])


def python(tree: Path, code: str) -> str:
    """What a program prints with the last build as its torch, its warnings included."""
    (site,) = (tree.parent / "root/build/checkouts").glob("*/build/forks/*/current")
    variables = environment(site, Path(sys.executable))
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()


CODE = "import torch; print(torch.is_nonzero(torch.ones(1)), torch.is_nonzero(torch.zeros(1)))"


def test_an_edit_and_the_next(tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Some compilers leave out a library of which a module uses nothing, and then it is looked up too late.
    monkeypatch.setenv("LDFLAGS", "-Wl,--as-needed")
    edit(tree, NONZERO, "self.ne(0)", "self.eq(0)")
    assert build(tree) == 0
    assert f"replaced {NONZERO} (changed)\n" in capsys.readouterr().out
    assert python(tree, CODE) == "False True"
    edit(tree, NONZERO, "// Whether", "// Explained.\n// Whether")
    assert build(tree) == 0
    assert "[1/1" not in capsys.readouterr().out.partition("replaced")[0]
    edit(tree, NONZERO, "self.eq(0)", "self.gt(0)")
    assert build(tree) == 0 and python(tree, CODE) == "True False"
    edit(tree, NONZERO, "self.gt(0)", "self.git(0)")
    assert build(tree, "--plan") == 0
    assert re.search(rf"^compile  {NONZERO} \(changed; \d+ s the last time\)$", capsys.readouterr().out, re.MULTILINE)
    assert build(tree) == 1
    assert f"{tree / NONZERO}:8:15: error: 'const class at::Tensor' has no member" in capsys.readouterr().err.replace(
        "‘", "'"
    ).replace("’", "'")
    assert python(tree, CODE) == "True False"


@pytest.mark.parametrize("path", LEAVING.values(), ids=[*LEAVING])
def test_a_header_that_no_wheel_has(tree: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What it was before is the release's, wherever the compiler finds the branch's."""
    edit(tree, path, "return x", "return !x")
    assert build(tree) == 0
    said = capsys.readouterr().out
    assert f"replaced {COMPARE} (includes the changed {path})\n" in said, said
    assert python(tree, "import torch; print(torch.isreal(torch.ones(1)).item())") == "False"


def test_a_hidden_function_whose_caller_is_not_there(tree: Path) -> None:
    """The base's copy jumps to the branch's."""
    edit(tree, SOBOL, "return bits.sum()", 'TORCH_CHECK(false, "the branch says no");\n  return bits')
    assert build(tree) == 0
    call = "torch.quasirandom.SobolEngine(2, scramble=True)"
    code = f"import torch\ntry: {call}\nexcept RuntimeError as error: print(error)"
    assert python(tree, code) == "the branch says no"


def test_a_sanitizer_sees_what_a_branch_changes(tree: Path, tmp_path: Path) -> None:
    edit(tree, NONZERO, "data_ptr<bool>()[0]", "data_ptr<bool>()[1]")
    words = ["--root", tree.parent / "root", "--checkout", tree, "run", "--sanitize", "address", "--build", tmp_path]
    command = [sys.executable, "-m", "fork", *map(str, words), "--", "python", "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr and NONZERO in done.stderr, done.stderr


def test_a_plan(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has sources that generators write, and refuses a kernel that is gone, as a build does."""
    edit(tree, DERIVATIVES, "self: sinc_backward(grad, self)\n", "self: sinc_backward(grad, self) * 2\n")
    assert build(tree, "--plan") == 0
    said = capsys.readouterr().out
    assert "\ncompile  torch/csrc/autograd/generated/Functions.cpp (generated: SincBackward0" in said
    assert "[1/" not in said
    edit(tree, NATIVE_FUNCTIONS, "    SparseCPU, SparseCUDA, SparseMPS, SparseMeta: is_coalesced_sparse\n", "")
    assert build(tree, "--plan") == 1
    said = capsys.readouterr().err
    assert re.search(
        rf"{NATIVE_FUNCTIONS}:\d+, .* no longer has `TORCH_LIBRARY_IMPL\(aten, SparseCPU, m\): \"is_coal", said
    )


@pytest.mark.parametrize(
    ("edits", "gone"),
    [
        ({UNARY: (ERF, "")}, "`erf` for FuncTorchBatched"),
        ({RULES: (" _(signbit)", "")}, "`signbit` for FuncTorchBatched"),
        ({UNARY: ("  EACH(RULE)\n", "  RULE(frac)\n")}, "`signbit` for FuncTorchBatched"),
        ({UNARY: (ERF, '  m.impl("erf", [](const at::Tensor& self) { return self.neg(); });\n')}, ""),
        ({UNARY: (ERF, ""), BINARY: ("RULE(erfc)", "RULE(erfc) RULE(erf)")}, ""),
        ({UNARY: (ERF, ""), MINE: ("", BATCHED.format(ERF))}, ""),
        ({UNARY: (TRUNC, "")}, '`TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m): "trunc"`'),
        ({UNARY: (TRUNC, ""), BINARY: ("RULE(erfc)", f"RULE(erfc) {TRUNC}")}, ""),
        ({UNARY: (TRUNC, ""), MINE: ("", BATCHED.format(TRUNC))}, ""),
    ],
    ids=[
        "by a macro",
        "in a header's list",
        "one of a list",
        "registered otherwise",
        "in another source",
        "in a new source",
        "by its name",
        "by its name, in another source",
        "by its name, in a new source",
    ],
)
def test_a_kernel_that_is_gone(
    tree: Path, edits: dict[str, tuple[str, str]], gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base would keep it, so a branch that takes one away is refused, by whatever macros it was registered."""
    for path, (old, new) in edits.items():
        if old:
            edit(tree, path, old, new)
        else:
            write(tree, {path: new})
    assert build(tree, "--plan") == bool(gone)
    _, refused, said = capsys.readouterr().err.partition("fork: ")
    assert bool(refused) == bool(gone)
    assert not gone or said == f"{UNARY} no longer has {gone}, which the base has registered\n"


def test_code_of_the_gpu(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A torch for the CPU has none; test_replace_cuda.py has one with."""
    edit(tree, KERNEL, "return;", "return (void)0;")
    assert build(tree) == 0
    assert f"left out {KERNEL}: torch " in capsys.readouterr().out


def test_an_entry_of_an_operator_that_the_base_has(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other arguments are refused, and so is a new operator whose node would be that of another."""
    edit(tree, NATIVE_FUNCTIONS, "- func: fliplr(Tensor self)", "- func: fliplr(Tensor self, int n=0)")
    assert build(tree) == 1
    assert "gives fliplr other arguments, and code of the base passes the old ones" in capsys.readouterr().err
    git(tree, "checkout", "--quiet", "--force", "mine")
    schema = "sinc.mine(Tensor self, int n) -> Tensor"
    kernel = "dispatch:\n    CompositeExplicitAutograd: sinc_mine\n\n"
    edit(tree, NATIVE_FUNCTIONS, "- func: sinc(Tensor self)", f"- func: {schema}\n  {kernel}- func: sinc(Tensor self)")
    edit(tree, DERIVATIVES, "- name: sinc(Tensor self)", f"- name: {schema}\n  self: grad\n\n- name: sinc(Tensor self)")
    assert build(tree) == 1
    assert "whose node SincBackward0 would take the place of the base's" in capsys.readouterr().err


def test_another_kernel(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs for the dispatcher and for those of the base that call at::cpu::median past it, as AOTInductor's code
    does; so does the kernel of a key that the entry did not have."""
    edit(tree, NATIVE_FUNCTIONS, "    CPU: median_cpu\n", "    CPU: median_mine\n    SparseCPU: median_sparse\n")
    kernels = "Tensor median_mine(const Tensor& self) {\n  return self.amax();\n}\n"
    kernels += "Tensor median_sparse(const Tensor& self) {\n  return median_mine(self.to_dense()).neg();\n}\n"
    head = "#include <ATen/core/Tensor.h>\n#include <ATen/ops/median_native.h>\n"
    write(tree, {MEDIAN: f"{head}namespace at::native {{\n{kernels}}} // namespace at::native\n"})
    assert build(tree) == 0
    said = capsys.readouterr().out
    assert re.search(r"replaced aten/src/ATen/RegisterCPU_\d+\.cpp \(generated: .*median\b.*\)\n", said)
    code = """
import ctypes, torch
x = torch.tensor([1.0, 2.0, 3.0, 3.0], requires_grad=True)
torch.median(x).backward()
print(torch.median(x).item(), x.grad.tolist(), torch.median(x.detach().to_sparse()).item())
pointer, capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)
capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
(given,), found = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([x.detach()]), ctypes.c_void_p()
shim = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so").aoti_torch_cpu_median
assert shim(ctypes.c_void_p(pointer(given, None)), ctypes.byref(found)) == 0
print(torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(found.value, None, None)).item())
"""
    assert python(tree, code).splitlines() == ["3.0 [0.0, 0.0, 0.5, 0.5] -3.0", "3.0"]
    edit(tree, MEDIAN, "self.amax()", "self.amin()")
    assert build(tree) == 0 and "] aten/src/ATen/Register" not in capsys.readouterr().out
    assert python(tree, code).splitlines() == ["1.0 [1.0, 0.0, 0.0, 0.0] -1.0", "1.0"]


def test_a_kernel_that_is_not_there(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(tree, NATIVE_FUNCTIONS, "    CPU: median_cpu\n", "    CPU: median_gone\n")
    assert build(tree) == 1
    lines = (tree / NATIVE_FUNCTIONS).read_text().splitlines()
    line = lines.index("    CPU: median_gone") + 1
    said = f"compiling failed: {NATIVE_FUNCTIONS}:{line} names at::native::median_gone, which no source defines"
    assert said in capsys.readouterr().err


def test_a_hidden_formula(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node that calls it, and the kernel, whose forward mode calls it too, stay the base's and call the new one."""
    edit(tree, MANUAL, "grad * self", "grad * self * 3")
    assert build(tree) == 0
    said = capsys.readouterr().out
    assert re.findall("^replaced (.*)$", said, re.MULTILINE) == [f"{MANUAL} (changed)"]
    code = """
import torch
x = torch.full((1,), 2.0, requires_grad=True)
torch.sinc(x).backward()
print(x.grad.item(), torch.func.jvp(torch.sinc, (x.detach(),), (torch.ones(1),))[1].item())
"""
    assert python(tree, code) == "6.0 6.0"


def test_a_formula(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes of an operator and its variants are generated again, with what they save and what Python sees of it."""
    text = (tree / DERIVATIVES).read_text()
    at = text.index("- name: sinh(Tensor self)")
    end = text.index("\n\n", at)
    entry = "- name: sinh(Tensor self) -> Tensor\n  self: grad * result * 5\n  result: auto_element_wise"
    write(tree, {DERIVATIVES: text[:at] + entry + text[end:]})
    assert build(tree) == 0
    said = capsys.readouterr().out
    for name in ("Functions", r"VariableType_\d+", r"python_functions_\d+"):
        assert re.search(rf"replaced torch/csrc/autograd/generated/{name}\.cpp \(generated: .*[sS]inh", said)
    code = """
import torch
x = torch.ones(1, requires_grad=True)
y = torch.sinh(x)
print(y.grad_fn.name(), y.grad_fn._saved_result.item() == y.item())
y.backward()
print(torch.allclose(x.grad, y * 5))
print(hasattr(y.grad_fn, "_saved_self"), type(y.grad_fn) is torch._C._functions.SinhBackward0)
z = torch._foreach_sinh([x])[0]
z.backward()
print(torch.allclose(x.grad, y * 10), z.grad_fn.name())
w = torch.ones(1, requires_grad=True)
torch.sinh_(w.clone()).backward()
print(torch.allclose(w.grad, y * 5))
print((torch.func.jvp(torch.sinh, (torch.ones(1),), (torch.ones(1),))[1] == y * 5).item())
"""
    lines = ["SinhBackward0 True", "True", "False True", "True ForeachSinhBackward0", "True", "True"]
    assert python(tree, code).splitlines() == lines


@pytest.mark.parametrize("node_differs", [False, True])
def test_a_new_operator_beside_a_changed_formula(tree: Path, node_differs: bool) -> None:
    """Each has its node; that of the new one calls the hidden function that the branch changes too. A generated header
    that differs has both, and so has the one of an operator that is changed and has a new overload."""
    schema = "thrice_sinc(Tensor self) -> Tensor"
    kernel = "  variants: function, method\n  dispatch:\n    CompositeExplicitAutograd: thrice_sinc\n"
    edit(tree, NATIVE_FUNCTIONS, "- func: sinc(Tensor self)", f"- func: {schema}\n{kernel}\n- func: sinc(Tensor self)")
    entry = f"- name: {schema}\n  self: sinc_backward(grad, self) * 3\n"
    edit(tree, DERIVATIVES, "- name: sinc(Tensor self)", f"{entry}\n- name: sinc(Tensor self)")
    edit(tree, DERIVATIVES, "self: sinc_backward(grad, self)\n  result", "self: sinc_backward(grad, self, 5)\n  result")
    if node_differs:
        edit(tree, DERIVATIVES, "self: grad * self.cosh().conj()", "self: grad * result")
        head = "- func: vander(Tensor x, int? N=None, bool increasing=False"
        scaled = "- func: vander.scaled(Tensor x, *, Scalar by) -> Tensor"
        edit(tree, NATIVE_FUNCTIONS, head, f"{scaled}\n\n{head.replace('False', 'True')}")
    declared = "sinc_backward(const at::Tensor& grad, const at::Tensor& self"
    edit(tree, MANUAL, "const at::Tensor& self)", "const at::Tensor& self, double by)")
    edit(tree, MANUAL, "grad * self", "grad * self * by")
    edit(tree, DECLARED, f"{declared});", f"{declared}, double by = 2);")
    thrice = "at::Tensor thrice_sinc(const at::Tensor& self) {\n  return self.sinc().mul(3);\n}\n"
    thrice += "at::Tensor vander(const at::Tensor& x, const Scalar& by) {\n  return at::vander(x).mul(by);\n}\n"
    head = "#include <ATen/ATen.h>\n"  # which has all operators
    write(tree, {NEW: f"{head}namespace at::native {{\n{thrice}}} // namespace at::native\n"})
    assert build(tree) == 0
    code = """
import torch
for function in (torch.sinc, torch.thrice_sinc, torch.Tensor.thrice_sinc):
    x = torch.full((1,), 2.0, requires_grad=True)
    function(x).backward()
    print(x.grad.item())
x = torch.zeros(1, requires_grad=True)
print(hasattr(torch.sinh(x).grad_fn, "_saved_result"), torch.vander(torch.tensor([2, 3])).tolist())
"""
    known = ["False [[2, 1], [3, 1]]", "True [[1, 2], [1, 3]]"]
    assert python(tree, code).splitlines() == ["10.0", "12.0", "12.0", known[node_differs]]
    if node_differs:
        assert (
            python(tree, "import torch; print(torch.vander(torch.tensor([2, 3]), by=3).tolist())") == "[[3, 6], [3, 9]]"
        )


def test_new_overloads_of_an_operator_that_the_base_has(tree: Path) -> None:
    """By other arguments and with `out`: the base's stay, in headers and in Python, and the new ones come beside."""
    scaled = "- func: fliplr.scaled(Tensor self, Scalar by) -> Tensor\n  variants: function, method\n\n"
    out = "- func: fliplr.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n"
    out += "  dispatch:\n    CompositeExplicitAutograd: fliplr_out_mine\n\n"
    linalg = "- func: linalg_det.mine(Tensor A, int times) -> Tensor\n  python_module: linalg\n  variants: function\n\n"
    edit(tree, NATIVE_FUNCTIONS, "- func: fliplr(Tensor self)", f"{scaled}{out}{linalg}- func: fliplr(Tensor self)")
    names = ("fliplr", "linalg_det", "mul")
    head = "#include <ATen/native/mkldnn/OnlyThere.h>\n"
    head += "".join(f"#include <ATen/ops/{name}{kind}.h>\n" for name in names for kind in ("", "_native"))
    kernels = """\
Tensor fliplr(const Tensor& self, const Scalar& by) {
  return at::fliplr(self).mul(by).mul(kByTwo).div(2);
}
Tensor& fliplr_out_mine(const Tensor& self, Tensor& out) {
  return out.copy_(native::fliplr(self));
}
Tensor linalg_det(const Tensor& A, int64_t times) {
  return at::linalg_det(A).mul(times);
}
"""
    write(tree, {NEW: f"#include <ATen/core/Tensor.h>\n{head}namespace at::native {{\n{kernels}}} // namespace\n"})
    assert build(tree) == 0
    code = """
import torch
x = torch.tensor([[1.0, 2.0]])
print(torch.fliplr(x).tolist(), torch.fliplr(x, 3).tolist(), torch.fliplr(input=x, by=2.0).tolist())
print(x.fliplr().tolist(), x.fliplr(3).tolist())
out = torch.empty(1, 2)
print(torch.fliplr(x, out=out) is out, out.tolist(), torch.ops.aten.fliplr.overloads())
print(torch.linalg.det(torch.eye(2)).item(), torch._C._linalg.linalg_det(torch.eye(2), 4).item())
for wrong in ((3,), (x, "a")):
    try:
        torch.fliplr(*wrong)
    except TypeError as error:
        print(str(error).splitlines()[0])
"""
    assert python(tree, code).splitlines() == [
        "[[2.0, 1.0]] [[6.0, 3.0]] [[4.0, 2.0]]",
        "[[2.0, 1.0]] [[6.0, 3.0]]",
        "True [[2.0, 1.0]] ['default', 'scaled', 'out']",
        "1.0 4.0",
        "fliplr(): argument 'input' (position 1) must be Tensor, not int",
        "fliplr() takes 1 positional argument but 2 were given",
    ]


def test_a_source_that_gains_code_alone(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function and a registration, and no entry of a list: both are there."""
    end = "} // namespace at::native\n"
    mine = "static bool mine(const Tensor& self) {\n  return !is_nonzero(self);\n}\n\n"
    mine += 'extern "C" int gained() { return 7; }\n'
    rule = 'TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {\n  m.impl("is_nonzero", mine);\n}\n\n'
    edit(tree, NONZERO, end, f"{mine}\n{rule}{end}")
    edit(
        tree, NONZERO, "#include <ATen/core/Tensor.h>\n", "#include <ATen/core/Tensor.h>\n#include <torch/library.h>\n"
    )
    assert build(tree) == 0
    assert f"replaced {NONZERO} (changed)\n" in capsys.readouterr().out
    code = """
import ctypes, torch
print(ctypes.CDLL(torch.__path__[0] + "/lib/libtorch.so").gained(), torch.is_nonzero(torch.ones(1)))
with torch.autocast("cpu"):
    print(torch.is_nonzero(torch.ones(1)))
"""
    assert python(tree, code).splitlines() == ["7 True", "False"]


def test_a_header_that_inductor_compiles_with(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library has it. What was compiled with an earlier one, which caches below TMPDIR keep, runs no longer."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "import torch; print(torch.compile(lambda: torch.rand(8))().max().item())"
    drawn = re.search(r"inline float normalized_rand_cpu.*?\{\n(.*?)\n", (tree / PREFIX).read_text(), re.DOTALL)
    assert drawn
    line = drawn[1]
    for number in ("0.25f", "0.5f", "0.25f"):
        edit(tree, PREFIX, line, line := f"  return {number};")
        assert build(tree) == 0
        assert python(tree, code) == number.rstrip("f")
        assert python(tree, code) == number.rstrip("f")
