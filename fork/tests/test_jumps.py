"""Where the memory lies over which a library's functions jump to what is far away."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fork.engine.compile import toolchain

# A library that ends inside a page, and one hole near it: right above, below, or farther than a jump reaches.
PROGRAM = """
#include "jumps.cpp"
const Copy fork_copies[1] = {};
const size_t fork_copy_count = 0;
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
