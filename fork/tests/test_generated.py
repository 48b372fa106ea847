"""What PyTorch's generators write for a branch: of whole lists, and cut to what the release has otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork.checkout.git import Checkout
from fork.checkout.release_tree import Tree
from fork.cpp.definitions import defined
from fork.cpp.slices import sliced
from fork.engine.generate.generated import AUTOGRAD, SHIMS, UPDATE, Generated
from fork.engine.generate.lists import List, of_release
from fork.engine.generate.schemas import redefinitions
from fork.engine.replace.replace import added_entries
from fork.engine.wheel import base as bases
from fork.engine.wheel.base import Base
from fork.errors import ForkError
from fork.tests.helpers import committed, edit, write
from fork.tests.tiny import UPSTREAM
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS

LIST = """\
- func: plain(Tensor a) -> Tensor
  variants: function

- func: half(Tensor a) -> Tensor
  dispatch:
    CPU, CUDA: half_cpu

- func: seen.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)
"""


def merged_list(folder: Path, text: str, before: str = LIST) -> List:
    """Of a branch whose list is this text, on a torch of the tests' own."""
    site = write(folder / "site", {"torchgen/packaged/ATen/native/native_functions.yaml": LIST})
    checkout = committed(folder / "tree", {**UPSTREAM, NATIVE_FUNCTIONS: before})
    tree = Tree.of(Checkout.open(checkout), "main", "2.13.0", "0" * 40, False, {})
    return of_release(
        Base(Path("python"), site, "2.13.0", site / "torch.dist-info"), tree, NATIVE_FUNCTIONS, text, set()
    )


def test_the_entries_that_a_branch_changes(tmp_path: Path) -> None:
    """Of another release's list, those alone; the line of a rejected one is the branch's."""
    before = LIST.replace("plain(Tensor a)", "plain(Tensor b)")
    added = before.replace("- func: half", "- func: mine(Tensor a) -> Tensor\n\n- func: half")
    found = merged_list(tmp_path, added.replace("half_cpu", "half_mine"), before)
    assert found.text == LIST.replace("half_cpu", "half_mine") and found.changed == {"half": 6}
    assert found.whole == found.text.rstrip() + "\n\n- func: mine(Tensor a) -> Tensor\n"
    assert found.place("list", 6) == "list:8" and found.place("list", 2) == "list"


def test_another_release_than_the_checkouts(tmp_path: Path) -> None:
    """The release must have the branch's entries as the branch found them."""
    before = LIST.replace("half_cpu", "half_other")
    assert merged_list(tmp_path / "same", before, before).text == LIST
    with pytest.raises(ForkError, match=":4 changes an entry that torch 2.13.0 has otherwise: rebase the branch"):
        merged_list(tmp_path / "otherwise", before.replace("half_other", "half_new"), before)
    start = LIST.partition("- func: seen")[0]
    with pytest.raises(ForkError, match=":8 adds seen.out, which torch 2.13.0 has: give it another name"):
        merged_list(tmp_path / "there", LIST, start)


def test_what_a_branch_adds_keeps_its_lines(tmp_path: Path) -> None:
    """So what the generators reject is told with the line of the branch's list."""
    start = "- func: first(Tensor self) -> Tensor\n\n- func: last(Tensor self) -> Tensor\n"
    one, two = (f"- func: {name}(Tensor self) -> Tensor\n  variants: method\n\n" for name in ("one", "two"))
    text = one + start.replace("- func: last", f"{two}- func: last")
    build: Any = SimpleNamespace(home=tmp_path)
    file = added_entries(build, NATIVE_FUNCTIONS, start, text)
    assert file
    lines = dict(enumerate(file.read_text().splitlines()))
    assert {n: line for n, line in lines.items() if line} == {
        n: line for n, line in enumerate(text.splitlines()) if line in (one + two).splitlines() and line
    }


REGISTERED = """\
#include <ATen/core/Tensor.h>
// @generated
namespace at {
namespace {
int helper(int a) { return a; }
int unused(int a) { return a; }
namespace {
int wrapper_one(int a) {
  #ifdef DEBUG
  check(a);
  #endif
  return helper(native::one(a));
}
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("one", TORCH_FN(wrapper_one));
}
}
namespace cpu {
int one(int a) { return wrapper_one(a); }
}
}
namespace at {
namespace {
int wrapper_two(int a) { return a.one(native::one(a)); }
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("two", TORCH_FN(wrapper_two));
}
}
static PyMethodDef methods[] = {
  {"one", wrapper_one},
  {"two", wrapper_two},
};
}
"""


def test_a_part_of_a_generated_source() -> None:
    """What differs, what names it by its own name, and what that needs."""
    part = sliced(REGISTERED, REGISTERED.replace("native::one(a));\n", "native::mine(a));\n"))
    after = part.after
    assert part.concerned == ["one", "wrapper_one"] and 'm.impl("one"' in part.before and "native::mine" in after
    for word in ("include", "int helper", "check(a)", "int one(", "wrapper_one(a)"):
        assert word in after
    for word in ("unused", "two", "PyMethodDef"):
        assert word not in after


def test_a_part_in_namespaces_of_its_own() -> None:
    """As a new kernel of an operator has where every operator has them for itself."""
    three = "namespace at {\nnamespace {\nnamespace {\nint three(int a) { return a; }\n}\n}\nnamespace cpu {\n}\n}\n"
    assert sliced(REGISTERED, REGISTERED + three).concerned == ["three"]


def test_a_part_that_names_a_word_or_all() -> None:
    assert sliced(REGISTERED, REGISTERED, ["helper"]).concerned == ["helper", "one", "wrapper_one"]
    assert sliced(REGISTERED, REGISTERED.replace("// @generated", "// @generated anew")).concerned == []
    macro = REGISTERED.replace("namespace cpu", "#define more\nnamespace cpu")
    assert sliced(REGISTERED, macro).after == macro
    everything = sliced(REGISTERED, REGISTERED, None).after
    assert all(word in everything for word in ("int unused", 'm.impl("one"', 'm.impl("two"', "FORK_ROWS {"))


def test_rows_of_a_table_of_methods() -> None:
    """Those that differ or are new, with their functions; and those that are gone."""
    more = REGISTERED.replace('{"two", wrapper_two}', '{"two", wrapper_two, 1},\n  {"three", wrapper_two}')
    after = sliced(REGISTERED, more).after
    assert 'FORK_ROWS {\n  {"two", wrapper_two, 1},  {"three", wrapper_two},' in after and '"one"' not in after
    assert "int wrapper_two" in after and after.endswith("{nullptr}\n};\n}\n")
    assert sliced(REGISTERED, REGISTERED.replace('  {"two", wrapper_two},\n', "")).gone == ["two"]


CLASSES = """\
static PyObject* one_getter(int a) { return static_cast<One*>(a)->a; }
static PyGetSetDef One_properties[] = { {"a", one_getter} };
static PyGetSetDef Two_properties[] = { {"a", two_getter} };
void initialize_autogenerated_functions_0(PyObject* module) {
  static PyTypeObject OneClass;
  addClass<One>(module, OneClass, "One", One_properties);
  static PyTypeObject TwoClass;
  addClass<Two>(module, TwoClass, "Two", Two_properties);
}
"""


def test_pythons_classes_of_nodes() -> None:
    after = sliced(CLASSES, CLASSES, ["One"]).after
    assert "FORK_CLASSES(initialize_autogenerated_functions_0)" in after and "static PyTypeObject OneClass;" in after
    assert "one_getter" in after and "Two" not in after


SCHEMAS = """\
  const std::vector<at::Tag> tags_0 = {at::Tag::core};
  m.def("one.out(Tensor a, int n=1) -> Tensor", tags_0);
  m.def("two(Tensor a, str s=\\"a, b\\", int[2] n=[1,1]) -> Tensor");
"""


def test_operators_that_are_defined_again() -> None:
    assert redefinitions(SCHEMAS, SCHEMAS) == ""
    assert redefinitions(SCHEMAS, SCHEMAS.replace("n=1", "n=2")) == (
        'AGAIN(one, "out", "one.out(Tensor a, int n=2) -> Tensor", ({at::Tag::core}))\n'
    )
    assert redefinitions(SCHEMAS, SCHEMAS.replace("{at::Tag::core}", "{}")).endswith('-> Tensor", ({}))\n')
    assert redefinitions(SCHEMAS, SCHEMAS.replace("[1,1]", "[2,2]")).startswith('AGAIN(two, "", ')
    variant = '  m.def("two.out(Tensor a) -> Tensor", {at::Tag::core});\n'
    assert redefinitions(SCHEMAS, SCHEMAS + variant).startswith("TORCH_LIBRARY_FRAGMENT(aten, m) {\n  m.def(")
    with pytest.raises(ForkError, match="gives two other arguments"):
        redefinitions(SCHEMAS, SCHEMAS.replace("int[2] n", "int[3] n"))


@pytest.fixture(scope="module")
def torchgen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed torch's generators, to be changed."""
    folder = tmp_path_factory.mktemp("generators")
    shutil.copytree(bases.installed().site / "torchgen", folder / "stage/torchgen")
    return folder


def generated(folder: Path, **changed: str) -> Generated:
    """By PyTorch's own generators, of lists with these texts."""
    base = bases.installed()
    shipped = {"native": NATIVE_FUNCTIONS, "derivatives": DERIVATIVES}
    lists = {path: List(changed.get(name) or base.read(path) or "", "") for name, path in shipped.items()}
    return Generated(base, folder / "stage", folder / "work", folder / "store", lists)


def test_what_differs(torchgen: Path) -> None:
    """Of a template, another list and the generators' own Python, with a formula: the parts of four files."""
    packaged = "stage/torchgen/packaged/autograd"
    assert generated(torchgen).differing == {}
    edit(torchgen, f"{packaged}/templates/ViewFuncs.cpp", "using at::Tensor;", "using at::Tensor;\nusing Mine = int;")
    edit(
        torchgen,
        f"{packaged}/deprecated.yaml",
        "- name: add_(Tensor(a!) self, Scalar",
        "- name: trace(Tensor self, int n) -> Tensor\n  aten: trace(self)\n\n- name: add_(Tensor(a!) self, Scalar",
    )
    edit(torchgen, f"{packaged}/gen_variable_type.py", '    "trace",\n', "")
    text = bases.installed().read(DERIVATIVES) or ""
    found = generated(torchgen, derivatives=text.replace("self: grad * self.sgn()", "self: grad * self.sgn() * 2"))
    sources = found.sources(set(), {})
    for part, _ in sources.values():  # What the tool adds to a part would concern all that it includes.
        assert defined(part.before or "", part.after) is not None
    whys = {path.removeprefix(AUTOGRAD).partition(".")[0]: why for path, (_, why) in sources.items()}
    names = {name.rstrip("_0123456789"): why.removeprefix("generated: ") for name, why in whys.items()}
    nodes = names.pop("Functions")
    assert nodes.startswith("AbsBackward0")
    assert names == {
        "ViewFuncs": names["ViewFuncs"],
        "python_torch_functions": "THPVariable_trace",
        "python_variable_methods": "THPVariable_trace",
        "VariableType": "trace",
    }
    assert found.unlike == set() == found.declared and found.definitions == ""
    programs = ("deprecated.yaml", "gen_variable_type.py", "templates/ViewFuncs.cpp")
    assert found.of == ", ".join(f"tools/autograd/{name}" for name in programs)


def test_what_the_generators_reject(torchgen: Path) -> None:
    text = bases.installed().read(DERIVATIVES) or ""
    wrong = text.replace("- name: abs(Tensor self)", "- name: absolutely(Tensor self)")
    found = generated(torchgen, derivatives=wrong)
    found.lists[DERIVATIVES].__dict__["written"] = f"# mine\n{wrong}"
    line = text.count("\n", 0, text.index("- name: abs(Tensor self)")) + 2
    with pytest.raises(ForkError, match=f"generators reject {DERIVATIVES}:{line}: .*absolutely"):
        found.differing  # noqa: B018


def test_functions_of_aotinductor_that_its_headers_do_not_declare(torchgen: Path) -> None:
    """PyTorch's generator compares them with the branch's headers, which somebody has to write again."""
    shims, fallbacks = Path("torch/include") / SHIMS, "stage/torchgen/aoti/fallback_ops.py"
    first = '"aten._adaptive_avg_pool2d.default"'
    shutil.copytree(bases.installed().site / shims, torchgen / "stage" / shims)
    edit(torchgen, fallbacks, first, f"# mine\n    {first}")
    generated(torchgen).differing  # noqa: B018
    edit(torchgen, fallbacks, first, f'"aten.softplus.default": {{}},\n    {first}')
    said = f"reject torchgen/aoti/fallback_ops.py.*: {SHIMS}.* declare other functions for AOTInductor: `{UPDATE}`"
    with pytest.raises(ForkError, match=said):
        generated(torchgen).differing  # noqa: B018


def test_other_tags(torchgen: Path) -> None:
    """Of an enumeration, whose values stand in all that was compiled with it."""
    header = "aten/src/ATen/core/enum_tag.h"
    found = generated(torchgen)
    found.__dict__["differing"] = {header: ("", "enum class Tag {};")}
    with pytest.raises(ForkError, match="tags.yaml has other tags, and the base's code has their numbers"):
        found.refuse_what_would_not_run()
