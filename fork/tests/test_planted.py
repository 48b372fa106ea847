"""A change of each kind of C++ entity, in a header and in a source, changed and inserted, runs or is refused.

None may be silent: what the engine puts in front of a small library must make it print what the whole library prints
that is built with the change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fork.checkout import whole_branch
from fork.errors import ForkError
from fork.tests.helpers import committed, git, write
from fork.tests.test_replace import FOLDER, Small
from fork.tests.tiny import UPSTREAM

pytestmark = pytest.mark.xdist_group("planted")

# What both a header and a source hold; in a header it is inline, and another file uses it.
ENTITIES = """\
inline int function(int a) {
  return a + 1;
}
inline int function_of(long a) { return function(static_cast<int>(a)); }
struct Class {
  int method(int a) const {
    return a + 2;
  }
  int field = 3;
};
template <typename T>
inline T templated(T a) {
  return a + 4;
}
template <typename T>
struct Trait {
  static constexpr int value = 5;
};
constexpr int kConstant = 6;
enum class Kind { First, Second };
enum Plain { kPlainFirst, kPlainSecond };
using Element = int;
inline const int* table() {
  static const int values[] = {7, 8};
  return values;
}
using Lambda = int (*)(int);
inline Lambda lambda() {
  static const Lambda functions[] = {
      [](int a) { return a + 9; },
  };
  return functions[sizeof(functions) / sizeof(functions[0]) - 1];
}
inline int defaulted(int a, int b = 10) { return a + b; }
inline const char* literal() { return "one  two"; }
inline const char* raw() {
  return R"(three
 } // {
)";
}
inline bool separated(int n, char c) { return n > 1'000 && c == '{'; }
inline int behind_it(int a) { return a + 11; }
#define FUNCTION_LIKE(a) \\
  do {                   \\
    a += 12;             \\
  } while (0)
#define OBJECT_LIKE 13
#define TEXT "fourteen"
#define FORALL_ENTRIES(_) \\
  _(First)                \\
  _(Second)
inline int divided(int a) {
#if defined(WITH_ANOTHER)
  if (a > 1) {
#else
  if (a > 0) {
#endif
    return 17;
  }
  return a;
}
template <typename T>
struct Behind;
template <typename T>
struct Behind<T(int)> {
  static constexpr int value = 18;
};
template <int n>
inline std::enable_if_t<n == 1, int> enabled() { return 19; }
#ifdef WITH_IT
inline int conditional() { return 15; }
#else
inline int conditional() { return 16; }
#endif
"""
USES = """\
static void use() {
  int a = function_of(300) + Class().method(1) + Class().field + templated(1);
  FUNCTION_LIKE(a);
#define COUNT(name) +1
  std::printf("%d %d %d %d %d ", a, Trait<int>::value, kConstant, static_cast<int>(Kind::Second),
              static_cast<int>(kPlainSecond));
  std::printf("%d %d %d %s %s %d ", table()[0], lambda()(1), defaulted(1), literal(), raw(), separated(2000, '{'));
  std::printf("%d %d %d ", divided(1), Behind<int(int)>::value, enabled<1>());
  std::printf("%d %d %s %d %d %d\\n", behind_it(1), OBJECT_LIKE, TEXT, 0 FORALL_ENTRIES(COUNT), conditional(),
              int(sizeof(Element)));
}
"""
HEADER, SOURCE, USER, MAIN = (f"{FOLDER}/{name}" for name in ("All.h", "Own.cpp", "User.cpp", "Main.cpp"))
SHARED = f"{FOLDER}/Shared.h"
API = '#pragma once\n#include <type_traits>\n#define API __attribute__((visibility("default")))\n'
# Stands in front of namespaces, without a semicolon.
API += "#define DECLARE(name) void name();\n#define FORALL_OTHERS(_) _(other)\n"
API += "namespace at::native {\nAPI void use_header();\nAPI void use_own();\nAPI void other();\nstruct API Registry {\n"
API += "  Registry(const char* name);\n};\n}\n"
SOURCES = {
    SHARED: API,
    HEADER: "#pragma once\n#include <ATen/native/Shared.h>\nFORALL_OTHERS(DECLARE)\n"
    + f"namespace at::native {{\n{ENTITIES}}}\n",
    SOURCE: "#include <ATen/native/Shared.h>\n#include <cstdio>\n"
    + f"FORALL_OTHERS(DECLARE)\nnamespace at::native {{\nnamespace {{\n{ENTITIES}}}\n{USES}"
    + 'static Registry registers("own");\nvoid use_own() { use(); }\n}\n',
    USER: "#include <ATen/native/All.h>\n#include <ATen/native/Shared.h>\n#include <cstdio>\n"
    + f"namespace at::native {{\n{USES}void use_header() {{ use(); }}\n}}\n",
    # Names nothing of the header.
    f"{FOLDER}/Other.cpp": "#include <ATen/native/All.h>\n#include <ATen/native/Shared.h>\n"
    + "namespace at::native {\nvoid other() {}\n}\n",
    MAIN: "#include <ATen/native/Shared.h>\n#include <cstdio>\nnamespace at::native {\nstatic int registered = 0;\n"
    + "Registry::Registry(const char* name) { ++registered; }\n"
    + 'extern "C" API void report() { use_header(); use_own(); other(); std::printf("%d\\n", registered); }\n}\n',
}
# The change of each kind, and an insertion of each that the uses see.
CHANGED = {
    "function": ("return a + 1;", "return a + 21;"),
    "function's argument": ("inline int function(int a)", "inline int function(signed char a)"),
    "method": ("return a + 2;", "return a + 22;"),
    "field": ("field = 3", "field = 23"),
    "template": ("return a + 4;", "return a + 24;"),
    "class template": ("value = 5", "value = 25"),
    "constant": ("kConstant = 6", "kConstant = 26"),
    "enum": ("First, Second };", "First, Second = 27 };"),
    "enum without a scope": ("kPlainFirst, kPlainSecond", "kPlainSecond, kPlainFirst"),
    "alias": ("Element = int", "Element = long"),
    "table": ("{7, 8}", "{27, 8}"),
    "lambda": ("return a + 9;", "return a + 29;"),
    "default argument": ("int b = 10", "int b = 30"),
    "space in a literal": ("one  two", "one two"),
    "raw string": (" } // {", " } // { {"),
    "space in a raw string": (" } // {", "  } // {"),
    "behind a digit separator": ("return a + 11;", "return a + 31;"),
    "digit separator": ("1'000", "2'000"),
    "macro like a function": ("a += 12; ", "a += 32; "),
    "macro like an object": ("OBJECT_LIKE 13", "OBJECT_LIKE 33"),
    "literal of a macro": ('TEXT "fourteen"', 'TEXT "thirty"'),
    "list macro": ("  _(Second)\n", "  _(Second) _(Fourth)\n"),
    "condition": ("#ifdef WITH_IT", "#ifndef WITH_IT"),
    "below a condition": ("return 16;", "return 36;"),
    "a brace for each branch": ("return 17;", "return 37;"),
    "behind such a function, of a type with arguments": ("value = 18", "value = 38"),
    "a comparison in a type": ("return 19;", "return 39;"),
}
INSERTED = {
    "statement": ("  return a + 1;\n", "  a += 40;\n  return a + 1;\n"),
    "better overload": (
        "template <typename T>\ninline T",
        "inline int templated(int a) { return 41; }\ntemplate <typename T>\ninline T",
    ),
    "line of a method": ("    return a + 2;\n", "    a += 42;\n    return a + 2;\n"),
    "field": ("  int field = 3;\n", "  int before = 43;\n  int field = before;\n"),
    "specialization": (
        "constexpr int k",
        "template <>\nstruct Trait<int> {\n  static constexpr int value = 44;\n};\nconstexpr int k",
    ),
    "enumerator": ("{ First, Second };", "{ First,\n  Between,\n  Second };"),
    "entry of a table": ("{7, 8}", "{\n    47,\n    7, 8}"),
    "entry of a table of lambdas": ("return a + 9; },\n", "return a + 9; },\n      [](int a) { return a + 49; },\n"),
    "line of a raw string": (" } // {\n", " } // {\n inserted {\n"),
    "empty line of a raw string": (" } // {\n", " } // {\n\n"),
    "line of a macro": ("    a += 12;             \\\n", "    a += 12;             \\\n    a += 52;             \\\n"),
    "entry of a list macro": ("  _(Second)\n", "  _(Second)               \\\n  _(Fourth)\n"),
    "entry between": ("  _(First)                \\\n", "  _(First)                \\\n  _(Zeroth)               \\\n"),
    "macro": ("#define TEXT", "#define WITH_IT\n#define TEXT"),
    "undefined": ("#define TEXT", "#undef OBJECT_LIKE\n#define OBJECT_LIKE 53\n#define TEXT"),
    "condition": ("inline int behind_it(", "#ifndef WITH_IT\n#define behind_it(a) 54\n#endif\ninline int (behind_it)("),
    "macro over a name": ("#define TEXT", "#define behind_it(a) 55\n#define TEXT"),
    "a function that nobody uses": ("#define TEXT", "inline int unused(int a) { return a; }\n#define TEXT"),
    "a class that nobody uses": ("#define TEXT", "struct Unused {\n  int a;\n};\n#define TEXT"),
}
OF_A_SOURCE = {
    "registration": ('("own");\n', '("own");\nstatic Registry more("more");\n'),
    "another registration": ('registers("own")', 'registers("other")'),
}
PLANTS = {kind: (SOURCE, edit) for kind, edit in OF_A_SOURCE.items()} | {
    f"{kind}, {how} in {path.rpartition('/')[2]}": (path, edit)
    for how, edits in (("changed", CHANGED), ("inserted", INSERTED))
    for path in (HEADER, SOURCE)
    for kind, edit in edits.items()
}
# These the engine may refuse: nobody can tell what it would do twice.
MAY_BE_REFUSED = {"registration", "another registration"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("planted"), sources=SOURCES)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_change_runs_or_is_refused(small: Small, name: str) -> None:
    path, edit = PLANTS[name]
    try:
        here, whole, told = small.change({path: edit})
    except ForkError:
        assert name in MAY_BE_REFUSED
        return
    assert here == whole
    assert bool(told) == (whole != small.printed()) or path == SOURCE
    assert ("nobody" in name) == (whole == small.printed())


@pytest.mark.parametrize("path", [HEADER, SOURCE])
def test_what_the_base_does_not_read_is_told(small: Small, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = SOURCES[path].partition("return 15;")[0].count("\n") + 1
    said = f"note     {path}:{line} is below `#ifdef WITH_IT`: the wheel's build does not read it\n"
    small.plan({path: ("return 15;", "return 35;")})
    assert said in capsys.readouterr().out
    here, whole, _ = small.change({path: ("return 15;", "return 35;")})
    assert here == whole == small.printed() and said in capsys.readouterr().out
    small.change({path: ("return 16;", "return 36;")})
    assert "does not read" not in capsys.readouterr().out


def test_a_plant_reads_as_a_file_of_its_own(tmp_path: Path) -> None:
    """Whatever is inserted or changed, a build of a branch compiles the file whole; a fragment of it goes nowhere."""
    texts = {path: SOURCES[path] for path in (HEADER, SOURCE)}
    tree = committed(tmp_path / "tree", {**UPSTREAM, **texts})
    git(tree, "tag", "v2.13.0")
    for path, (before, after) in PLANTS.values():
        assert texts[path].count(before) == 1
        write(tree, {path: texts[path].replace(before, after)})
        found = whole_branch.read(tree, None, tmp_path / "home")
        assert found.changed(found.find())[path] == texts[path].replace(before, after)
        git(tree, "checkout", "--quiet", "--force", "main")
