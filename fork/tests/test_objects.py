"""What the comparison of two objects takes for a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fork.engine.binary.objects import NUMBERED, Object, changed_sections
from fork.engine.compile import toolchain

SWITCH = """\
int pick(int a) {
  switch (a) {
    case 0: return 7;
    case 1: return 3;
    case 2: return 9;
    case 3: return 1;
    case 4: return 5;
    default: return 0;
  }
}
"""


def compiled(file: Path, text: str) -> Object:
    flags = ("-O2", "-fPIC", "-ffunction-sections", "-fdata-sections")
    command = [str(toolchain.cxx()), *flags, "-x", "c++", "-", "-c", "-o", str(file)]
    subprocess.run(command, input=text, text=True, check=True)
    return Object(file)


def test_a_constant_is_the_same_under_another_number(tmp_path: Path) -> None:
    """GCC numbers the tables of its switches through the whole file."""
    texts = (SWITCH, f"int other(int a) {{ int b = a; return b; }}\n{SWITCH}", SWITCH.replace("return 3", "return 8"))
    before, moved, changed = (compiled(tmp_path / f"{n}.o", text) for n, text in enumerate(texts))
    numbered = [{name for name in one.nodes if NUMBERED.match(name)} for one in (before, moved, changed)]
    assert all(numbered) and numbered[0] != numbered[1]
    assert not numbered[1] & changed_sections(moved, before)
    assert numbered[2] & changed_sections(changed, before)
