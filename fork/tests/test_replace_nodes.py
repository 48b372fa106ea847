"""A formula that the base hides takes effect through the nodes and kernels that are generated again, or is refused.

The base is a library of the tests' own, whose nodes and kernels lie in files as PyTorch's generators name them. A few
lines here stand for these generators: they write such code for the operators that they are asked for.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork.checkout.git import Checkout
from fork.checkout.release_tree import Tree
from fork.engine.binary.libraries import Libraries
from fork.engine.compile.compiler import Compiler
from fork.engine.generate.generated import AUTOGRAD as GENERATED
from fork.engine.generate.generated import NODES as HEADER
from fork.engine.generate.generated import Generated
from fork.engine.link.leading import WRITABLE
from fork.engine.replace.decide import Decision
from fork.engine.replace.replace import generated_of
from fork.engine.replace.search import Search
from fork.errors import ForkError
from fork.tests.helpers import flags_of, git, write
from fork.tests.test_replace import FOLDER, Small, compiled
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS

MANUAL = "torch/csrc/autograd/FunctionsManual.cpp"
CHECKED = "torch/csrc/autograd/Checked.cpp"
DECLARED = "torch/csrc/autograd/FunctionsManual.h"
MAKER = f"{FOLDER}/Maker.cpp"
Edit = tuple[str, str, str]  # of a file: text before, and after
SHIPPED = "torchgen/packaged/"
OPERATORS = ("half", "third", "fifth", "twin", "copied")
FORMULAS = "\n".join(
    f"- name: {name}(Tensor self) -> Tensor\n  self: {formula}\n"
    for name, formula in zip(
        OPERATORS, ("half_backward(grad)", "third_backward(grad)", "fifth_backward(grad)", "grad", "grad")
    )
)
NATIVE = "\n".join(f"- func: {name}(Tensor self) -> Tensor\n" for name in OPERATORS)
DETAILS = "namespace torch::autograd::generated::details {\n"
WRITTEN = {
    f"{FOLDER}/Library.h": """\
#pragma once
#define TORCH_API __attribute__((visibility("default")))
namespace torch {
using Kernel = int (*)(int);
struct TORCH_API Library {
  void impl(const char* name, Kernel kernel);
};
#define TORCH_LIBRARY_IMPL(space, key, m)                                     \\
  static void begin(::torch::Library& m);                                     \\
  static const bool begun = [] { ::torch::Library all; begin(all); return true; }(); \\
  static void begin(::torch::Library& m)
TORCH_API int by_hand(int a);
} // namespace torch
namespace torch::autograd {
struct TORCH_API Node {
  virtual ~Node() = default;
  virtual int apply(int grad) = 0;
};
TORCH_API int run(Node* node, int grad);
} // namespace torch::autograd
""",
    DECLARED: f"""\
#pragma once
#include <ATen/native/Library.h>
{DETAILS}
int half_backward(int grad, int by = 2);
int third_backward(int grad);
int fifth_backward(
    int grad);
int checked(int a);
struct Step {{
  int wide = 0;
}};
int undefined(int a);
inline int same(int a) {{ return a; }}
}} // namespace torch::autograd::generated::details
""",
    MANUAL: f"""\
#include <{DECLARED}>
{DETAILS}
int half_backward(int grad, int by) {{ return grad / by; }}
int third_backward(int grad) {{ return grad / 3; }}
int fifth_backward(int grad) {{ return grad / 5; }}
}} // namespace torch::autograd::generated::details
""",
    CHECKED: f"""\
#include <{DECLARED}>
{DETAILS}
int checked(int a) {{ return a < 0 ? 0 : a; }}
}} // namespace torch::autograd::generated::details
""",
    MAKER: f"""\
#include <{HEADER}>
namespace torch {{
int by_hand(int a) {{ return autograd::run(new autograd::generated::ThirdBackward0, a); }}
}} // namespace torch
""",
    f"{FOLDER}/Main.cpp": """\
#include <ATen/native/Library.h>
#include <cstdio>
namespace torch {
static Kernel kernels[128];
int autograd::run(Node* node, int grad) {
  int found = node->apply(grad);
  delete node;
  return found;
}
void Library::impl(const char* name, Kernel kernel) { kernels[name[1]] = kernel; }
extern "C" TORCH_API void report() {
  std::printf("%d %d %d %d\\n", kernels['a'](60), kernels['h'](60), kernels['i'](60), by_hand(60));
}
} // namespace torch
""",
}


def code(formulas: str) -> tuple[str, str, str]:
    """What the generators write of these entries: the header, the nodes, and the kernels with their registration."""
    found = [entry for entry in re.findall(r"- name: (\w+)\(.*\n +self: (.+)", formulas) if entry[0] != "copied"]
    head = "#pragma once\n#include <ATen/native/Library.h>\nnamespace torch::autograd::generated {\n"
    include = f"#include <{HEADER}>\n#include <{DECLARED}>\n"
    nodes = f"{include}namespace torch::autograd::generated {{\nusing namespace details;\n"
    kernels = f"{include}namespace torch::autograd::VariableType {{\nnamespace {{\n"
    for name, formula in found:
        node = f"{name.title()}Backward0"
        if name != "twin":
            saved = "int number = 7;\n  int self_ = 60;" if "self" in formula else "int number = 7;"
            head += f"struct TORCH_API {node} : public Node {{\n  int apply(int grad) override;\n  {saved}\n}};\n"
            nodes += f"int {node}::apply(int grad) {{ return {formula.replace('self', 'self_')} + number - 7; }}\n"
        node = node.replace("Twin", "Fifth")
        made = f"checked(run(new generated::{node}, a)) + Step().wide"
        kernels += f"int {name}(int a) {{ using namespace generated::details; return {made}; }}\n"
    registered = "".join(f'  m.impl("{name}", torch::autograd::VariableType::{name});\n' for name, _ in found)
    kernels += f"}}\n}}\nnamespace {{\nTORCH_LIBRARY_IMPL(aten, Autograd, m) {{\n{registered}}}\n}}\n"
    return head + "}\n", nodes + "}\n", kernels


class Base(Small):
    """The base, and its checkout without what is generated."""

    def __init__(self, folder: Path) -> None:
        header, nodes, kernels = code(FORMULAS)
        made = {HEADER: header, GENERATED + "Functions.cpp": nodes, GENERATED + "VariableType_0.cpp": kernels}
        super().__init__(folder, sources={**WRITTEN, **made, DERIVATIVES: FORMULAS, NATIVE_FUNCTIONS: NATIVE})
        git(self.tree, "rm", "--quiet", "-r", GENERATED)
        git(self.tree, "commit", "--quiet", "--amend", "--no-edit")
        lists = {"autograd/derivatives.yaml": FORMULAS, "ATen/native/native_functions.yaml": NATIVE}
        write(self.base.site, {SHIPPED + path: text for path, text in lists.items()})
        templates = {
            f"autograd/templates/{name}.cpp": f"#include <{DECLARED}>\n" for name in ("Functions", "VariableType")
        }
        templates["autograd/gen_variable_type.py"] = 'CHECK = "checked({name})"\n'
        write(self.base.site, {SHIPPED + path: text for path, text in templates.items()})

    def planted(self, *edits: Edit, limit: int = 40) -> tuple[str, str, list[str]]:
        """What the base prints with changes in front; what the library prints built with them; what is replaced."""
        texts = {**WRITTEN, DERIVATIVES: FORMULAS}
        for path, before, after in edits:
            assert texts[path].count(before) == 1
            texts[path] = texts[path].replace(before, after)
        changed = {path: texts[path] for path, _, _ in edits}
        write(self.tree, changed)
        tree, work = (
            Tree.of(Checkout.open(self.tree), "main", self.base.version, "0" * 40, False, {}),
            self.folder / "work",
        )
        own = work / "changed"
        headers = {path: text for path, text in changed.items() if path.endswith(".h")}
        shutil.rmtree(own, ignore_errors=True)
        write(own, {path.removeprefix("aten/src/"): text for path, text in headers.items()})
        build: Any = SimpleNamespace(base=self.base, home=self.folder, folder=self.folder / "store")
        differing = generated_of(build, tree, changed, self.folder / "stage")
        released = Compiler(flags_of(self.base, work / "whole", [], capabilities={"DEFAULT": ()}))
        compiler = Compiler(flags_of(self.base, work / "whole", [own, work / "joined"], capabilities={"DEFAULT": ()}))
        compiler = compiler if differing.headers or headers else released
        search = Search(Decision(tree, Libraries(self.base, work), compiler, released, limit, differing, {}))
        found = search.find({path: text for path, text in changed.items() if path.endswith(".cpp")}, headers)
        front = self.folder / "libtorch.so"
        compiled("-shared", WRITABLE, *self.in_front(found), self.library, "-Wl,--no-undefined", "-o", front)
        header, functions, kernels = code(texts[DERIVATIVES])
        made = {HEADER: header, GENERATED + "Functions.cpp": functions, GENERATED + "VariableType_0.cpp": kernels}
        whole = self.built({**texts, **made}, self.folder / "oracle/libtorch_cpu.so")
        return self.printed(str(front)), self.printed(library=whole), list(found.told)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def base(made: Base, monkeypatch: pytest.MonkeyPatch) -> Iterator[Base]:
    def run(generated: Generated, site: Path, part: str, lists: Mapping[str, str], out: Path) -> Path:
        header, nodes, kernels = code(lists[DERIVATIVES]) if part == "autograd" else ("", "", "")
        files = {HEADER: header, GENERATED + "Functions.cpp": nodes, GENERATED + "VariableType_0.cpp": kernels}
        return write(out, files if part == "autograd" else {"aten/src/ATen/Empty.cpp": ""})

    monkeypatch.setattr(Generated, "_run", run)
    yield made
    git(made.tree, "checkout", "--quiet", "--force", "main")


NODES, KERNELS = f"{GENERATED}Functions.cpp", f"{GENERATED}VariableType_0.cpp"
ALL = f"{KERNELS} (generated: fifth, half, third and 1 more)"
LIBRARY, USES = f"{FOLDER}/Library.h", f"includes the changed {DECLARED}"
EFFECTIVE: dict[str, tuple[list[Edit], set[str]]] = {
    "a hidden formula": (
        [(MANUAL, "grad / by", "grad / by / 2")],
        {f"{MANUAL} (changed)"},  # The node and the kernel stay: the base's copy jumps to the new one.
    ),
    "what all kernels call": (
        [(CHECKED, "a < 0 ? 0 : a", "a < 0 ? 0 : a + 1")],
        {f"{CHECKED} (changed)"},
    ),
    "a node that others make too": (
        [(MANUAL, "grad / 5", "grad / 6")],
        {f"{MANUAL} (changed)"},
    ),
    "a signature": (
        [
            (DECLARED, "third_backward(int grad)", "third_backward(int grad, int by)"),
            (
                MANUAL,
                "third_backward(int grad) { return grad / 3",
                "third_backward(int grad, int by) { return grad / by",
            ),
            (DERIVATIVES, "third_backward(grad)", "third_backward(grad, 4)"),
        ],
        {f"{MANUAL} (changed)", f"{NODES} (generated: ThirdBackward0)"},
    ),
    "an argument's default": (
        [(DECLARED, "by = 2", "by = 4")],
        {f"{NODES} (generated: HalfBackward0)"},
    ),
    "an overload": (
        [
            (
                DECLARED,
                "int third_backward(int grad);",
                "int third_backward(int grad);\nint third_backward(long grad);",
            ),
            (MANUAL, "int fifth", "int third_backward(long grad) { return grad / 6; }\nint fifth"),
            (DERIVATIVES, "third_backward(grad)", "third_backward(long(grad))"),
        ],
        {f"{MANUAL} (changed)", f"{NODES} (generated: ThirdBackward0)"},
    ),
    "a declaration": (
        [
            (DECLARED, "int checked", "int fourth_backward(int grad);\nint checked"),
            (MANUAL, "int fifth", "int fourth_backward(int grad) { return grad / 4; }\nint fifth"),
            (DERIVATIVES, "third_backward(grad)", "fourth_backward(grad)"),
        ],
        {f"{MANUAL} (changed)", f"{NODES} (generated: ThirdBackward0)"},
    ),
    "an entry": (
        [(DERIVATIVES, "self: third_backward(grad)", "self: half_backward(grad)")],
        {f"{NODES} (generated: ThirdBackward0)"},  # It calls the base's half_backward.
    ),
    "what is saved": (
        [(DERIVATIVES, "self: third_backward(grad)", "self: grad * self")],
        {
            f"{MAKER} (makes ThirdBackward0)",
            f"{NODES} (generated: ThirdBackward0)",
            f"{KERNELS} (generated: third)",
        },
    ),
    "what all kernels call, declared otherwise": (
        [
            (DECLARED, "checked(int a)", "checked(int a, int b = 3)"),
            (CHECKED, "checked(int a) { return a < 0 ? 0 : a", "checked(int a, int b) { return a < 0 ? 0 : a + b"),
        ],
        {f"{CHECKED} (changed)", ALL},
    ),
    "a class that all kernels have": (
        [(DECLARED, "int wide = 0", "int before = 1;\n  int wide = 2")],
        {f"{NODES} ({USES})", f"{KERNELS} ({USES})"},
    ),
    "a class that a generated header passes on": (
        [
            (LIBRARY, "Node() = default;", "Node() = default;\n  int more = 5;"),
            (f"{FOLDER}/Main.cpp", "node->apply(grad)", "node->apply(grad) + node->more"),
        ],
        {
            f"{FOLDER}/Main.cpp (changed)",
            *(f"{path} ({USES.replace(DECLARED, LIBRARY)})" for path in (MAKER, NODES, KERNELS)),
        },
    ),
    "a function inside a header": (
        [
            (DECLARED, "return a;", "return a + 1;"),
            (DERIVATIVES, "third_backward(grad)", "same(third_backward(grad))"),
        ],
        {f"{NODES} (generated: ThirdBackward0)"},
    ),
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_a_formula_takes_effect(base: Base, name: str) -> None:
    edits, expected = EFFECTIVE[name]
    here, whole, told = base.planted(*edits)
    assert here == whole != base.printed()
    assert set(told) == expected


REFUSED: dict[str, tuple[list[Edit], str]] = {
    "a formula that does not compile": (
        [(DERIVATIVES, "third_backward(grad)", "thrid_backward(grad)")],
        f"{DERIVATIVES}:4 gives code that does not compile for the wheel: 'thrid_backward' was not declared",
    ),
    "a kernel that is written by hand": (
        [
            (
                DERIVATIVES,
                "copied(Tensor self) -> Tensor\n  self: grad",
                "copied(Tensor self) -> Tensor\n  self: grad * 2",
            ),
        ],
        f"{DERIVATIVES}:13 changes copied, whose autograd kernel PyTorch does not generate",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_formula_that_would_not_run_is_refused(base: Base, name: str) -> None:
    edits, reason = REFUSED[name]
    with pytest.raises(ForkError) as error:
        base.planted(*edits)
    assert reason in str(error.value).replace("‘", "'").replace("’", "'")


def test_many_nodes_need_an_option(base: Base) -> None:
    """Sources that generators write count, too."""
    with pytest.raises(ForkError, match="^2 sources have to be compiled.*`--many 2` allows"):
        edit = ("self: half_backward(grad)", "self: half_backward(grad, 3)")
        base.planted((MANUAL, "grad / 5", "grad / 7"), (DERIVATIVES, *edit), limit=1)
    with pytest.raises(ForkError, match="^4 sources have to be compiled.*`--many 4` allows"):
        base.planted((DECLARED, "int wide = 0", "int before = 1;\n  int wide = 2"), limit=3)


def test_an_entry_that_the_release_has_otherwise(base: Base) -> None:
    shipped = {SHIPPED + "autograd/derivatives.yaml": FORMULAS.replace("third_backward(grad)", "grad / 3")}
    write(base.base.site, shipped)
    try:
        with pytest.raises(ForkError, match=f"{DERIVATIVES}:4 changes an entry that torch 2.13.0 has otherwise"):
            base.planted((DERIVATIVES, "self: third_backward(grad)", "self: third_backward(grad) * 2"))
    finally:
        write(base.base.site, {SHIPPED + "autograd/derivatives.yaml": FORMULAS})
