"""From a file and a branch's version of it to a fragment and an anchor, which give the branch's version again."""

from pytest import mark

from fork.weave import weave
from fork.weave.cpp_inverse import has_code, pieces_inside_functions
from fork.weave.file_kinds import Fragment, Place
from fork.weave.unweave import reasons, unweave

PYTHON = """\
import os
from torch import first, last


class Registry:
    def __init__(self):
        self.ops = {
            "one": 1,  # the first
            "two": 2
        }

    def find(self, name):
        if name in self.ops:
            found = self.ops[name]
            return found
        return None


names = ["one", "two"]
more = frozenset(
    [
        ("one", 1),
        ("two", 2),
    ]
)


@register("one")
def one(x):
    return x


def two(x):
    return x + 1
"""

CPP = """\
#include <ATen/Tensor.h>
#include <ATen/native/One.h>

#define TWICE(x) ((x) + (x))
#define LIST(_) \\
  _(one)        \\
  _(two)

namespace at {
namespace {

using scalar = double;

double helper(scalar x) {
  return TWICE(x);
}

} // namespace

namespace native {

struct Options {
  int one;
};

Tensor one(const Tensor& a) {
  if (a.defined()) {
    return a;
  }
  return a;
}

Tensor two(const Tensor& a) {
  return a;
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("one", one);
  m.impl("two", two);
}

} // namespace native
} // namespace at
"""

SWITCH = """\
namespace at {

void cast(Node* node) {
  switch (node->kind()) {
    case aten::one:
    case aten::two:
      half(node);
      break;
  }
}

} // namespace at
"""

YAML = """\
# The first.
- func: one(Tensor a) -> Tensor
  variants: function

# The second.
- func: two(Tensor a) -> Tensor
"""

TABLE = """\
Operators
~~~~~~~~~

    one
    two

Others
~~~~~~

    one
"""

SOURCES = 'a = [\n    "One.cpp",\n]\n'

PATHS = {PYTHON: "a.py", CPP: "a.cpp", SWITCH: "a.cpp", YAML: "native_functions.yaml", TABLE: "docs.rst"}
PATHS |= {SOURCES: "sources.bzl"}
# What a branch changes in which text, and how its place is told.
A, B = "structure", "lines"
CASES: list[tuple[str, dict[str, str], str]] = [
    (PYTHON, {'names = ["one", "two"]': 'names = ["one", "more", "two"]'}, A),
    (PYTHON, {'            "two": 2\n': '            "two": 2,\n            "three": 3\n'}, A),
    (PYTHON, {'        ("two", 2),\n': '        # why\n        ("three", 3),\n        ("two", 2),\n'}, A),
    (PYTHON, {'            "two"': '            "x": 3,  # so\n            "two"'}, B),
    (PYTHON, {"            return found\n": "            log(found)\n            return found\n"}, A),
    (PYTHON, {"        return None\n": "\n\n        log(name)\n        return None\n"}, B),
    (PYTHON, {"\n\ndef two": "\n\n@register(2)\n@cached\ndef three(x):\n    return 3\n\n\ndef two"}, A),
    (PYTHON, {"\n\ndef two": "\n\ndef three(x):\n    return 3\n\ndef two"}, B),
    (PYTHON, {"import os\n": "import os\nimport sys\n"}, A),
    (PYTHON, {"first, last": "first, former, last"}, A),
    (PYTHON, {"x + 1": "x + 2"}, B),
    (PYTHON, {"    def find": "    def size(self):\n        return 0\n\n    def find"}, A),
    (
        PYTHON,
        {"names = [": 'text = """\nx\n"""\nnames = [', '\n        ("two"': '\n        ("x", 1),\n        ("two"'},
        B,
    ),
    (CPP, {"Tensor two(": "Tensor three() {\n  return TWICE(one({}));\n}\n\nTensor two("}, A),
    (CPP, {"Tensor two(": "Tensor three() {\n  return {};\n}\nTensor two("}, B),
    (CPP, {"} // namespace\n": "scalar other(scalar x) {\n  return x;\n}\n\n} // namespace\n"}, B),
    (CPP, {'  m.impl("two"': '  m.impl("three", three);\n  m.impl("two"'}, A),
    (CPP, {"  _(two)": "  _(three)      \\\n  _(two)"}, A),
    (CPP, {"  _(two)": "  _(two) \\\n  _(three)"}, A),
    (CPP, {"One.h>\n": "One.h>\n#include <ATen/native/Two.h>\n"}, A),
    (CPP, {"namespace at {": "#define FOUR 4\n\nnamespace at {"}, B),
    (CPP, {"    return a;\n": "    return a + 1;\n"}, "changes `return a;`"),
    (CPP, {"    return a;\n": "    f(a);\n    return a;\n"}, "stands inside `Tensor one(const Tensor& a)`"),
    (CPP, {"  int one;\n": "  int one;\n  int two;\n"}, "stands inside `struct Options`"),
    (CPP, {"#include <ATen/Tensor.h>\n": ""}, "removes `#include <ATen/Tensor.h>`"),
    (SWITCH, {"    case aten::two:\n": "    case aten::mid:\n    case aten::two:\n"}, B),
    (
        SWITCH,
        {"    case aten::one:\n": "    case aten::mid:\n      break;\n    case aten::one:\n"},
        "stands inside `void cast(Node* node)`",
    ),
    (YAML, {"# The second.": "- func: mid() -> Tensor\n\n# The second."}, A),
    (YAML, {"# The second.": "# Mid.\n- func: mid() -> Tensor\n\n# The second."}, A),
    (YAML, {"# The second.": "- func: mid() -> Tensor\n\n\n# The second."}, B),
    (YAML, {"function\n": "function, method\n"}, "changes or removes `variants: function`"),
    (YAML, {"function\n": "function\n  tags: core\n"}, "adds `tags: core` to an entry"),
    (TABLE, {"    two\n": "    three\n    two\n"}, A),
    (TABLE, {"Others": "    three\n\nOthers"}, B),
    (TABLE, {"    one\n    two": "    three\n    two"}, B),
    (SOURCES, {"]": '    "Two.cpp",\n]'}, A),
    ("a\nb\na\nb\na\nb\n", {"a\nb\na\nb\na": "a\nc\na\nc\na"}, B),
    ("aten::one\naten::two\n", {"aten::two": "aten::three\naten::two"}, B),
    ("aten::one\naten::two", {"two": "two\naten::zwei\n"}, B),
]


def file(base: str) -> str:
    return PATHS.get(base, "expect.txt")


@mark.parametrize(("base", "changes", "how"), CASES, ids=[f"{n}-{file(case[0])}" for n, case in enumerate(CASES)])
def test_what_it_finds_is_the_branchs_file(base: str, changes: dict[str, str], how: str) -> None:
    path = f"aten/src/ATen/native/{file(base)}"
    woven = base
    for before, after in changes.items():
        assert before in woven
        woven = woven.replace(before, after, 1)
    found = unweave(path, base, [woven])
    if found is None:
        assert [what for _, what in reasons(path, base, woven)] == [how]
        return
    (fragment,), anchor = found
    assert weave(path, base, fragment, anchor) == woven
    assert ("lines" if any(key.startswith("piece ") for key in anchor.places) else "structure") == how, fragment


def test_a_label_of_a_switch_is_for_no_compiler_alone() -> None:
    """A fragment has it in the source tree; a build that has the whole source compiles that."""
    woven = SWITCH.replace("    case aten::two:", "    case aten::mid:\n    case aten::two:")
    found = unweave("aten/src/ATen/native/a.cpp", SWITCH, [woven])
    assert found is not None
    assert not has_code(found[0][0]) and pieces_inside_functions(found[0][0]) == [("piece 1", "    case aten::mid:\n")]


def test_a_place_found_twice_leaves_it_to_the_next() -> None:
    twice = Fragment({"a": (Place("after", '"One.cpp",'), Place("before", '"Two.cpp",'))})
    base = 'a = [\n    "One.cpp",\n    "One.cpp",\n    "Two.cpp",\n]\n'
    assert '"One.cpp",\n    "New.cpp",\n    "Two.cpp"' in weave("x.bzl", base, 'a = [\n    "New.cpp",\n]\n', twice)


def test_one_anchor_serves_all_states_of_a_file() -> None:
    path = "aten/src/ATen/native/native_functions.yaml"
    first = YAML + "\n- func: last() -> Tensor\n"
    second = first.replace("# The second.", "- func: mid() -> Tensor\n\n# The second.")
    found = unweave(path, YAML, [first, second])
    assert found is not None
    fragments, anchor = found
    assert [weave(path, YAML, fragment, anchor) for fragment in fragments] == [first, second]
