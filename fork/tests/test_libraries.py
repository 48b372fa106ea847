"""What code may use of the base is of a library that is loaded with it, whatever else hides the same name."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from fork.engine.binary.libraries import LATE, NAMES, PROGRAM, Held, Place
from fork.engine.compile import toolchain
from fork.engine.replace.hidden import is_other
from fork.tests.helpers import write

CPU, C10, BINDINGS, CUDA, C10_CUDA = NAMES


def holding(*libraries: str) -> Held:
    """What is known where each of these libraries hides a function and a variable of the same name."""
    places = {"name": {Place(library, 16, 16) for library in libraries}}
    return Held(hidden={"name"}, places=places, variables=places)


@pytest.mark.parametrize("python", [False, True])
def test_only_what_is_loaded_with_the_code(python: bool) -> None:
    """A C++ program is without the bindings, and nobody knows when the base loads the late libraries."""
    absent = {*LATE, *([] if python else [BINDINGS])}
    for count in (1, 2, 3):
        for libraries in itertools.combinations((*NAMES, *LATE), count):
            for place in (holding(*libraries).hides("name", python), holding(*libraries).keeps("name", python)):
                assert place is None or place.library not in absent, libraries


@pytest.mark.parametrize(
    "libraries,core,bound",
    [
        ((CPU, BINDINGS), CPU, BINDINGS),
        ((BINDINGS,), None, BINDINGS),
        ((CUDA, *LATE), CUDA, CUDA),
        ((C10, BINDINGS), C10, BINDINGS),
        ((C10, C10_CUDA), None, None),
    ],
)
def test_the_own_library_before_the_only_other(libraries: tuple[str, ...], core: str | None, bound: str | None) -> None:
    for python, library in ((False, core), (True, bound)):
        place = holding(*libraries).hides("name", python)
        assert (place.library if place else None) == library


READERS = {  # each by the bytes before a distance: an opcode, and that it takes an operand from there
    "mov": "0x8b, 0x05",
    "cvttss2si": "0xf3, 0x0f, 0x2c, 0x05",
    "pshufb": "0x66, 0x0f, 0x38, 0x00, 0x05",
    "vpsubsb": "0xc5, 0xf9, 0xe8, 0x05",
    "vfmadd": "0xc4, 0xe2, 0x69, 0xb8, 0x05",
    "vmovaps": "0x62, 0xf1, 0x7c, 0x48, 0x28, 0x05",
    "not_jmp": "0xe9, 0x05",
    "not_xor": "0x35, 0x05",
    "not_push": "0x68, 0x05",
}


def test_only_what_can_be_an_operand_reaches_a_variable(tmp_path: Path) -> None:
    """Four bytes that lead there may be parts of two instructions: of a jump and of what follows it."""
    code = "".join(
        f'asm(".globl {name}\\n.type {name},@function\\n{name}: .byte {{}}\\n.long spot - . - 4\\nret\\n"\n'
        f'    ".size {name}, . - {name}\\n");\n'.replace("{}", bytes_)
        for name, bytes_ in READERS.items()
    )
    hidden = '__attribute__((visibility("hidden"))) int spot[8];\n'
    write(tmp_path, {"small.cpp": f'asm(".space 16, 0x90");\nextern "C" {{\n{hidden}}}\n{code}'})
    compiler = [str(toolchain.cxx()), "-std=c++17", "-O1"]
    subprocess.run([*compiler, "-shared", "-fPIC", f"{tmp_path}/small.cpp", "-o", f"{tmp_path}/small.so"], check=True)
    subprocess.run([*compiler, str(PROGRAM), "-o", f"{tmp_path}/references"], check=True)
    told = subprocess.check_output([tmp_path / "references", tmp_path / "small.so"], input="spot\n", text=True)
    rows = [row.split("\t") for row in told.splitlines()]
    assert sorted(row[3] for row in rows if row[0] == "direct") == sorted(
        n for n in READERS if not n.startswith("not_")
    )


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", True),
        ("_ZSt9to_stringB5cxx11RKN5torch3jit11tensorexpr5DtypeE", False),
        ("_ZStlsRSoRKN3c106DeviceE", False),
        ("_ZN2at5emptyEv", False),
    ],
)
def test_functions_of_the_standard_library(name: str, other: bool) -> None:
    """PyTorch adds functions for its own types to namespace std, and the base hides them as it does others."""
    assert is_other(name) == other
