"""Weaving C++: functions into a namespace, lines into a block, entries into a macro, includes."""

from expecttest import assert_expected_inline
from pytest import mark, raises

from fork.errors import ForkError
from fork.tests.helpers import anchor, refused, woven
from fork.weave import weave

BASE = """\
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/one.h>
#include <torch/csrc/three.h>

namespace torch::details {

const char* kBrace = "{"; // a brace } in a comment

Tensor one(const Tensor& a); // about one
Tensor one_backward(const Tensor& a);

namespace {
Tensor one(int a) {
  return {};
}
} // namespace

Tensor two(
    const Tensor& a,
    int b) {
  if (b) {
    return one(a);
  }
  return a;
}

} // namespace torch::details

TORCH_LIBRARY_IMPL(aten, First, m) {
  KERNEL(one, low)
}

TORCH_LIBRARY_IMPL(aten, Second, m) {
  KERNEL(one, low)
  KERNEL(two,  low);
}

#define FOR_ALL(_)     \\
  _(one)               \\
  _(two, input)        \\
  _(three)
"""
FUNCTIONS = """\
// What is new.

#include <ATen/core/Tensor.h>
#include <torch/csrc/two.h>
#include <torch/library.h> // fragment only

namespace torch::details {

// Why.
Tensor next(const Tensor& a) {
  return a;
}

} // namespace torch::details
"""
SPACE = "namespace torch::details"


def test_functions_at_the_end_of_a_namespace() -> None:
    assert_expected_inline(
        woven("a.cpp", BASE, FUNCTIONS, anchor(**{SPACE: "last"})),
        """\
@@ -2,4 +2,6 @@
 #include <ATen/ATen.h>
+#include <ATen/core/Tensor.h>
 #include <torch/csrc/one.h>
 #include <torch/csrc/three.h>
+#include <torch/csrc/two.h>

@@ -27,2 +29,7 @@

+// Why.
+Tensor next(const Tensor& a) {
+  return a;
+}
+
 } // namespace torch::details
""",
    )


@mark.parametrize(
    ("place", "behind", "gap"),
    [
        ("last", f"}} // {SPACE}", ""),
        ("after two", f"}} // {SPACE}", ""),
        ("before two", "Tensor two(", ""),
        ("after one", "Tensor one_backward", "\n"),
    ],
)
def test_functions_beside_another(place: str, behind: str, gap: str) -> None:
    """The one of this name that stands directly in the namespace, whether it is declared or defined."""
    function = FUNCTIONS[FUNCTIONS.index("// Why.") : FUNCTIONS.index("} // namespace")]
    without_includes = FUNCTIONS[FUNCTIONS.index(SPACE) :]
    expected = BASE.replace(behind, f"{gap}{function}{behind}")
    assert weave("a.cpp", BASE, without_includes, anchor(**{SPACE: place})) == expected


def test_a_line_in_one_of_two_blocks() -> None:
    block = "TORCH_LIBRARY_IMPL(aten, Second, m)"
    fragment = f"namespace at {{\n{block} {{\n  KERNEL(new, low)\n}}\n}} // namespace at\n"
    new, two = "  KERNEL(new, low)\n", "  KERNEL(two,  low);\n"
    for place, lines in (("after KERNEL(one, low)", new + two), ("after KERNEL(two, low)", two + new)):
        assert weave("a.cpp", BASE, fragment, anchor(**{block: place})) == BASE.replace(two, lines)


@mark.parametrize(
    ("place", "lines"),
    [("after two, input", "  _(new)               \\\n  _(three)\n"), ("last", "  _(three) \\\n  _(new)\n")],
)
def test_an_entry_of_a_macro(place: str, lines: str) -> None:
    fragment = "#define FOR_ALL(_) _(new)\n"
    assert weave("a.h", BASE, fragment, anchor(FOR_ALL=place)) == BASE.replace("  _(three)\n", lines)


def test_an_entry_with_parentheses_and_what_is_none() -> None:
    where = anchor(FOR_ALL="after two, input")
    assert "\n+  _(new, f(1, 2))      \\\n" in woven("a.h", BASE, "#define FOR_ALL(_) _(new, f(1, 2))\n", where)
    with raises(ForkError, match=r"the fragment has 'new' in FOR_ALL, where only entries such as _\(name\) can stand"):
        weave("a.h", BASE, "#define FOR_ALL(_) \\\n  _(one) \\\n  new\n", where)


def test_what_is_not_there() -> None:
    fragment = "#define FOR_SOME(_) _(new)\nnamespace torch::other {\nvoid f();\n}\n" + FUNCTIONS
    assert_expected_inline(
        refused("a.h", BASE, fragment, anchor(**{SPACE: "after three"})),
        """\
3 places do not fit: see the anchors in stack/series.yaml
  a.h: list macro FOR_SOME found 0 times
  a.h: container 'namespace torch::other' found 0 times
  a.h: anchor 'after three' in 'namespace torch::details' found 0 times""",
    )


def test_a_system_header_where_the_base_has_none_but_under_a_condition() -> None:
    base = "#ifdef _MSC_VER\n#include <cmath>\n#endif\n\n#include <a/one.h>\n#include <b/two.h>\n\nint x;\n"
    fragment = "#include <array>\n#include <tuple>\n"
    assert weave("a.h", base, fragment, anchor()) == base.replace("int x;", f"{fragment}\nint x;")


def test_a_namespace_inside_the_one_that_has_the_anchor() -> None:
    inner, end = "namespace {\nint f();\n} // namespace\n\nint g();\n\n", f"}} // {SPACE}\n"
    out = weave("a.cpp", BASE, f"{SPACE} {{\n\n{inner}{end}", anchor(**{SPACE: "last"}))
    assert out == BASE.replace(end, inner + end)


def test_code_that_no_anchor_takes_is_named() -> None:
    """And braces that do not balance end no container by guess, but those under the branches of an #if do balance."""
    where = anchor(**{"namespace at": "last"})
    for fragment in ("static int lost;\n\nnamespace at {\nint f();\n}\n", "namespace at {\nint f();\n}\nint g();\n"):
        with raises(ForkError, match="fragment is in no block that has an anchor"):
            weave("a.cpp", "namespace at {\n}\n", fragment, where)
    fragment = "namespace at {\nint h();\n}\n"
    with raises(ForkError, match="container 'namespace at' found 0 times"):
        weave("a.cpp", "namespace at {\nvoid f() {\n}\n", fragment, where)
    base = "namespace at {\n#if A\nvoid f() {\n#else\nvoid g() {\n#endif\n}\n}\n"
    assert weave("a.cpp", base, fragment, where) == base.removesuffix("}\n") + "\nint h();\n\n}\n"
