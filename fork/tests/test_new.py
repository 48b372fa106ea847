"""`fork new`: what it writes for a range of schemas is sound on the base, and what cannot be served is one sentence."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from fork.checkout.operators import operators
from fork.engine.pipeline import make
from fork.engine.wheel import base as bases
from fork.new import places, schema
from fork.series import Series
from fork.tests import ramp
from fork.tests.helpers import ROOT, Tool, edit, fork, fork_of, git, python, write
from fork.upstream import NATIVE_FUNCTIONS
from fork.verify import operator_map, soundness
from fork.weave import weave_all
from fork.weave.file_kinds import edited

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = pytest.mark.xdist_group("new")
GUIDE = ROOT / "guide/adding_an_operator.md"
PLAIN = "softsign_mul(Tensor a, Tensor b, float alpha=1.0) -> Tensor"
RICH = (
    "leaky_prod(Tensor self, Tensor b, Tensor? c=None, *, Scalar alpha=1, int[2] dims=[0,1], bool flag=False) -> "
    "(Tensor first, Tensor second)"
)
SCHEMAS = [
    PLAIN,
    RICH,
    "aaa(Tensor x) -> Tensor",
    "zzz_z(Tensor a, Tensor b, Tensor c) -> (Tensor, Tensor, Tensor)",
    "one_named(Tensor a, int n, Tensor? weight) -> Tensor out",
    "odd_types(Tensor a, SymInt n=3, str mode='x', float? e=None, SymInt[] z=[], *, bool flag=True) -> Tensor",
    "odd_lists(Tensor a, int[2] b, int[]? c=None, float[]? d=None, int[1] e=0, SymInt[3]? f=None) -> Tensor",
    "two_more(Tensor a, Tensor? b=None, Tensor? c=None) -> Tensor",
    "far(Tensor a, float low=-1e10, float tiny=1e-05, Scalar s=2.5, int k=-1) -> Tensor",
]
LISTS = ["catprod(Tensor[] rest, *, int n=2) -> Tensor", "many(Tensor[] b, Tensor a) -> (Tensor p, Tensor q)"]
# What an operator can be that the first two are not: its lists, its symbolic integers, and names that the written code
# has for something of its own. One build holds them all.
ODD = {
    "catprod(Tensor[] rest, Tensor other, Tensor? item=None, int n=2) -> Tensor": False,
    "sized_prod(Tensor t, SymInt n=3, SymInt[] product=[2]) -> (Tensor wide, Tensor tangent)": False,
    "scaled_prod(Tensor self, Tensor other, Tensor? term=None, *, SymInt n=2, float wide=2.0) -> Tensor": True,
    # PyTorch has an Activation.cpp.
    "activation(Tensor product, Tensor item, Tensor d) -> (Tensor, Tensor)": True,
}


def new(root: Path, text: str, explicit: bool = True) -> Series:
    assert fork("new", root, text, *(["--explicit"] if explicit else [])) == 0
    return Series.load(root)


@pytest.mark.parametrize("explicit", [False, True], ids=["composite", "explicit"])
@pytest.mark.parametrize("text", [PLAIN, RICH])
def test_what_it_writes_is_sound(text: str, explicit: bool, tmp_path: Path) -> None:
    series = new(tmp_path / "mine", text, explicit)
    base = bases.installed()
    assert [*soundness.files(series), *soundness.descriptions(series)] == []
    assert [*soundness.weaves(series, base.read, base.new_path)] == []
    left = "\n".join(soundness.marked(series, soundness.UNFINISHED))
    paths = ["PR.md", "common_methods_invocations.py", "_torch_docs.py", ".cpp"]
    for path in paths + ["derivatives.yaml"] * explicit:
        assert path in left


def test_an_option_is_no_fault(tmp_path: Path, tool: Tool) -> None:
    """It may stay as it is: what is left to write are faults, and an option is named beside them."""
    series = new(tmp_path / "mine", PLAIN)
    assert [line.partition(": ")[2].split(",")[0] for line in soundness.marked(series, soundness.OPTION)] == [
        "a batch rule",
        "a CUDA kernel",
        "other dtypes",
    ]
    for file in map(edited, (*series.state("explicit").values(), series.description_file(series.find()))):
        file.write_text(file.read_text().replace("TODO: ", ""))
    said = tool("--root", tmp_path / "mine", "check", "--static").out
    assert "  option  aten/src/ATen/native/native_functions.yaml:2: a CUDA kernel" in said
    # The sentence goes on in the next line of its comment.
    assert ": a batch rule, which calls the kernel once for the whole batch (as you like)\n" in said


def test_its_folder_is_ready_for_git_and_its_path_for_a_shell(tmp_path: Path, tool: Tool) -> None:
    """`git add` leaves builds out, and the commands to type next can be typed as they are."""
    root = tmp_path / "it's mine"
    commands = tool("new", root, PLAIN).out.partition("next     ")[2].splitlines()[:3]
    write(root, {"build/forks/torch.py": ""})
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    assert "build/forks" not in git(root, "ls-files") and ".gitignore" in git(root, "ls-files")
    assert [shlex.split(command)[:5] for command in commands] == [["python", "-m", "fork", "--root", str(root)]] * 3


def test_what_the_suites_need_is_installed_first(tmp_path: Path, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment that has the tool alone, PyTorch's suites end with a traceback."""
    monkeypatch.setattr("fork.commands.new.SUITES", ("numpy", "expecttest_of_nobody"))
    commands = tool("new", tmp_path / "mine", PLAIN).out.partition("next     ")[2].splitlines()
    assert commands[0] == "python -m pip install expecttest_of_nobody"
    assert commands[1].split()[:4] == ["python", "-m", "fork", "--root"]


def test_words_of_cpp_that_are_names_elsewhere(tmp_path: Path) -> None:
    assert new(tmp_path / "mine", "scaled(Tensor module, int final=1) -> Tensor").commits


def test_a_source_file_that_pytorch_has(tmp_path: Path) -> None:
    series = new(tmp_path / "mine", "unary_ops(Tensor a) -> Tensor")
    assert {Path(path).name for path in series.state("explicit") if path.endswith(("Kernel.cpp", ".h"))} == {
        "UnaryOpsOp.h",
        "UnaryOpsOpKernel.cpp",
        "FunctionsManual.h",
    }


@pytest.mark.parametrize("explicit", [False, True], ids=["composite", "explicit"])
def test_the_generators_take_it(explicit: bool, tmp_path: Path) -> None:
    """Every schema, all in one yaml so that PyTorch's generators start once, and no row of the map is missing."""
    texts = {"native_functions.yaml": "", "derivatives.yaml": ""}
    for n, text in enumerate(SCHEMAS + ([] if explicit else LISTS)):
        series = new(tmp_path / str(n), text, explicit)
        (commit,) = series.commits
        (name,) = operators(series, commit)
        assert [row.row for row, at in operator_map.entries(series, commit, name) if row.mark(at) == "lacks"] == []
        for path, file in series.state(commit).items():
            if Path(path).name in texts:
                texts[Path(path).name] += file.read_text()
            if path.endswith(".py"):
                compile(file.read_text(), path, "exec")
    for name, text in texts.items():
        (tmp_path / name).write_text(text or "[]\n")
    words = [tmp_path / "native_functions.yaml", tmp_path / "derivatives.yaml", tmp_path / "out"]
    base = bases.installed().site
    python(base, ROOT / "fork/engine/generate/generate.py", *words, FORK_BASE=str(base))
    functions = (tmp_path / "out/autograd/torch/csrc/autograd/generated/Functions.cpp").read_text()
    assert ("leaky_prod_backward" in functions) is explicit


REFUSED = {
    "f(Tensr a) -> Tensor": "unrecognized type Tensr",
    "f(Tensor a -> Tensor": "is not a schema: write NAME(TYPE ARGUMENT, ...) -> TYPE",
    "f(Tensor a, int) -> Tensor": "illegal argument 'int'",
    "2f(Tensor a) -> Tensor": "'2f' is not a name",
    "torch::f(Tensor a) -> Tensor": "'torch::f' is not a name",
    "f.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)": "f.out writes into an argument",
    "f_(Tensor(a!) self) -> Tensor(a!)": "f_ writes into an argument",
    "f.Tensor(Tensor a) -> Tensor": "begin with f alone",
    "_f(Tensor a) -> Tensor": "_f is private",
    "Fold(Tensor a) -> Tensor": "lower case, fold",
    "class(Tensor a) -> Tensor": "class is a word of Python or C++",
    "f(Tensor xor) -> Tensor": "the argument xor has a name that means something else",
    "relu(Tensor a) -> Tensor": "has an operator relu already",
    "f(Tensor a, int b=x) -> Tensor": "x is not a value of b, which is int: write one such as 2",
    "f(Tensor a, bool b=true) -> Tensor": "true is not a value of b, which is bool: write one such as True",
    "f(Tensor a, str b=sum) -> Tensor": 'sum is not a value of b, which is str: write one such as "text"',
    "f(Tensor a, int[] b=2,3) -> Tensor": "illegal argument '3'",
    "f(Tensor a, int[2] b=[x,1]) -> Tensor": "[x,1] is not a value of b, which is int[2]: write one such as [2, 2]",
    "f(Tensor a, Tensor b=3) -> Tensor": "3 is not a value of b, which is Tensor: leave it out",
    "f(Tensor a, Tensor? b=3) -> Tensor": "3 is not a value of b, which is Tensor?: write None",
    "f(Tensor a, Tensor a) -> Tensor": "the argument a twice: rename one",
    "f(Tensor a, Tensor name) -> Tensor": "the argument name has a name that means something else",
    "f(Tensor a, Tensor grad) -> Tensor": "the argument grad has a name that means something else",
    "f(int n, Tensor a) -> Tensor": "its first argument is not a Tensor",
    "f(Tensor a, int b=1, int c) -> Tensor": "b before it has one: give c one too, or write it before b",
    "f(Tensor a, int b=1, *, int c) -> Tensor": "c has no default, and b before it has one",
    "f(Tensor a, Tensor[] b) -> Tensor": "b is a list of tensors behind the first argument",
    "f(Tensor[] a, Tensor[] b) -> Tensor": "b is a list of tensors behind the first argument",
    "f(Tensor self, Tensor input) -> Tensor": "the argument input twice: rename one; in Python self is called input",
    "f(Tensor a, float b=inf) -> Tensor": "b has the default inf",
    "f(Tensor a, float b=-inf) -> Tensor": "write `float? b=None`, and let None mean it",
    "jit(Tensor a) -> Tensor": "has a torch.jit already",
    "save(Tensor a) -> Tensor": "has a torch.save already",
    "onnx(Tensor a) -> Tensor": "has a torch.onnx already",
    "grad(Tensor a) -> Tensor": "grad is in the name of test_",
    "f(Tensor a, ScalarType dtype) -> Tensor": "no sample value is known for dtype of type ScalarType",
    "f(Tensor a, bool[3] mask) -> Tensor": "no sample value is known for mask of type bool[3]",
    "f(Tensor(a) x) -> Tensor(a)": "a view of x",
    "f(Tensor a, *, Tensor b) -> Tensor": "b is a tensor behind the *",
    "f(Tensor a) -> ()": "f returns nothing",
    "f(Tensor a) -> int": "f returns int: a first operator returns tensors only, such as `-> (Tensor, Tensor)`",
    "f(Tensor a) -> (Tensor, Tensor b)": "names some of its outputs",
    "f(Tensor a) -> (Tensor a, Tensor b)": "the output a has a name that something else has",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_schema_that_is_not_served_is_one_sentence(text: str, tmp_path: Path, tool: Tool) -> None:
    assert REFUSED[text] in tool.refusal("new", tmp_path / "mine", text)
    assert not (tmp_path / "mine").exists()


def test_a_list_of_tensors_has_no_kernel(tmp_path: Path, tool: Tool) -> None:
    assert "leave --explicit out" in tool.refusal("new", tmp_path / "mine", LISTS[0], "--explicit")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, tool: Tool) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty" in tool.refusal("new", tmp_path, PLAIN)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_spaces_do_not_matter() -> None:
    close = schema.read("f(Tensor a,Tensor b,int[2] d=[0, 1])->(Tensor x,Tensor y)", explicit=False)
    wide = schema.read("f( Tensor a,  Tensor b, int[2] d = [0,1] ) -> ( Tensor x,\n Tensor y )", explicit=False)
    entry = schema.read("- func: f(Tensor a, Tensor b, int[2] d=[0, 1]) -> (Tensor x, Tensor y)", explicit=False)
    assert entry == close == wide
    assert close.schema == "f(Tensor a, Tensor b, int[2] d=[0,1]) -> (Tensor x, Tensor y)"


def test_entries_stand_beside_their_neighbours_in_the_alphabet() -> None:
    read = bases.installed().read
    native = "aten/src/ATen/native/native_functions.yaml"
    for name, neighbour in (("aaa", "before abs"), ("tanh_shift", "after tanh_backward"), ("zzz", "after zeros_like")):
        found = places.anchors([native, "torch/overrides.py"], name, read)
        assert found[native] == {"file": neighbour}
        assert found["torch/overrides.py"]["get_testing_overrides.ret"].startswith(neighbour.split()[0] + " torch.")


RULES = "aten/src/ATen/functorch/BatchRulesDecompositions.cpp"
SOURCES = {
    RULES: """\
#include <ATen/functorch/BatchRulesHelper.h>

namespace at::functorch {

TORCH_LIBRARY_IMPL(aten, FuncTorchVmapMode, m) {
  OP_DECOMPOSE(dropout_);
}

TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
  OP_DECOMPOSE(vstack);
}

} // namespace at::functorch
""",
    "build_variables.bzl": """\
aten_native_source_codegen_list = [
    "aten/src/ATen/native/cpu/airy_ai.cpp",
]

aten_native_source_non_codegen_list = [
    "aten/src/ATen/native/xnnpack/Shim.cpp",
]
""",
    "torch/csrc/autograd/FunctionsManual.cpp": """\
#include <torch/csrc/autograd/FunctionsManual.h>

namespace torch::autograd::generated::details {

Tensor mul_jvp(const Tensor& a);

} // namespace torch::autograd::generated::details
""",
    "test/test_namedtuple_return_api.py": """\
from collections import namedtuple

all_operators_with_namedtuple_return = {
    'max', 'aminmax',
}


class TestNamedTupleAPI(TestCase):
    def test_namedtuple_return(self):
        op = namedtuple('op', ['operators', 'input', 'names', 'hasout'])
        operators = [
            op(operators=['aminmax'], input=(), names=('min', 'max'), hasout=True),
        ]
""",
    "docs/source/torch.md": "### Pointwise Ops\n\n    abs\n    hypot\n    mul\n\n### Reduction Ops\n\n    all\n",
}


def test_the_sources_that_no_wheel_ships_have_their_places_too(tmp_path: Path) -> None:
    series = new(tmp_path / "mine", RICH)
    state = {path: file for path, file in series.state("explicit").items() if path in SOURCES}
    woven = weave_all(state, series.anchors, SOURCES.get)
    assert "  OP_DECOMPOSE(vstack);\n  OP_DECOMPOSE(leaky_prod);\n}" in woven[RULES]
    assert woven["docs/source/torch.md"].count("    hypot\n    leaky_prod\n    mul\n") == 1
    for path, text in woven.items():
        added = [line for line in text.splitlines() if line not in SOURCES[path].splitlines()]
        assert any("leaky_prod" in line or "LeakyProd" in line for line in added), path


def merged(root: Path, stacks: list[Series]) -> Series:
    """One stack of several, and so one build: what two fragments of a path hold can stand in one."""
    texts: dict[str, str] = {}
    listed: dict[str, Any] = {"prs": [{"name": "all", "title": "All", "introduces": []}], "anchors": {}}
    for series in stacks:
        for path, file in series.state(series.find()).items():
            texts[path] = "\n".join([*([texts[path]] if path in texts else []), file.read_text()])
        own = yaml.safe_load((series.root / "stack/series.yaml").read_text())
        listed["anchors"] = own["anchors"] | listed["anchors"]
    listed["prs"][0]["introduces"] = list(texts)
    write(root, texts | {"stack/series.yaml": yaml.safe_dump(listed)})
    return Series.load(root)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Composite operators, ones with a kernel, the guide's variants, and kinds that only others write, in one build."""
    root = tmp_path_factory.mktemp("built")
    variants = new(root / "variants", "gated(Tensor self, Tensor b) -> Tensor")
    follow_guide(variants.root)
    stacks = [new(root / "plain", PLAIN, False), new(root / "rich", RICH), Series.load(variants.root)]
    stacks += [new(root / text.split("(")[0], text, with_kernel) for text, with_kernel in ODD.items()]
    stacks.append(Series.load(ramp.stack(root / "ramp")))
    return make(fork_of(merged(root / "all", stacks).root))


def follow_guide(root: Path) -> None:
    """Adds to a stack of `gated` what the guide's section on variants says, from the guide's own blocks."""
    section = GUIDE.read_text().partition("### In-place and out= variants\n")[2].partition("\n### ")[0]
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    native = root / NATIVE_FUNCTIONS
    native.write_text(native.read_text() + "\n" + blocks["yaml"])
    end, rule = "} // namespace at::native\n", "  OP_DECOMPOSE(gated);\n"
    edit(root, "aten/src/ATen/native/Gated.cpp", end, f"{blocks['cpp']}\n{end}")
    edit(root, RULES, rule, f"{rule}  OP_DECOMPOSE(gated_);\n")
    info = "torch/testing/_internal/common_methods_invocations.py"
    edit(root, info, "           supports_out=False,\n", blocks["python"])


@pytest.mark.long
def test_what_it_writes_builds_and_runs_at_once(site: Path) -> None:
    code = """
import torch
a, b, c = (torch.randn(3, dtype=torch.double, requires_grad=True) for _ in range(3))
assert torch.equal(torch.softsign_mul(a, b, alpha=2.0), a * b * 2)
first, second = torch.leaky_prod(a, b, c, alpha=3)
assert torch.allclose(first, a * b * c * 3) and torch.allclose(second, 2 * first)
print(type(first.grad_fn).__name__, type(torch.leaky_prod(a, b)).__name__)
target = torch.empty(0, dtype=torch.double)
with torch.no_grad():
    assert torch.equal(torch.gated(a, b, out=target), a * b) and torch.equal(target, a * b)
    assert torch.equal(torch.gated_(target, b), a * b * b) and torch.equal(target, a * b * b)
assert torch.equal(torch.catprod([a, b], c), c * c * a * b * 2)
assert torch.equal(torch.sized_prod(a, 7, [1, 2]).wide, a * a)
try:
    torch.leaky_prod(a, b[:2])
except RuntimeError as error:
    print(error)
"""
    assert python(site, "-c", code).splitlines() == [
        "LeakyProdBackward0 leaky_prod",
        "leaky_prod: expected b to have the size of self, [3], but got [2]",
    ]


@pytest.mark.long
def test_structured_operators_modules_and_autogen(site: Path) -> None:
    code = """
import torch
x, wanted = torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 2.0])
assert torch.equal(torch._C._special.special_ramp(x), wanted)
out = torch.empty(0)
assert torch._C._special.special_ramp(x, out=out) is out and torch.equal(out, wanted)
assert torch._C._special.special_ramp(x.to("meta")).shape == (2,)
assert torch.equal(torch.compile(torch.ops.aten.special_ramp, backend="aot_eager")(x), wanted)
assert torch._C._nn.ramp_loss(x) == 2 and torch._C._nn._parse_to("cpu")[0].type == "cpu"
assert torch.equal(torch.ops.aten.ramp_shift.out(x, 1.0, out=out), torch.tensor([0.0, 1.0]))
class Plain(torch.Tensor): pass
assert type(torch._C._special.special_ramp(x.as_subclass(Plain))) is Plain
print(hasattr(torch, "ramp_loss"), torch._C._special.special_exp2.__name__)
"""
    assert python(site, "-c", code) == "False special_exp2\n"


@pytest.mark.long
def test_the_suites_are_green_at_once(site: Path) -> None:
    """One test of each kind; the guide tells of the whole suites."""
    tests = ["test_fn_gradgrad", "fwgrad_bwgrad", "test_errors", "numpy_ref", "test_dtypes", "op_has_batch_rule"]
    tests += ["test_quick", "test_out", "test_inplace_grad", "exhaustive_out"]
    names = [text.partition("(")[0] for text in (PLAIN, RICH, "gated", *ODD)]
    chosen = f"({' or '.join(names)}) and ({' or '.join(tests)})"
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings", "test/test_ops.py", "-k", chosen)
    printed = python(site, *words, SUITES_PYTEST_K="")
    assert int(printed.split(" passed")[0].split()[-1]) >= len(names) * (len(tests) - 3)  # three are for variants alone
