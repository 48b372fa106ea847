"""The words of a C++ source: what a change can concern, and which registrations a copy leaves to the base."""

from __future__ import annotations

import random
import re
from collections import Counter
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from fork.cpp.definitions import _items, concerned, defined, only_bodies
from fork.cpp.registrations import altered, dropped, kernels, left
from fork.cpp.scan import scan

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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a + LIMIT", "a - LIMIT", True),
        ("low(a) + ", "low(a) - ", True),
        ("comment", "remark", True),
        ("high(int a)", "high(int a, int b)", False),
        ("int third() { return kTable[0]; }\n", "", False),
        ("LIMIT 4", "LIMIT 5", False),
        ("int first", "long first", False),
        ("{1, 2}", "{1, 3}", False),
        ("Sum = int", "Sum = long", False),
    ],
)
def test_what_a_function_does_makes_no_type(old: str, new: str, expected: bool) -> None:
    assert only_bodies(BEFORE, BEFORE.replace(old, new)) == expected
    for kind in ("constexpr ", "auto "):
        made = BEFORE.replace("int low(", f"{kind}int low(")
        assert only_bodies(made, made.replace(old, new)) == (expected and "LIMIT" not in old)
    lambdas = "const int a = [](int b) { return b; }(3);\n#define F(a) { return a; }\n"
    assert not only_bodies(lambdas, lambdas.replace("return b", "return 2 * b"))
    assert not only_bodies(lambdas, lambdas.replace("return a", "return 2 * a"))


VECTOR = """\
template <> class Vec<float> : public Base<float> {
 private:
  __m256 values = {};
 public:
  using size_type = int;
  static constexpr int size() { return 8; }
  Vec(__m256 v) : values(v) {}
  virtual Vec abs() const { return mask(values); }
  struct Inner { int get() { return a; } int a; };
};
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("mask(values)", "plus(values)", True),
        ("return a;", "return 2 * a;", True),
        ("return 8", "return 4", False),
        ("__m256 values = {}", "__m512 values = {}", False),
        ("= {}", "= {1}", False),
        ("values(v)", "values(-v)", False),
        ("int a;", "long a;", False),
        ("virtual Vec", "Vec", False),
        ("size_type = int", "size_type = long", False),
        ("Base<float>", "Base<double>", False),
        ("  Vec(__m256 v)", "  void more();\n  Vec(__m256 v)", False),
    ],
)
def test_what_functions_of_a_class_do_makes_no_other_type(old: str, new: str, expected: bool) -> None:
    for text in (VECTOR, f"namespace at {{\n{VECTOR}}}\n"):
        assert only_bodies(text, text.replace(old, new)) == expected


# Heads that are easily taken for variables, and what ends with neither a brace nor a semicolon.
HARD = """\
namespace at {
template <typename T, bool both = true, typename = std::enable_if_t<(sizeof(T) >= 4)>>
static T low(T a) { return a; }
C10_LAUNCH_BOUNDS_1(1024)
__global__ void bounded(int* a) { *a = low(1); }
C10_LAUNCH_BOUNDS_2(kThreads, kBlocks)
__global__ void more(int* a) { *a = 3; }
__attribute__((noinline)) int marked(int a) { return a * 4; }
int calls_marked() { return marked(1); }
bool operator!=(const Pair& a, const Pair& b) { return low(a.first) != b.first; }
Pair::Pair(int a) : first{a} { low(a); }
int high(int a) { return low(a); }
namespace {
int inner(int a) { return a; }
} // namespace
int last(int a) { return inner(a); }
REGISTER_DISPATCH(low_stub, &low)
REGISTER_DISPATCH(
    last_stub,
    &last)
} // namespace at
int outside() { return at::last(1); }
FORALL_ENTRIES(DECLARE)
namespace other {
int in_macro() { return 5; }
Define_flag(kFlag, true)
const int kLast = 1;
FORALL_ENTRIES(DECLARE) struct Last { int b; };
template <int n>
static std::enable_if_t<n == 3, int> compares(int a) { return 7; }
template <typename T> class Taking<T(int)> { int d; };
inline int divided(int a) {
#if LARGE
  if (a > 3) {
#else
  if (a > 2) {
#endif
    return 9;
  }
  return a;
}
struct Behind { int f; };
} // namespace other
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("return inner(a)", "return inner(a + 1)", {"last", "last_stub", "outside"}),
        ("&last)", "&inner)", {"last_stub", "last", "inner", "outside"}),
        ("at::last(1)", "at::last(2)", {"outside"}),
        ("*a = low(1)", "*a = low(2)", {"bounded"}),
        ("*a = 3", "*a = 4", {"more", "kThreads", "kBlocks"}),
        ("a * 4", "a * 5", {"noinline", "marked", "calls_marked"}),
        ("{ return a; }\nC10", "{ return a + 1; }\nC10", None),
        ("!= b.first", "== b.first", None),
        ("low(a); }\nint high", "}\nint high", None),
        # Macros without a semicolon stand in front of these.
        ("return 5", "return 6", {"in_macro"}),
        ("kLast = 1", "kLast = 2", {"kFlag", "kLast"}),
        ("int b; };", "int c; };", None),
        # A comparison in a type, a type with arguments in its name, and branches that open a brace each.
        ("return 7", "return 8", {"compares"}),
        ("int d; };", "int e; };", None),
        ("return 9", "return 10", {"divided"}),
        ("int f; };", "int g; };", None),
    ],
)
def test_what_a_change_concerns_behind_hard_heads(old: str, new: str, names: set[str] | None) -> None:
    """All names, and no more; that each kind of change is built at all, test_planted.py shows."""
    assert HARD.count(old) == 1
    assert concerned(HARD, HARD.replace(old, new)) == names


@pytest.mark.parametrize("old", ["", "} // namespace at\n", "int high(int a) ", "    &last)\n"])
def test_no_text_is_lost(old: str) -> None:
    """Whatever a change touches is in an item, also of a text that does not compile: no change is taken for none."""
    text = HARD.replace(old, "")
    words = set(re.findall(r"\w+", text.replace("// namespace", "").replace("at\n", "\n")))
    assert words <= set(re.findall(r"\w+", " ".join(_items(text))))


USES = "using namespace at; using c10::Half;\nC10_DIAGNOSTIC_POP()"


def test_what_a_source_defines() -> None:
    """A header's function is none of it, where the source calls it or not; nor is what it includes more."""
    more = BEFORE.replace("#include <ATen/A.h>\n", "#include <ATen/A.h>\n#include <cstdio>\n")
    names = {"LIMIT", "low", "Pair", "kTable", "middle", "high", "other", "third", "fourth_out", "Sum", "fifth"}
    assert defined(BEFORE, more) == names == defined(BEFORE, more + f"{USES}\n")
    assert defined(BEFORE, BEFORE.replace("LIMIT 4", "LIMIT 5")) is None
    assert defined(BEFORE, BEFORE + "DEFINES_SOMETHING()\n") is None
    assert defined(BEFORE, BEFORE + "template <> void Pair<float>::twice<Sum>(int a) {}\n") == {*names, "twice"}


# Each kind of what a header has, known by its look alone, and an insertion that changes it.
WORDS, ARGUMENTS = r"[A-Za-z_][\w:<>,&*\s]*[\s&*](\w+)", r"\((?:[^(){};]|\([^(){};]*\))*"
KINDS = {
    "function": (rf"^{WORDS}{ARGUMENTS}\)\s*(?:const\s*)?\{{", " changed(); "),
    "declaration": (rf"^(?:TORCH|C10)_\w*API {WORDS}{ARGUMENTS}(?=\)\s*;)", ", int changed = 0"),
    "method": (r"^  (?:[\w:<>&*]+ )+(\w+)\([^(){};]*\)(?: const)?(?: noexcept)? \{", " changed(); "),
    "class": (r"^(?:template <[^{};]*>\s*)?(?:struct|class)(?: [A-Z0-9_]+)? (\w+)\s*(?::[^{};]*)?\{", " int changed; "),
    "enum": (r"^enum (?:class )?(\w+)[^{;]*\{", " changed, "),
    "alias": (r"^using (\w+) = [^;]*(?=;)", " changed"),
    "variable": (
        r"^(?:(?:static|inline|constexpr|const) )+[\w:<>]+[ *&]+(\w+)(?:\[\w*\])? = [^;{}]*(?=;)",
        " + changed",
    ),
    "macro": (r"^#define (\w+)(?:\([^)\n]*\))? [^\n\\]*(?=\n)", " changed"),
}
# Where a reader lost something: a type with arguments in its name, and branches that open a brace each.
MISSED = ("FunctionRef.h", "DispatchStub.h", "BFloat16.h", "autocast_mode.h")


@pytest.mark.parametrize("front", ["", "FORALL_ENTRIES(DECLARE)\n"])
def test_what_a_header_has_is_concerned_by_its_own_change(front: str) -> None:
    """In headers of PyTorch, whatever stands in front of it or of its namespace."""
    include = Path(find_spec("torch").origin).parent / "include"  # type: ignore[union-attr, arg-type]
    files = [path for folder in ("ATen", "c10", "torch/csrc") for path in sorted((include / folder).rglob("*.h"))]
    # PyTorch compiles these only as texts.
    files = [path for path in files if "/ops/" not in str(path) and "jiterator" not in path.read_text()]
    tried: Counter[str] = Counter()
    missed = []
    known = [path for path in files if path.name in MISSED]
    assert len(known) == len(MISSED)
    for path in (*known, *random.Random(1).sample(files, 250)):
        text = re.sub("^namespace", f"{front}namespace", path.read_text(), count=1, flags=re.M)
        for kind, (look, inserted) in KINDS.items():
            for found in islice(re.finditer(look, scan(text).code, re.M), 2):
                end = found.start() + len(found[0].rstrip())  # before a comment
                names = concerned(text, f"{text[:end]}{inserted}{text[end:]}")
                tried[kind] += 1
                if names is not None and found[1] not in names:
                    missed.append((path.name, kind, found[1], names))
    assert min(tried[kind] for kind in KINDS) > 10 and not missed


MOVES = """\
namespace at {
#if LARGE
int low(int a);
#else
int high(int a);
#endif
namespace {
int inner(int a);
} // namespace
#define TWICE(a) ((a) * 2)
int last(int a) { return TWICE(a) + inner(a); }
} // namespace at
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("int low(int a);\n#else\n", "#else\nint low(int a);\n", {"low"}),
        ("int inner(int a);\n} // namespace\n", "} // namespace\nint inner(int a);\n", {"inner", "last"}),
        ("} // namespace at", "} // namespace at\nnamespace other {\nint fresh();\n}", {"fresh"}),
        ("(a) * 2", "(a) * 3", None),
        ("int last(int a) {", "int last(long a) {", {"last"}),  # The macro above it is not part of it.
    ],
)
def test_what_moves_is_concerned(old: str, new: str, names: set[str] | None) -> None:
    """The same text means something else under another condition, or in another namespace."""
    assert MOVES.count(old) == 1
    assert concerned(MOVES, MOVES.replace(old, new)) == names


def test_a_macro_that_moves_can_concern_anybody() -> None:
    """Behind what it was before, or what was behind it before it: both are differences."""
    define = "#define TWICE(a) ((a) * 2)\n"
    last = "int last(int a) { return TWICE(a) + inner(a); }\n"
    assert MOVES.count(define + last) == 1
    assert concerned(MOVES, MOVES.replace(define + last, last + define)) in (None, {"last"})


def test_what_a_header_concerns() -> None:
    """A function that it declares otherwise concerns whoever names it, though no text of the source changes."""
    assert concerned(BEFORE, BEFORE) == set()
    assert concerned(BEFORE, BEFORE, {"middle"}) == {"middle", "high", "fourth_out"}


CLASS = """\
struct API Node : Base {
 public:
  Node(int a) : a_(a) {}
  int size() const { return count() + 1; }
  int count() const { return a_; }
  virtual int other() { return 1; }
  static int fixed(int a = 1);
 private:
  int a_ = 0;
};
enum class Kind : int { One, Two };
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  virtual", "  static int more();\n  virtual", {"more"}),
        ("return a_;", "return a_ + 1;", {"count", "size"}),
        ("fixed(int a = 1)", "fixed(int a, int b)", {"fixed"}),
        ("  virtual", "  Node&& moved(int a) && {\n    return take();\n  }\n  virtual", {"moved"}),
        ("return 1;", "return 2;", None),
        ("  virtual", "  Node();\n  virtual", None),
        ("  virtual", "  bool operator==(int a);\n  virtual", None),
        ("  virtual", "  void begin();\n  virtual", None),
        ("int a_ = 0;", "int a_ = 0;\n  int b_ = 0;", None),
        ("int a_ = 0;", "int a_ = 1;", None),
        ("struct API Node : Base", "struct API Node", None),
        ("  virtual", "  template <int n> int more();\n  virtual", None),
        ("One, Two", "One, Two, Three", {"Three"}),
        ("One, Two", "One, Between, Two", None),
    ],
)
def test_members_that_code_uses_by_name_alone(old: str, new: str, expected: set[str] | None) -> None:
    assert CLASS.count(old) == 1
    assert concerned(CLASS, CLASS.replace(old, new)) == expected


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
RegisterOperators operators({Operator("f", [](Stack& stack) {
  if (f(stack)) {
    g(stack);
  }
})});
Registry another(int a) {
  return Registry("two", f);
}
} // namespace c10
"""


def test_what_is_left_to_the_base() -> None:
    """Each with its line; the text keeps the numbers of its lines, and what is new is registered."""
    text, told = left(REGISTRATIONS.replace('"one"', '"new"'), REGISTRATIONS)
    assert [place for place, _ in told] == [2, 6, 9, 13, 14, 15]
    assert 'Registry registers("new", f);\n' in text and 'TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("f", f); }' in text
    assert text.count("\n") == REGISTRATIONS.count("\n")
    assert "C10_DECLARE_bool(flag);" in text and "fork_left_2(::torch::Library& m) {\n  m.def" in text
    assert "Registry* make(int a) { return nullptr; }" in text and "\nRegistry another(int a) {\n" in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"words")\nC10', '"more")\nC10', [(2, "C10_DEFINE_bool(flag)")]),
        ("other, 3", "other, 4", [(6, "C10_DEFINE_int(other)")]),
        ('m.def("f");', 'm.def("g");', [(9, "TORCH_LIBRARY(mine, m)")]),
        ("m.fallback(f)", "m.fallback(g)", [(13, "TORCH_LIBRARY_IMPL(_, CPU, m)")]),
        ("g(stack)", "h(stack)", [(15, 'RegisterOperators operators({Operator("f", [](Stack& stack) ')]),
        # Another way to write it; another registration, for `dropped`; and a kernel, which is registered again.
        ("    false,\n", "    false, // by default\n\n", []),
        ('"one"', '"two"', []),
        ('m.impl("f", f)', 'm.impl("f", g)', []),
    ],
)
def test_what_is_registered_otherwise(old: str, new: str, expected: list[tuple[int, str]]) -> None:
    assert REGISTRATIONS.count(old) == 1
    assert altered(REGISTRATIONS, REGISTRATIONS.replace(old, new)) == expected


def test_what_is_no_longer_registered() -> None:
    assert dropped(REGISTRATIONS, REGISTRATIONS.replace('m.impl("f", f);', "")) == [
        'TORCH_LIBRARY_IMPL(mine, CPU, m): "f"'
    ]
    less = REGISTRATIONS.replace('static Registry registers("one", f);\n', "").replace(
        'C10_DEFINE_int(other, 3, "words");\n', ""
    )
    assert dropped(REGISTRATIONS, less) == [
        "C10_DEFINE_int(other)",
        'static Registry registers("one", f)',
    ]


def test_kernels_behind_macros() -> None:
    """As a preprocessor leaves them: a name in parts, and blocks of several keys."""
    text = """\
static void TORCH_LIBRARY_IMPL_init_aten_FuncTorchBatched_7(torch::Library&); static const int i(&init);
void TORCH_LIBRARY_IMPL_init_aten_FuncTorchBatched_7(torch::Library & m) {
  m.impl("add" "." "Tensor", [](int a) { return "no"; }); m.impl(name<true>("aten::" "erf"), &f);
}
void TORCH_LIBRARY_IMPL_init___Meta_9(torch::Library& m) { m.impl("erf", f); }
void other() { m.impl("sin", f); }
"""
    # Of its block's namespace, a name says the same with and without it.
    assert [*kernels(text)] == ["`add.Tensor` for FuncTorchBatched", "`erf` for FuncTorchBatched", "`erf` for Meta"]
