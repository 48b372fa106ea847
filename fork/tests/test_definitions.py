"""The words of a C++ source: what a change can concern, and which registrations a copy leaves to the base."""

from __future__ import annotations

import pytest

from fork.weave.definitions import concerned
from fork.weave.registrations import dropped, left

BEFORE = """\
#include <ATen/A.h>
#define LIMIT 4
namespace at::native {
namespace {
// low(high) is a comment.
int low(int a) { return a + LIMIT; }
struct Pair { int first; };
constexpr int kTable[] = {1, 2};
} // namespace
template <typename T>
T middle(T a) { return low(a) + "low { ;"[0]; }
int high(int a) {
  if (a) { return middle(a); }
  return 0;
}
int other(Pair a) { return a.first; }
int third() { return kTable[0]; }
TORCH_IMPL_FUNC(fourth_out)(int a) { high(a); }
using Sum = int;
Sum fifth();
} // namespace at::native
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("a + LIMIT", "a - LIMIT", {"low", "middle", "high", "fourth_out"}),
        ("LIMIT 4", "LIMIT 5", None),
        ("int first", "long first", None),
        ("{1, 2}", "{1, 3}", {"kTable", "third"}),
        ("return 0", "return 1", {"high", "fourth_out"}),
        ("high(a); }", "high(a + 1); }", {"fourth_out"}),
        ("Sum = int", "Sum = long", None),
        ("comment", "remark", set()),
        ("int third() { return kTable[0]; }\n", "", {"third"}),
        # These can change what others mean that do not name them.
        ("#include <ATen/A.h>", "#include <ATen/B.h>", None),
        ("using Sum = int", "using namespace other;\nusing Sum = int", None),
        ("Sum fifth", "Sum operator+(Pair a, Pair b);\nSum fifth", None),
    ],
)
def test_what_a_change_concerns(old: str, new: str, names: set[str] | None) -> None:
    assert BEFORE.count(old) == 1
    assert concerned(BEFORE, BEFORE.replace(old, new)) == names


REGISTRATIONS = """\
namespace c10 {
C10_DEFINE_bool(
    flag,
    false,
    "words")
C10_DEFINE_int(other, 3, "words");
static Registry registers("one", f);
Registry* make(int a) { return nullptr; }
TORCH_LIBRARY(mine, m) {
  m.def("f");
}
TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("f", f); }
TORCH_LIBRARY_IMPL(_, CPU, m) { m.fallback(f); }
C10_REGISTER_CLASS(Registry, key, Class)
} // namespace c10
"""


def test_what_is_left_to_the_base() -> None:
    """Each with its line; the text keeps the numbers of its lines, and what is new is registered."""
    text, told = left(REGISTRATIONS.replace('"one"', '"new"'), REGISTRATIONS)
    assert [place for place, _ in told] == [2, 6, 9, 13, 14]
    assert 'Registry registers("new", f);\n' in text and 'TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("f", f); }' in text
    assert text.count("\n") == REGISTRATIONS.count("\n")
    assert "C10_DECLARE_bool(flag);" in text and "fork_left_2(::torch::Library& m) {\n  m.def" in text
    assert "Registry* make(int a) { return nullptr; }" in text


def test_what_is_no_longer_registered() -> None:
    assert dropped(REGISTRATIONS, REGISTRATIONS.replace('m.impl("f", f);', "")) == [
        (12, 'TORCH_LIBRARY_IMPL(mine, CPU, m): "f"')
    ]
    less = REGISTRATIONS.replace('static Registry registers("one", f);\n', "").replace(
        'C10_DEFINE_int(other, 3, "words");\n', ""
    )
    assert [head for _, head in dropped(REGISTRATIONS, less)] == [
        "C10_DEFINE_int(other)",
        'static Registry registers("one", f)',
    ]
