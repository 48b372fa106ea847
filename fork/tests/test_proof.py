"""What the proof of a new fork takes for a library's own memory."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

from fork.engine import proof, toolchain


def test_variables_that_begin_as_zero_are_a_librarys_own(tmp_path: Path) -> None:
    library = tmp_path / "libzeros_of_test_proof.so"
    source = "extern const int one = 1; int zeros[1 << 16]; extern const int* const some[] = {&one, zeros + 65535};"
    command = [str(toolchain.cxx()), "-x", "c++", "-", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    loaded = ctypes.CDLL(str(library))
    base = proof.mapped()[library.name][0]
    slot = ctypes.addressof(ctypes.c_void_p.in_dll(loaded, "some")) - base
    slots = [(name, library.name, slot + n * proof.ADDRESS) for n, name in enumerate(("one", "zeros"))]
    assert proof.wrong(slots, [library.name]) == []
    assert proof.wrong(slots, ["libc.so.6"]) == [f"{name} of {library.name}" for name in ("one", "zeros")]


def test_bindings_that_were_lost(tmp_path: Path) -> None:
    """Whatever a definition cuts out that the base was compiled with, torch._C lacks it."""
    asked = {"stage": "/", "slots": [], "own": [], "bindings": ["Generator", "_no_such_name"]}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, proof.__file__, str(tmp_path / "asked.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1
    assert done.stderr == "torch._C lacks 1 of the names that the base's has, such as _no_such_name\n"
