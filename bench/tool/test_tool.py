"""The benchmark of changed sources: what it draws, where it plants changes, and how it finds their functions again."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.machine import ROOT
from bench.tool.coverage.plant import functions, plant
from bench.tool.coverage.sample import draw, groups
from bench.tool.coverage.symbols import GUARD, _mangled
from bench.tool.fixes.__main__ import GUIDE, written
from bench.tool.fixes.changes import FIXES
from bench.tool.fixes.edits import Edit
from fork.errors import ForkError

SOURCE = r"""
#include <vector>
#define OPEN(x) x {
namespace at::meta {
TORCH_META_FUNC(one)(const Tensor& self) {
  set_output(self.sizes());
}
} // namespace at::meta

namespace at { namespace {
const char* text = R"(void none() { " )";
std::vector<int> table = {1, 2, 3};
template <typename T>
void none_of_a_template(T x) {
}
static inline int none_inline() { return 1; }
constexpr int none_constant() { return 2; }
struct None {
  int inside() { return 3; }
};
enum class Kind { A, B };
#if defined(A)
int two(int x) {
#else
int none_of_the_other_branch(int x) {
#endif
  return x; // {
}
} // namespace

Tensor& three(
    const Tensor& self, std::function<void(int)> call = nullptr) noexcept {
  auto f = [&]() { return 1; };
  return self;
}
Four::Four(int x) : x_(x), y_{2} {
}
auto Five::call() const -> std::vector<int> { return {}; }
Six::~Six() {}
None operator+(const None& a, const None& b) { return a; }
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("one", one);
}
extern "C" {
int seven(void) { return 7; }
}
} // namespace at
"""
CHANGED = ["one", "two", "three", "Five::call", "Six::~Six", "seven"]
LISTS = {
    "aten_native_source_codegen_list": "aten/src/ATen/native/cpu/K{}.cpp",
    "aten_native_source_non_codegen_list": "aten/src/ATen/native/N{}.cpp",
    "aten_cpu_source_non_codegen_list": "aten/src/ATen/C{}.cpp",
    "libtorch_core_sources": "torch/csrc/T{}.cpp",
    "libtorch_python_core_sources": "torch/csrc/P{}.cpp",
}


@pytest.fixture()
def tree(tmp_path):
    """A checkout with 20 sources in each list, of which some cannot be drawn."""
    lines = []
    for name, pattern in LISTS.items():
        paths = [pattern.format(n) for n in range(20)] + [pattern.format("gone"), pattern.format("_vulkan_")]
        for path in paths[:20] + paths[21:]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("" if "3.cpp" in path else "int f(int x) {\n  return x;\n}\n")
        lines.append(f"{name} = {paths!r} + glob([])\n")
    (tmp_path / "build_variables.bzl").write_text("".join(lines))
    return tmp_path


def test_the_functions_of_a_source_are_found():
    names = [function.name for function in functions(SOURCE)]
    assert [name for name in names if name not in ("Four::Four", "y_", "x_")] == CHANGED


def test_a_change_prints_its_own_line_and_leaves_all_else_as_it_is():
    text, lines = plant(SOURCE, "a/b.cpp")
    statements = re.findall(r" \[\[maybe_unused\]\][^\n]*?>= 0;", text)
    assert len(statements) == len(lines) == len(set(lines)) >= len(CHANGED)
    assert all(line in statement for line, statement in zip(lines, statements))
    for statement in statements:
        text = text.replace(statement, "", 1)
    assert text == "#include <cstdio>\n" + SOURCE


def test_no_source_is_drawn_that_is_missing_or_excluded_or_has_no_function(tree):
    everything = draw(tree, 1000, 1)
    assert len(everything) == 5 * 18  # of 20, two have no function: 3 and 13
    assert not [path for path in everything if re.search(r"gone|vulkan|3\.cpp", path)]
    assert all((tree / path).is_file() for paths in groups(tree).values() for path in paths)


def test_what_a_release_has_stands_behind_else():
    text = "#if !AT_MKLDNN_ENABLED()\nint f() {\n}\n#else\nint g() {\n}\n#endif\nint h() {\n}\n"
    assert [function.name for function in functions(text)] == ["g", "h"]
    assert [function.name for function in functions(text.replace("!", ""))] == ["f", "h"]


def test_code_of_the_gpu_is_drawn_apart(tree):
    kernel = "aten/src/ATen/native/cuda/One.cu"
    (tree / kernel).parent.mkdir(parents=True)
    (tree / kernel).write_text("__global__ void kernel(int x) {\n}\nint f(int x) {\n  return x;\n}\n")
    assert draw(tree, 12, 1, device=True) == {kernel: "native/cuda"}
    assert [function.name for function in functions((tree / kernel).read_text())] == ["f"]
    assert kernel not in draw(tree, 1000, 1)


@pytest.mark.parametrize(
    "guard, names",
    [
        ("_ZGVZN2at6native3covERKNS_6TensorEE12planted_here", {"_ZN2at6native3covERKNS_6TensorE"}),
        ("_ZGVZN2at4FourC4EiE12planted_here", {"_ZN2at4FourC4Ei", "_ZN2at4FourC1Ei", "_ZN2at4FourC2Ei"}),
        ("_ZGVZ5sevenE12planted_here", {"seven", "_Z5seven"}),
        ("_ZGVZN1a1bEvE12planted_here_0", {"_ZN1a1bEv"}),
    ],
)
def test_the_guard_of_a_change_names_its_function(guard, names):
    found = GUARD.match(guard)
    assert found and set(_mangled(found[1])) == names


TRAPPED = """
import ctypes
from bench.tool.coverage import probe
libm = ctypes.CDLL("libm.so.6")
libm.cbrt.restype, libm.cbrt.argtypes = ctypes.c_double, [ctypes.c_double]
place = ctypes.cast(libm.cbrt, ctypes.c_void_p).value - probe.begins()["libm.so.6"]
ran = probe.watch({"libm.so.6": [("cbrt", place)], "no_such_library.so": [("none", 0)]}, [])
assert ran == []
print([round(libm.cbrt(x)) for x in (27.0, 8.0)], ran)
"""


def test_a_trap_tells_that_a_function_ran_and_lets_it_run():
    done = subprocess.run([sys.executable, "-c", TRAPPED], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[3, 2] ['cbrt']\n", done.stderr


def test_an_edit_changes_one_function_and_refuses_what_it_does_not_find(tmp_path):
    (tmp_path / "a.cpp").write_text("int f() {\n  return 1;\n}\n\nint g() {\n  return 1;\n}\n")
    Edit("a.cpp", "int g(", r"return (\d)", r"return -\1").apply(tmp_path)
    assert (tmp_path / "a.cpp").read_text() == "int f() {\n  return 1;\n}\n\nint g() {\n  return -1;\n}\n"
    for begin, pattern in (("int h(", "return"), ("int f(", "throw")):
        with pytest.raises(ForkError, match="these fixes are for PyTorch 2.7"):
            Edit("a.cpp", begin, pattern, "").apply(tmp_path)


def where(guide: str) -> str:
    """What stands below the table of fixes."""
    table = guide.partition("<!--fixes-->")[2].partition("<!--/-->")[0]
    return " ".join(table.rpartition("|\n")[2].split())


def test_fixes_that_did_not_run_keep_their_rows() -> None:
    text = GUIDE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| #")]
    assert f"{written(text, {}, 'New, tool at abc.')}".count("\n| #") == len(rows)
    first, last = FIXES[0], FIXES[-1]
    news = {fix.name: [f"#{fix.number}", "wrong", "source", "fails", "1 s", "2 s"] for fix in (first, last)}
    new = written(text, news, "New, tool at abc.")
    table = [line for line in new.splitlines() if line.startswith("| #")]
    assert table[0] == f"| #{first.number} | wrong | source | fails | 1 s | 2 s |"
    assert table[-1].startswith(f"| #{last.number} | wrong ")
    assert set(rows[1:-1]) <= set(table), "a row without a new one stays, also where it has no seconds"
    plain = " ".join(new.split())
    assert f" #{first.number}, #{last.number}: New, tool at abc. The others: " in plain
    assert where(text).rpartition("The others: ")[2] in where(new), "the others keep what they were measured with"
    again = where(written(new, news, "Newer."))
    assert "Newer. The others: " in again and "New, tool" not in again
    assert where(written(new, {fix.name: news[first.name] for fix in FIXES}, "New.")) == "New."


def test_fixes_have_names_and_numbers_of_their_own() -> None:
    assert len({fix.name for fix in FIXES}) == len({fix.number for fix in FIXES}) == len(FIXES)
    assert all(fix.test.is_file() for fix in FIXES)
