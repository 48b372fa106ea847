"""A lambda that the base has registered runs the branch's text, or its change is refused; never is it another's.

The base is a small library of the tests' own; what it prints with a change in front must be what the library prints
that is built with the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fork.cpp.registrations import alike
from fork.engine.binary.objects import readable
from fork.engine.replace.locals import lambdas
from fork.errors import ForkError
from fork.tests.helpers import git
from fork.tests.test_replace import FOLDER, Small

pytestmark = pytest.mark.xdist_group("lambdas")

TABLE, SHOWN, COUNTS, CALLS = (f"{FOLDER}/{name}.cpp" for name in ("Table", "Shown", "Counts", "Calls"))
SOURCES = {
    f"{FOLDER}/Shared.h": """\
#pragma once
#include <functional>
#include <vector>
#define API __attribute__((visibility("default")))
#define ADDS(name, n) {name, [](int a) { return a + n; }}
namespace at::native {
struct Entry {
  const char* name;
  int (*pointer)(int);
  std::function<int(int)> function;
};
struct API Registry {
  Registry(std::vector<Entry> entries);
};
API int helper(int a);
} // namespace at::native
""",
    f"{FOLDER}/Registry.cpp": """\
#include <ATen/native/Shared.h>
#include <cstdio>
namespace at::native {
static std::vector<Entry>& all() { static std::vector<Entry> all; return all; }
Registry::Registry(std::vector<Entry> entries) {
  all().insert(all().end(), entries.begin(), entries.end());
}
int helper(int a) { return a * 1000; }
extern "C" API void report() {
  for (const Entry& one : all()) {
    std::printf("%s %d\\n", one.name, one.pointer ? one.pointer(3) : one.function(3));
  }
}
} // namespace at::native
""",
    TABLE: """\
#include <ATen/native/Shared.h>
namespace at::native {
namespace {
static const std::vector<Entry> table{
    {"first", [](int a) { return a + 1; }},
    ADDS("macro", 20),
    {"second", [](int a) { return a + 2; }},
    {"same", [](int a) { return helper(a) + 3; }},
    {"as this", [](int a) { return helper(a) + 3; }},
};
std::vector<Entry> copied(const std::vector<Entry>& entries) { return entries; }
Registry registers(copied(table));
Registry own({
    {"own", [](int a) { return a + 6; }},
    {"own's other", nullptr, [](int a) { return helper(a) + 7; }},
    {"nested", nullptr, [](int a) {
       auto inner = [](int b) { return helper(b) + 8; };
       return inner(a) + helper(inner(a + 1));
     }},
});
Registry mixed({
    {"takes", nullptr, [](long a) { return helper(static_cast<int>(a)) + 9; }},
    {"takes another", nullptr, [](int a) { return helper(a) + 10; }},
});
} // namespace
} // namespace at::native
""",
    SHOWN: """\
#include <ATen/native/Shared.h>
namespace at::native {
static const std::vector<Entry> shown{{"shown", [](int a) { return a + 11; }}};
Registry shows(shown);
API int read(int a) { return shown[0].pointer(a); }
} // namespace at::native
""",
    CALLS: """\
#include <ATen/native/Shared.h>
#define ALONE __attribute__((noinline))
namespace at::native {
API int calls(int a) { return a + 13; }
static Registry called([]() ALONE {
  const int value = calls(14) + 15;
  return std::vector<Entry>{{value > 50 ? "more" : "less", [](int a) { return calls(a) + 16; }}};
}());
Registry outer({{"outer", nullptr, [](int a) { return calls(a) + 17; }}});
} // namespace at::native
""",
    COUNTS: """\
#include <ATen/native/Shared.h>
namespace at::native {
static int count = 5;
static const std::vector<Entry> counting{
    {"counts", [](int a) { return a + 12; }},
    {"counts too", [](int a) { return a + count++; }},
};
Registry counts(counting);
} // namespace at::native
""",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Small:
    made = Small(tmp_path_factory.mktemp("lambdas"), sources=SOURCES)
    # As a folder of the system's, it would come before what <cstdlib> includes.
    made.base.__dict__["probe"] = replace(made.base.probe, include=str(made.folder))
    git(made.tree, "tag", "v2.13.0")
    return made


EFFECTIVE = {
    "of a table": ("a + 1;", "a * 71;"),
    "of a table, behind a macro": ("a + 2;", "a * 72;"),
    "one code of two": ('"same", [](int a) { return helper(a) + 3; }', '"same", [](int a) { return helper(a) + 73; }'),
    "two change places": (
        '"first", [](int a) { return a + 1; }},\n    ADDS("macro", 20),\n    {"second", [](int a) { return a + 2; }',
        '"first", [](int a) { return a + 2; }},\n    ADDS("macro", 20),\n    {"second", [](int a) { return a + 1; }',
    ),
    "of the registration": ("a + 6;", "a * 76;"),
    "in a std::function": ("helper(a) + 7;", "helper(a) + 77;"),
    "in a lambda": ("helper(b) + 8;", "helper(b) + 78;"),
    "one more in a lambda": ("{ return a + 1; }", "{ return [](int b) { return b * 79; }(a); }"),
    "with a value of its own": ("{ return a + 1; }", "{ static int own = 80; return a + own++; }"),
    "lines move": ("{ return a + 1; }", "{\n  // Moves all.\n  return a + 1; }"),
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_a_lambda_takes_effect(small: Small, name: str) -> None:
    here, whole, _ = small.change({TABLE: EFFECTIVE[name]})
    assert here == whole
    assert (whole == small.printed()) == (name == "lines move")


ONCE = "` can be registered only once, and "
REFUSED = {
    "one in front": ('    {"first"', '    {"before", [](int a) { return a; }},\n    {"first"', ONCE),
    "one in front of its own": (
        '    {"own"',
        '    {"before", [](int a) { return a; }},\n    {"own"',
        "no longer has `Registry own({",
    ),
    "entries change places": (
        '{"first", [](int a) { return a + 1; }},\n    ADDS("macro", 20),',
        'ADDS("macro", 20),\n    {"first", [](int a) { return a + 1; }},',
        ONCE,
    ),
    "another use of a macro": ('ADDS("macro", 20)', 'ADDS("macro", 21)', ONCE),
    "takes something else": (
        "nullptr, [](int a) { return helper(a) + 7",
        "nullptr, [](long a) { return helper(a) + 7",
        ONCE,
    ),
    "what is written to by two": ("a + 12;", "a + count++;", f"{ONCE}it uses `at::native::count`"),
    "of a table that is read": ("a + 11;", "a + 91;", f"{ONCE}it uses `at::native::shown`"),
    "what was called": ("a + 13", "a + 33", ONCE),
    "one in one that was called": ("calls(a) + 16", "calls(a) + 86", ONCE),
    "one that was called": ("+ 15", "+ 25", ONCE),
    "of an object that other files could name": ("+ 17", "+ 97", ONCE),
    "a macro": (
        "namespace {\nstatic",
        "#undef ADDS\n#define ADDS(name, n) {name, [](int a) { return a - n; }}\nnamespace {\nstatic",
        ONCE,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_lambda_that_may_be_another_is_refused(small: Small, name: str) -> None:
    before, after, reason = REFUSED[name]
    path = next(path for path in (TABLE, SHOWN, COUNTS, CALLS) if before in SOURCES[path])
    with pytest.raises(ForkError) as error:
        small.change({path: (before, after)})
    assert reason in str(error.value)


def test_of_lambdas_that_take_several_things(small: Small) -> None:
    """By the compiler, they have all numbers of their own, or each kind has."""
    try:
        here, whole, _ = small.change({TABLE: ("helper(a) + 10;", "helper(a) + 90;")})
    except ForkError as error:
        assert ONCE in str(error)
        return
    assert here == whole != small.printed()


def test_of_an_unknown_release_nothing_tells_the_numbers(small: Small) -> None:
    git(small.tree, "tag", "--delete", "v2.13.0")
    try:
        with pytest.raises(ForkError, match="can be registered only once"):
            small.change({TABLE: EFFECTIVE["of the registration"]})
    finally:
        git(small.tree, "tag", "v2.13.0")


def numbered(*lambdas: str) -> list[str]:
    """The functions of a table's lambdas, each by what it takes and the compiler's number."""
    return [f"_ZN12_GLOBAL__N_1L5tableMUl{one[0]}E{one[1:]}_4_FUNE{one[0]}" for one in lambdas]


@pytest.mark.parametrize(
    ("own", "there", "sure"),
    [
        (("i", "i0"), ("i", "i0"), True),
        # One compiler counts all, another those of the same arguments.
        (("i", "l0", "i1"), ("i", "l0", "i1"), True),
        (("i", "l0", "i1"), ("i", "l", "i0"), False),
        (("i", "l", "i0"), ("i", "l", "i0"), False),
        # One has gone in one of them, or in both.
        (("i", "i0", "i1"), ("i", "i0"), False),
        (("i", "i1"), ("i", "i1"), False),
        (("i", "l0"), ("i", "i0"), False),
        # The same name is there twice.
        (("i",), ("i", "i"), False),
    ],
)
def test_where_a_number_is_that_of_the_same_lambda(own: Sequence[str], there: Sequence[str], sure: bool) -> None:
    source: Any = SimpleNamespace(alike={"table"}, original=readable)
    names = numbered(*own)
    assert lambdas(names, source, numbered(*there)) == ({name: name for name in names} if sure else {})
    source.alike = set()
    assert not lambdas(names, source, numbered(*there))


def test_what_a_change_of_lambdas_leaves_alike() -> None:
    text = SOURCES[TABLE]
    assert alike(text, text) == {"table", "registers", "own", "mixed"}
    assert "table" not in alike(text, text.replace("[](int a) { return a + 1", "[=](int a) { return a + 1"))
    assert "own" in alike(text, text.replace("a + 1;", "a + 2;").replace("a + 6;", "a + 7;"))
    assert not alike(text, f"#define int long\n{text}")
    assert "own" not in alike(f"{text}Registry own(1);\n", f"{text}Registry own(1);\n")
    divided = text.replace('ADDS("macro", 20),', '\n#if 1\nADDS("macro", 20),\n#endif\n')
    assert "table" not in alike(divided, divided)
    # The lambda of a macro ends where no directive tells.
    opened = f"#define OPEN [](int a) {{\n{text}\n#define CLOSE }}\n"
    assert "table" in alike(opened, opened) and "table" not in alike(opened, opened.replace('"first"', '"other"'))
