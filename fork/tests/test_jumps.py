"""Which functions jump, and where the memory lies over which they jump to what is far away."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fork.checkout.release_tree import Text
from fork.engine.binary.libraries import Caller, Held, Place
from fork.engine.compile import toolchain
from fork.engine.replace.decide import Decided
from fork.engine.replace.source import CHANGED, Source
from fork.engine.replace.trace import Trace
from fork.tests.test_objects import compiled

# A library that ends inside a page, and one hole near it: right above, below, or farther than a jump reaches.
PROGRAM = """
#include "base.cpp"
char* fork_places[1];
namespace {
std::vector<Place> hidden() { return {}; }
std::vector<Place> variables() { return {}; }
std::vector<Place> copies() { return {}; }
}
int main() {
  const int64_t mib = 1 << 20, size = 8192 * mib;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* all = static_cast<char*>(mmap(nullptr, size, PROT_NONE, flags, -1, 0));
  const Loaded library = {"full", all + 4096 * mib, all + 4097 * mib + 1234};
  for (int64_t hole : {4098, 5000, 4090, 2500, 1000}) {
    munmap(all + hole * mib, 2 * mib);
    std::printf("%d", static_cast<int>((beside(library, 100) - all) / mib / 2 - hole / 2));
    std::fflush(stdout);
    mmap(all + hole * mib, 2 * mib, PROT_NONE, flags | MAP_FIXED, -1, 0);
  }
}
"""


def test_memory_near_a_library(tmp_path: Path) -> None:
    words = ("-std=c++17", "-I", toolchain.GLUE, "-x", "c++", "-", "-o", tmp_path / "program")
    subprocess.run([toolchain.cxx(), *words], input=PROGRAM, text=True, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "0000")
    assert "of full in memory, and no memory is free near it" in done.stderr


@pytest.mark.parametrize(
    ("names", "differing"),
    [(set(), {"_Z4useri"}), ({"weak"}, {"_Z4useri", "_Z6strongi"}), (None, {"_Z4useri", "_Z6strongi"})],
)
def test_what_a_compiler_makes_of_unchanged_functions(
    names: set[str] | None, differing: set[str], tmp_path: Path
) -> None:
    """Of another header that differs, nothing can come but noise; of one that a source uses, or may, anything."""
    before = "namespace {\n}\n" + FUNCTIONS
    after = before.replace("weak(a); }", "weak(a) * 2; }")
    compiler: Any = None
    source = Source(Text("aten/One.cpp", before, after), CHANGED, compiler)
    source.new.append(compiled(tmp_path / "new.o", after))
    source.old.append(compiled(tmp_path / "old.o", before.replace("a + 1", "a + 7")))  # noise
    libraries: Any = SimpleNamespace(held=lambda *_: Held())
    trace = Trace(libraries, [source], Decided({}, {"words", "of", "headers"}, names), NOTHING_GENERATED, lambda _: ())
    assert trace.only_includes(source) == (names == set())
    (found,) = trace._differing(Held())[0].values()
    assert {name for name in ("_Z4useri", "_Z6strongi") if source.new[0].where[name] in found} == differing


NOTHING_GENERATED: Any = SimpleNamespace(unlike=set(), headers={}, declared=set())
REGISTERED = 'static Registry registers("one", f);\n'
FUNCTIONS = """
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int strong(int a) { return a + 1; }
HIDDEN __attribute__((noinline)) inline int weak(int a) { return a + 2; }
int user(int a) { return weak(a); }
"""


@pytest.mark.parametrize(
    ("name", "how", "jumps"), [("strong", "calls", False), ("strong", "direct", True), ("weak", "calls", True)]
)
def test_who_relies_on_the_registers_of_a_function(name: str, how: str, jumps: bool, tmp_path: Path) -> None:
    """Old code that stays, because it may be of what the base has registered, and calls what it knows: the function of
    its own source, which no linker takes of another."""
    symbol = f"_Z{len(name)}{name}i"
    held = Held(places={symbol: {Place("libtorch_cpu.so", 0, 16)}})
    for callers in (held.direct, held.calls) if how == "calls" else (held.direct,):
        callers[symbol].append(Caller("gone", "One.cpp", "libtorch_cpu.so"))
    compiler: Any = None
    source = Source(Text("aten/One.cpp", REGISTERED + FUNCTIONS, REGISTERED + FUNCTIONS), CHANGED, compiler)
    source.new.append(compiled(tmp_path / "one.o", FUNCTIONS))
    libraries: Any = SimpleNamespace(held=lambda *_: held)
    trace = Trace(libraries, [source], Decided({}, set(), set()), NOTHING_GENERATED, lambda _: ())
    assert trace.jump(source, symbol) == jumps == (symbol in trace.jumps)
