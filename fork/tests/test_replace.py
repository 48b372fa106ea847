"""A branch's change of a library's C++ takes effect on the library as it was built, or is refused; nothing between.

The base is a small library of the tests' own, made once. A change is planted in a checkout of its sources. What the
engine puts in front of the base must then print what the whole library prints when it is built with the change.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork.checkout.git import Checkout
from fork.checkout.release_tree import Tree
from fork.digest import digest
from fork.engine.binary.libraries import Libraries
from fork.engine.binary.objects import Object
from fork.engine.compile.compiler import Compiler
from fork.engine.generate.schemas import SCHEMAS
from fork.engine.link.leading import WRITABLE, led
from fork.engine.replace.decide import Decision
from fork.engine.replace.search import Replacements, Search
from fork.engine.wheel.base import Base, Probe
from fork.errors import ForkError
from fork.tests.helpers import committed, flags_of, write
from fork.tests.tiny import UPSTREAM

FOLDER = "aten/src/ATen/native"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility-inlines-hidden", "-fvisibility=hidden")
# As if the base's compiler were another: it makes what is APART a part of who calls it in the same source.
MERGING = "-DAPART=__attribute__((always_inline))"
POINTER = """\
__attribute__((noinline)) static Function pointer() { return pointed; }
API Function points() { return pointer(); }
"""
SOURCES = {
    f"{FOLDER}/Shared.h": """\
#pragma once
#define API __attribute__((visibility("default")))
#ifndef APART
#define APART __attribute__((noipa))
#endif
namespace at::native {
extern "C" API int of_c(int a); // exported, of a C source
API int shown(int a);      // exported
API int counted();         // exported, with a static of its own
API int seen();            // exported, of another file, calls what is hidden
API int deep();            // exported, of a third file, which calls what is hidden in the second
int secret(int a);         // hidden, called by another file
int deeper(int a);         // hidden, called by a third file, calls `secret`
int kept();                // hidden, unchanged, calls a local function
extern int written;        // hidden and written to
inline int of_header = 3;
extern const int table[2]; // hidden, used by another file
int equal(int a);          // hidden, one code with the next
int alike(int a);
int plain(int a);          // hidden, and leaves registers alone
__attribute__((noinline)) inline int around(int a, int b) { return plain(a) + b; }
inline int wider(int a) { return around(a, 4); }
void nothing();            // hidden, with less room than a jump needs
int barely(int a);         // the same
struct Hidden {            // its vtable is in another file than what makes one
  virtual int first();
  int second;
};
int of_hidden(Hidden& hidden);
API int tabled();
int inlined_in(int a);
inline int small(int a) { return a + 10; }
int pointed(int a);        // hidden, called by another file, and led to by a pointer in its own
template <typename T> T twice(T a) { return a + a; }
struct API Shape {
  virtual ~Shape() = default;
  virtual int sides() const;
};
API int of_shape(const Shape& shape);
using Function = int (*)(int);
struct Type { Function call; Function* slots; int written; };
extern Type type;          // hidden, of local functions, by a local table too
Type* its_type();
int merged(int a);         // hidden, and called by another function of its source
int merging(int a);
struct API Registry {
  Registry(const char* name, Function function);
};
API int registered(int a);
API int addCallback(Function function);
} // namespace at::native
""",
    f"{FOLDER}/Inner.h": "#pragma once\ninline int inner(int a) { return a; }\n",
    f"{FOLDER}/Generic.h": "#pragma once\n#include <ATen/native/Inner.h>\n",
    f"{FOLDER}/One.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
namespace {
int local(int a) { return a * 3; }
int calls = 0;
} // namespace
int written = 1;
static int unused_state() { return ++calls; }
int shown(int a) {
  return local(a) + 1;
}
int counted() { static int count = 100; return ++count + unused_state(); }
int secret(int a) {
  return local(a) + 2;
}
int kept() { return local(5); }
__attribute__((noinline)) int plain(int a) { return a + 1; }
int widest() { return wider(3); }
int equal(int a) { return a * 7; }
int alike(int a) __attribute__((alias("_ZN2at6native5equalEi")));
APART static int quiet(int a) { return a; }
__attribute__((cold)) void nothing() {}
__attribute__((cold)) int barely(int a) { return quiet(a); }
__attribute__((cold)) void next_to_nothing() {}
int Shape::sides() const { return 4; }
APART int merged(int a) { return a * 13; }
int alone = 1;
int merging(int a) { return merged(a) + alone; }
static int called(int a) { return a * 11; }
static int slot(int a) { return a - 41; }
static Function slots[] = {&slot, &quiet};
Type type = {&called, slots, 0};
Type* its_type() { type.written = 5; return &type; }
} // namespace at::native
""",
    f"{FOLDER}/Two.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
template <typename T, int n = 1>
static T times(T a) { return a * n; }
int seen() { return secret(1) + kept() + times(small(written)) + of_header + around(1, 2) + pointed(1); }
int deeper(int a) { return secret(a) * 2; }
} // namespace at::native
""",
    f"{FOLDER}/Three.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
int deep() { return deeper(7) + twice(small(1)); }
int of_shape(const Shape& shape) { return shape.sides(); }
int of_hidden(Hidden& hidden) { return hidden.first(); }
} // namespace at::native
""",
    f"{FOLDER}/Four.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
int tabled() {
  Hidden hidden;
  nothing();
  const int of_type = (its_type() == &type) * type.call(2) + type.slots[0](1) + type.written;
  return table[1] + of_hidden(hidden) + equal(2) * alike(3) + of_type + merged(2) * merging(3) + barely(5);
}
} // namespace at::native
""",
    f"{FOLDER}/Five.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
const int table[2] = {5, 6};
int Hidden::first() { return 7; }
} // namespace at::native
""",
    f"{FOLDER}/Bytes.cpp": """\
// The last byte of one distance and what follows it look like a use of `alone`.
asm(".pushsection .text\\n.type looks,@function\\nlooks: .byte 0xf3, 0x0f, 0x58, 0x3d, 0, 0, 0, 0x0d\\n"
    ".long _ZN2at6native5aloneE - . - 4\\nret\\n.size looks, . - looks\\n.popsection\\n");
""",
    f"{FOLDER}/Main.cpp": """\
#include <ATen/native/Shared.h>
#include <cstdio>
namespace at::native {
static Function kept_function = nullptr;
Registry::Registry(const char* name, Function function) {
  if (kept_function) std::puts("twice");
  kept_function = function;
}
int registered(int a) { return kept_function(a); }
int addCallback(Function function) { static int count = 0; kept_function = function; return ++count; }
extern "C" API void report() {
  std::printf("%d %d %d %d %d %d %d %d\\n", shown(1), seen(), deep(), of_shape(Shape()), registered(2), counted(),
              counted(), tabled());
  std::printf("%d %d\\n", seen(), of_c(1));
}
} // namespace at::native
""",
    f"{FOLDER}/Plain.c": """\
static int (*pointed)(int);
static __attribute__((noinline)) int in_c(int a) { return a + 40; }
__attribute__((visibility("default"))) int of_c(int class) {
  pointed = in_c;
  return pointed(class) * 2;
}
""",
    SCHEMAS: "#include <ATen/native/Generic.h>\nint defined = inner(1);\n",
    f"{FOLDER}/Hook.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
static int hook(int a) { return a + 5; }
static int hooked = addCallback(hook);
API int hooks() { return hooked; }
} // namespace at::native
""",
    f"{FOLDER}/Start.cpp": """\
#include <ATen/native/Shared.h>
namespace at::native {
static int handler(int a) { return a + 1000; }
static Registry registers("one, and made when the process starts", handler);
API int beside(int a) { return a; }
int pointed(int a) { return a + 14; }
"""
    + POINTER
    + """\
} // namespace at::native
namespace torch { struct Library { void def(const char*) {} }; }
#define TORCH_LIBRARY(name, m) [[maybe_unused]] static void name(torch::Library& m)
TORCH_LIBRARY(some, m) {
  m.def("an operator");
}
""",
}


# Of the same name as a source that the library has.
NO_LIBRARY_HAS = {
    f"{FOLDER}/xpu/Two.cpp": "#include <ATen/native/Shared.h>\n#error\nint other() { return small(1); }\n"
}


class Small:
    """The base, its checkout, and what is put in front of it."""

    device = False  # whether the GPU's code is to change, too

    def __init__(
        self, folder: Path, *link: str, sources: Mapping[str, str] = SOURCES, bindings: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.link, self.bindings = folder, link, bindings or {}
        self.sources = {**sources, **self.bindings}
        self.tree = committed(folder / "tree", {**UPSTREAM, **self.sources, **NO_LIBRARY_HAS})
        site = folder / "site"
        write(site, {"torch/include/" + path.removeprefix("aten/src/"): text for path, text in sources.items()})
        write(site, {"torch.dist-info/RECORD": "torch/lib,sha256=1,1\n", "torch/lib/empty.cpp": ""})
        template = "torchgen/packaged/ATen/templates/RegisterSchema.cpp"
        write(site, {template: "#include <ATen/native/Generic.h>\nint generated() { return inner(1); }\n"})
        write(site, {"torch/version.py": "cuda = None\n"})
        self.library = site / "torch/lib/libtorch_cpu.so"
        self.built(sources, self.library)
        for name, paths in (("libc10.so", ()), ("libtorch_python.so", self.bindings)):
            files = (site / "torch/lib/empty.cpp", *(self.tree / path for path in paths))
            compiled(
                *FLAGS, "-w", MERGING, "-shared", "-I", self.tree / "aten/src", *files, "-o", site / "torch/lib" / name
            )
        self.base = Base(Path("python"), site, "2.13.0", site / "torch.dist-info")
        config = "C++ Version: 201703\nCXX_FLAGS= " + " ".join(FLAGS[1:])
        self.base.__dict__["probe"] = Probe(str(site / "include"), ".so", [], "", config, "")

    def built(self, sources: Mapping[str, str], library: Path) -> Path:
        """The whole library of these sources."""
        folder = library.with_suffix(".sources")
        write(folder, sources)
        files = sorted(
            file
            for file in folder.rglob("*.c*")
            if file.suffix != ".cu" and str(file.relative_to(folder)) not in self.bindings
        )
        # As objects of their own, whose order is that of a build.
        objects = []
        headers = repr([text for path, text in sources.items() if path.endswith(".h")])
        for file in files:
            made = digest(str(file.relative_to(folder)).encode(), file.read_bytes(), headers.encode())
            objects.append(self.folder / f"objects/{made}.o")
            if not objects[-1].is_file():
                objects[-1].parent.mkdir(exist_ok=True)
                language = ("-x", "c", *FLAGS[1:]) if file.suffix == ".c" else FLAGS
                words = (*language, "-w", MERGING, "-I", folder / "aten/src", "-I", folder, "-c", file)
                compiled(*words, "-o", objects[-1])
        compiled("-shared", *self.link, *objects, "-Wl,-soname,libtorch_cpu.so", "-o", library)
        return library

    def printed(self, front: str = "", library: Path | None = None) -> str:
        """What a program prints with one library in front of the base, or with another in its place."""
        program = self.folder / "program"
        if not program.is_file():
            write(self.folder, {"program.cpp": 'extern "C" void report();\nint main() { report(); }\n'})
            compiled(self.folder / "program.cpp", self.library, f"-Wl,-rpath,{self.library.parent}", "-o", program)
        variables = {"LD_PRELOAD": front, "LD_LIBRARY_PATH": str(library.parent if library else "")}
        done = subprocess.run([program], env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def found(self, edits: Mapping[str, tuple[str, str]]) -> Replacements:
        """What is compiled for a change."""
        search, changed, headers, _ = self._search(edits, 40)
        return search.find(changed, headers)

    def change(self, edits: Mapping[str, tuple[str, str]], limit: int = 40) -> tuple[str, str, list[str]]:
        """What the base prints with the change in front; what the library prints built with it; what was compiled."""
        search, changed, headers, texts = self._search(edits, limit)
        found = search.find(changed, headers)
        files = self.in_front(found)
        front = self.folder / "libtorch.so"
        compiled("-shared", WRITABLE, *files, self.library, "-Wl,--no-undefined", "-o", front)
        whole = self.built(texts, self.folder / "oracle/libtorch_cpu.so")
        return self.printed(str(front)), self.printed(library=whole), list(found.told)

    def in_front(self, found: Replacements) -> list[Path]:
        """What a library is linked of that goes in front of the base."""
        assert found.libraries
        files, units = next(led(found, found.libraries, (found.objects, ())))
        flags = flags_of(self.base, self.folder / "work", capabilities={"DEFAULT": ()})
        made = [file for file in Compiler(flags).compile_all(units).values() if isinstance(file, Path)]
        assert len(made) == len(units)
        # A fork has two libraries, each with tables of its own.
        assert all(symbol.hidden for file in made for symbol in Object(file).defined.values())
        return [*files, *made]

    def plan(self, edits: Mapping[str, tuple[str, str]], limit: int = 40) -> list[str]:
        """What is told of the change before anything is compiled, but for how long it took the last time."""
        search, changed, headers, _ = self._search(edits, limit)
        return [re.sub(r"; \d+ s the last time", "", line) for line in search.plan(changed, headers).told]

    def _search(
        self, edits: Mapping[str, tuple[str, str]], limit: int
    ) -> tuple[Search, dict[str, str], dict[str, str], dict[str, str]]:
        """A search for a change, its sources and headers, and the texts of all files."""
        texts = dict(self.sources)
        for path, (before, after) in edits.items():
            assert before in texts[path]
            texts[path] = texts[path].replace(before, after)
        write(self.tree, texts)
        changed = {path: text for path, text in texts.items() if text != self.sources[path]}
        headers = {path: text for path, text in changed.items() if path.endswith(".h")}
        tree = Tree.of(Checkout.open(self.tree), "main", self.base.version, "0" * 40, self.device, {})
        own = write(self.folder / "own", {path.removeprefix("aten/src/"): changed[path] for path in headers})
        work = self.folder / "work"
        fronts: tuple[list[Path], list[Path]] = ([own] if headers else [], [])
        flags = (flags_of(self.base, work, front, capabilities={"DEFAULT": ()}) for front in fronts)
        compiler, old = map(Compiler, flags)
        libraries = Libraries(self.base, work, tree.device, tree.namesakes)
        search = Search(Decision(tree, libraries, compiler, old, limit, NOTHING_GENERATED, {}))
        return search, {path: text for path, text in changed.items() if path.endswith((".cpp", ".c"))}, headers, texts


# What PyTorch's generators write is as it was.
NOTHING_GENERATED: Any = SimpleNamespace(
    of="",
    unlike=set(),
    declared=set(),
    headers={},
    unshipped=[],
    kernels={},
    definitions="",
    sources=lambda names, whole: {},
    released={SCHEMAS: "#include <ATen/native/Generic.h>\n"},
)


def compiled(*words: str | Path) -> None:
    subprocess.run(["c++", *words], check=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("small"))


NAMES = ("One", "Two", "Three", "Four", "Five", "Start")
ONE, TWO, THREE, FOUR, FIVE, START = (f"{FOLDER}/{name}.cpp" for name in NAMES)
SHARED = f"{FOLDER}/Shared.h"
REGISTERS = ("ecx", "edx", "esi", "r8d", "r9d", "r10d", "r11d")
CLOBBERED = ("rcx", "rdx", "rsi", "r8", "r9", "r10", "r11")
CLOBBER = (
    f'asm volatile("{"; ".join(f"xor %%{name}, %%{name}" for name in REGISTERS)}" ::: '
    + ", ".join(f'"{name}"' for name in CLOBBERED)
    + ");"
)
# What a function is to the linker; test_planted.py has each kind of C++ entity, local ones of a source and inline ones.
EFFECTIVE = {
    "exported": ({ONE: ("+ 1;", "+ 7;")}, {ONE}),
    # Who calls it is not compiled: the base's copy jumps to the new one.
    "hidden": ({ONE: ("+ 2;", "+ 8;")}, {ONE}),
    "hidden, in the middle": ({TWO: ("* 2", "* 5")}, {TWO}),
    "exported, of several files": (
        {TWO: ("secret(1)", "secret(2)"), THREE: ("deeper(7)", "deeper(8)")},
        {TWO, THREE},
    ),
    "local, of a C source": ({f"{FOLDER}/Plain.c": ("a + 40", "a + 41")}, {f"{FOLDER}/Plain.c"}),
    "exported, of a C source": ({f"{FOLDER}/Plain.c": ("* 2", "* 3")}, {f"{FOLDER}/Plain.c"}),
    # The class keeps its table, whose function jumps.
    "virtual, of a hidden class": ({FIVE: ("return 7", "return 8")}, {FIVE}),
    "one code of two functions": ({ONE: ("a * 7", "a * 8")}, {ONE}),
    "hidden, and a part of another function": ({ONE: ("a * 13", "a * 14")}, {ONE}),
    # A table that leads to them stays the base's, and is one for both.
    "local, of a hidden table": ({ONE: ("a * 11", "a * 12")}, {ONE}),
    "local, of a table that a hidden one has": ({ONE: ("a - 41", "a - 42")}, {ONE}),
    "writes to a hidden table": ({ONE: ("type.written = 5", "type.written = 6")}, {ONE}),
    "a hidden variable, of its source alone": ({ONE: ("alone = 1", "alone = 2")}, {ONE}),
    # Old code that relies on how the old function leaves registers runs no longer.
    "registers": (
        {ONE: ("int plain(int a) { return", f"int plain(int a) {{\n  {CLOBBER}\n  return 2 *")},
        {ONE},
    ),
    # The function that has its address may be of what is registered, but does not call it.
    "a pointer to it is in a function that has gone": (
        {START: (f"14; }}\n{POINTER}", "15; }\nAPI Function points() { return pointed; }\n")},
        {START},
    ),
    # The base's own copy, which is registered, jumps.
    "what is registered once": ({START: ("a + 1000", "a + 2000")}, {START}),
    # Who has `deeper`, or the table, is not compiled: the call and the use go to the base's.
    "calls what is hidden": ({THREE: ("+ twice", "+ 3 + twice")}, {THREE}),
    "uses a hidden table": ({FOUR: ("table[1]", "table[0]")}, {FOUR}),
    # Another source reads both, and keeps doing so.
    "writes to what others read": ({ONE: ("+ 1;", "+ ++written + ++of_header;")}, {ONE}),
    "virtual": ({ONE: ("return 4", "return 5")}, {ONE}),
    "static of a function": ({ONE: ("count = 100", "count = 200")}, {ONE}),
    "lines move": ({ONE: ("namespace {\n", "namespace {\n// Moves all.\n\n"), TWO: ("* 2", "* 3")}, {TWO}),
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_a_change_takes_effect(small: Small, name: str) -> None:
    edits, expected = EFFECTIVE[name]
    here, whole, told = small.change(edits)
    assert here == whole != small.printed()
    assert {line.partition(" ")[0] for line in told} == expected


REGISTERS_ONE = 'static Registry registers("one, and made when the process st'
MORE = "template <typename T> struct More;\ntemplate <> struct More<int> {};\ninline int inner"
REFUSED = {
    "local, and a part of one without room": (
        {ONE: ("quiet(int a) { return a; }", "quiet(int a) { return a + 1; }")},
        "One.cpp:23 `at::native::barely` is hidden in libtorch_cpu.so and cannot become a jump there, so "
        "at::native::tabled would still use the base's: give it another name",
    ),
    "a hidden table": (
        {ONE: ("{&called, slots, 0}", "{&slot, slots, 0}")},
        "`at::native::type` is a variable that is hidden in libtorch_cpu.so, so at::native::tabled would still use the "
        "base's: change functions that it leads to instead, or give it another name",
    ),
    "a table that a hidden one has": (
        {ONE: ("= {&slot,", "= {&called,")},
        "`at::native::type` is a variable that is hidden in",
    ),
    # The base's code has both names.
    "two functions that were one": (
        {ONE: ('__attribute__((alias("_ZN2at6native5equalEi")))', "{ return a * 9; }")},
        "`at::native::alike` is hidden in libtorch_cpu.so and cannot become a jump there",
    ),
    "no room for a jump": (
        {ONE: ("void nothing() {}", "void nothing() { written = 50; }")},
        "`at::native::nothing` is hidden in libtorch_cpu.so and cannot become a jump there",
    ),
    "a hidden variable": (
        {ONE: ("written = 1", "written = 2")},
        "One.cpp:7 `at::native::written` is a variable that is hidden in libtorch_cpu.so, so at::native::seen would",
    ),
    "a registration's name": (
        {START: ('"one,', '"two,')},
        f"Start.cpp no longer has `{REGISTERS_ONE}`, which the base has registered",
    ),
    "a registration's own text": (
        {START: ('starts", handler', 'starts", nullptr')},
        f"Start.cpp:4 `{REGISTERS_ONE}` can be registered only once, and the branch changes what it registers: change",
    ),
    "an operator of a library": (
        {START: ('("an operator");\n', '("an operator");\n  m.def("another");\n')},
        "Start.cpp:12 `TORCH_LIBRARY(some, m)` can be registered only once, and the branch changes what it registers: "
        "change a function that this calls, or define what is new in a TORCH_LIBRARY_FRAGMENT of a new source",
    ),
    "what starts": (
        {f"{FOLDER}/Hook.cpp": ("a + 5", "a + 6")},
        "Hook.cpp calls `at::native::addCallback` when the process starts, which the base has done already",
    ),
    "what is generated": (
        {f"{FOLDER}/Inner.h": ("inline int inner", MORE), ONE: ("+ 1;", "+ 77;")},
        f"{SCHEMAS}, which PyTorch's build generates, includes the changed {FOLDER}/Inner.h, where something changes",
    ),
    "a syntax error": ({ONE: ("a * 3", "a * ")}, "One.cpp:4:"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_that_would_not_run_is_refused(small: Small, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is compiled where no object has to tell it."""
    edits, reason = REFUSED[name]
    with pytest.raises(ForkError) as error:
        small.change(edits)
    assert reason in str(error.value)
    early = name in (
        "what is generated",
        "a registration's name",
        "a registration's own text",
        "an operator of a library",
    )
    assert not early or capsys.readouterr().out == ""
    if early:
        with pytest.raises(ForkError, match=re.escape(str(error.value))):
            small.plan(edits)


PLANNED = {
    "hidden": ({ONE: ("+ 2;", "+ 9;")}, {f"{ONE} (changed)"}),
    "inline": (
        {SHARED: ("a + 10", "a + 13")},
        {f"{TWO} (includes the changed {SHARED})", f"{THREE} (includes the changed {SHARED})"},
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_tells_what_is_compiled_and_compiles_nothing(
    small: Small, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edits, expected = PLANNED[name]
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "_compile", lambda *_: pytest.fail("something was compiled"))
        assert {*small.plan(edits)} == {f"compile  {line}" for line in expected}
        assert capsys.readouterr().out == ""
    _, _, told = small.change(edits)
    assert expected == {*told}
    assert {*small.plan(edits)} == {f"kept     {line}" for line in expected}


def test_a_plan_refuses_too_many(small: Small) -> None:
    with pytest.raises(ForkError, match="^2 sources have .*, about 1 minutes of a core's time: `--many 2` allows it"):
        small.plan({SHARED: ("a + 10", "a + 13")}, limit=1)


def test_a_registration_stays_with_the_base(small: Small) -> None:
    """It would print `twice` if the copy registered again."""
    here, whole, told = small.change({START: ("return a; }", "return a + 1; }")})
    assert here == whole and [line.partition(" ")[0] for line in told] == [START]


@pytest.mark.parametrize(
    "calling", ["", "struct Calling { int call() { return small(1); } };\n"], ids=["nobody", "a type"]
)
def test_cuda_off_leaves_the_code_of_the_gpu(calling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the GPU's library has of an inline function stays; a type must be the same on both sides, and one that calls
    the function is."""
    kernel = f"{FOLDER}/cuda/Kernel.cu"
    text = "#include <ATen/native/Shared.h>\nAPI int on_gpu(int a) { return at::native::small(a); }\n"
    shared = SOURCES[SHARED].replace("inline int small", "[[gnu::noinline]] inline int small")
    shared = shared.replace("template <typename T> T twice", f"{calling}template <typename T> T twice")
    alone, uses = f"{FOLDER}/Alone.h", f"{FOLDER}/Uses.h"
    others = {
        alone: "constexpr int kAlone = 1;\n",
        uses: "#include <ATen/native/Alone.h>\ninline int uses(int a = kAlone) { return a; }\n",
        THREE: f"#include <ATen/native/Uses.h>\n{SOURCES[THREE]}",
    }
    both = Small(tmp_path, sources={**SOURCES, **others, SHARED: shared, kernel: text})
    write(both.base.site, {"torch/version.py": "cuda: str = '13.0'\n"})
    # Its inline functions are exported, as nvcc leaves them.
    words = (FLAGS[2], "-shared", "-x", "c++", "-I", both.tree / "aten/src", both.tree / kernel)
    compiled(*words, "-o", both.library.with_name("libtorch_cuda.so"))
    here, whole, told = both.change({SHARED: ("a + 10", "a + 13")})
    assert here == whole and {line.partition(" ")[0] for line in told} == {TWO, THREE}
    said = f"left out {kernel}: it includes the changed {SHARED}, and the GPU keeps the base's, as --cuda off asks\n"
    assert said in capsys.readouterr().out
    # Another header may change otherwise, whoever uses it without its name.
    both.plan({SHARED: ("a + 10", "a + 13"), alone: ("= 1", "= 2")})
    assert said in capsys.readouterr().out
    with pytest.raises(ForkError, match=f"{kernel} includes the changed {SHARED}, where more than functions differs"):
        both.plan({SHARED: ("  int second;", "  long second;")})
    both.device = True
    with pytest.raises(ForkError, match=f"{kernel} includes the changed {SHARED}, and CUDA is "):
        both.plan({SHARED: ("a + 10", "a + 13")})


BOUND = "torch/csrc/Bound.cpp"
BOUND_TEXT = """\
#include <ATen/native/Shared.h>
namespace at::native {
int bound(int a) { return a + of_bindings; }
int binding(int a) { return bound(a) * 2; }
} // namespace at::native
"""
BINDINGS = "inline int of_bindings = 6;\nint bound(int a);\n} // namespace at::native\n"


def test_code_of_the_bindings_without_python(tmp_path: Path) -> None:
    """A C++ program has none: what they alone hide, core code has of its own, or cannot have."""
    shared = SOURCES[SHARED].replace("} // namespace at::native\n", BINDINGS)
    both = Small(tmp_path, sources={**SOURCES, SHARED: shared}, bindings={BOUND: BOUND_TEXT})
    here, whole, _ = both.change({ONE: ("+ 1;", "+ of_bindings++;")})
    assert here == whole != both.printed()
    with pytest.raises(ForkError, match="One.cpp uses `at::native::bound`, which the base hides"):
        both.change({ONE: ("+ 1;", "+ bound(1);")})
    # Such as a pass for ONNX, whose source uses nothing of Python.
    found = both.found({BOUND: ("* 2", "* of_bindings")})
    assert found.python and not found.objects


def test_a_base_whose_calls_do_not_go_by_the_table(tmp_path: Path) -> None:
    """Of an exported function, the base's copy jumps; of a base that binds variables too, nothing is replaced."""
    direct = Small(tmp_path / "functions", "-Wl,-Bsymbolic-functions")
    here, whole, told = direct.change({THREE: ("sides()", "sides() + 1")})
    assert here == whole != direct.printed() and told == [f"{THREE} (changed)"]
    with pytest.raises(ForkError, match="was linked with -Bsymbolic"):
        Small(tmp_path / "all", "-Wl,-Bsymbolic").change({ONE: ("+ 1;", "+ 7;")})


def test_a_base_that_is_stripped(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="libtorch_cpu.so lists no hidden symbols, so nothing tells where it has"):
        Small(tmp_path, "-Wl,--strip-all").change({ONE: ("+ 1;", "+ 7;")})


def test_a_jump_farther_than_an_instruction_reaches(small: Small) -> None:
    """Three GiB lie between the two libraries, as those of the GPU do."""
    here, whole, _ = small.change({ONE: ("+ 2;", "+ 18;")})
    spacer = small.folder / "libspacer.so"
    write(small.folder, {"spacer.cpp": "char space[3ul << 30];\n"})
    compiled("-shared", "-fPIC", small.folder / "spacer.cpp", "-o", spacer)
    assert small.printed(f"{small.folder / 'libtorch.so'} {spacer}") == here == whole


def test_a_system_that_lets_no_program_change_its_code(small: Small) -> None:
    here, _, _ = small.change({THREE: ("deeper(7)", "deeper(9)")})
    refusing = "int mprotect(void*, unsigned long, int) { errno = EACCES; return -1; }\n"
    write(small.folder, {"strict.cpp": f'#include <cerrno>\nextern "C" {refusing}'})
    compiled("-shared", "-fPIC", small.folder / "strict.cpp", "-o", small.folder / "libstrict.so")
    with pytest.raises(AssertionError, match="of libtorch_cpu.so in memory, and this system does not let a program"):
        small.printed(f"{small.folder / 'libtorch.so'} {small.folder / 'libstrict.so'}")
