"""What the proof of a new fork takes for a library's own memory."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

from fork.engine.compile import toolchain
from fork.engine.link import proof


def test_variables_that_begin_as_zero_are_a_librarys_own(tmp_path: Path) -> None:
    library = tmp_path / "libzeros_of_test_proof.so"
    source = "extern const int one = 1; int zeros[1 << 16]; extern const int* const some[] = {&one, zeros + 65535};"
    command = [str(toolchain.cxx()), "-x", "c++", "-", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    loaded = ctypes.CDLL(str(library))
    base = proof.begins()[library.name]
    slot = ctypes.addressof(ctypes.c_void_p.in_dll(loaded, "some")) - base
    slots = [(name, library.name, slot + n * proof.ADDRESS) for n, name in enumerate(("one", "zeros"))]
    assert proof.wrong(slots, [library.name]) == []
    assert proof.wrong(slots, ["libc.so.6"]) == [f"{name} of {library.name}" for name in ("one", "zeros")]


def test_a_copy_jumps_to_a_librarys_own_or_not(tmp_path: Path) -> None:
    """Near, over a step beside the library that leads anywhere, or not at all."""
    texts = {
        "jumps": "near: .byte 0xe9\n.long own - near - 5\nown: ret\nnop\nnop\nnop\nnop\nfar: .fill 5",
        "step": "step: .fill 14",
    }
    found: dict[str, ctypes.CDLL] = {}
    for name, text in texts.items():
        library = tmp_path / f"lib{name}_of_test_proof.so"
        source = f'asm(R"(.data\n.globl near, own, far, step\n{text}\n)");'
        command = [str(toolchain.cxx()), "-x", "c++", "-", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True)
        found[name] = ctypes.CDLL(str(library))

    def at(name: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(found["step" if name == "step" else "jumps"], name))

    ctypes.memmove(at("far"), proof.JUMP + (at("step") - at("far") - 5).to_bytes(4, sys.byteorder, signed=True), 5)
    ctypes.memmove(at("step"), proof.FAR + at("own").to_bytes(8, sys.byteorder), 14)
    file = "libjumps_of_test_proof.so"
    names, base = ("near", "far", "own"), proof.begins()[file]
    copies = [(name, file, at(name) - base) for name in names]
    assert proof.staying(copies, [file]) == [f"own of {file}"]
    assert proof.staying(copies, ["libc.so.6"]) == [f"{name} of {file}" for name in names]


def test_bindings_that_were_lost(tmp_path: Path) -> None:
    """Whatever a definition cuts out that the base was compiled with, torch._C lacks it."""
    asked = {"stage": "/", "slots": [], "jumps": [], "own": [], "bindings": ["Generator", "_no_such_name"]}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    command = [sys.executable, proof.__file__, str(tmp_path / "asked.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1
    assert done.stderr == "torch._C lacks 1 of the names that the base's has, such as _no_such_name\n"
