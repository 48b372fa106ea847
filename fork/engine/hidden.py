"""Leads what compiled sources call, and the base's libraries hide, to the base's own: by its place in the library.

So a source that calls such a function needs no copy of it, whose variables would be another's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fork.engine import toolchain
from fork.engine.callers import Place
from fork.engine.objects import readable

# The compiler's own libraries have these, and the linker finds them there, the C library's part that is not shared too.
UNSHARED = r"(?:atexit|at_quick_exit|pthread_atfork|[fl]?stat(?:64)?|fstatat(?:64)?|mknod(?:at)?)$"
OTHERS = re.compile(rf"_?_(?!Z)|std::|operator (?:new|delete)|__gnu_cxx::|__cxxabiv1::|{UNSHARED}")

PROGRAM = """// Each function jumps to where the base's library has it.
#include <link.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Place {{
  const char* library;
  unsigned long offset;
}};
static const Place places[] = {{
{places}
}};
extern "C" __attribute__((visibility("hidden"))) void* fork_hidden_places[{count}];
void* fork_hidden_places[{count}];

static int fill(dl_phdr_info* library, unsigned long, void*) {{
  const char* slash = std::strrchr(library->dlpi_name, '/');
  const char* name = slash ? slash + 1 : library->dlpi_name;
  for (int n = 0; n < {count}; ++n) {{
    if (!fork_hidden_places[n] && !std::strcmp(name, places[n].library)) {{
      fork_hidden_places[n] = reinterpret_cast<void*>(library->dlpi_addr + places[n].offset);
    }}
  }}
  return 0;
}}

// Before all that a source does when the process starts.
__attribute__((constructor(101))) static void start() {{
  dl_iterate_phdr(fill, nullptr);
  for (int n = 0; n < {count}; ++n) {{
    if (!fork_hidden_places[n]) {{
      std::fprintf(stderr, "the fork needs %s, which is not loaded\\n", places[n].library);
      std::abort();
    }}
  }}
}}

asm(".text\\n"
{jumps}
    );
"""


def leading(places: Mapping[str, Place], work: Path) -> Path:
    """An object that defines these functions; each leads to its place in a library of the base."""
    names = sorted(places)
    rows = "\n".join(f'    {{"{places[name].library}", {places[name].offset}ul}},' for name in names)
    jumps = "\n".join(
        f'    ".globl {name}\\n.hidden {name}\\n.type {name},@function\\n"\n'
        f'    "{name}: jmp *fork_hidden_places+{8 * n}(%rip)\\n"'
        for n, name in enumerate(names)
    )
    text = PROGRAM.format(places=rows, count=len(names), jumps=jumps)
    return toolchain.glued(work, "hidden", text)


def is_other(name: str) -> bool:
    """Whether a function is of a library that every C++ program has."""
    return bool(OTHERS.match(readable(name) if name.startswith("_Z") else name))
