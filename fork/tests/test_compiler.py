"""Objects that are kept: never one that was made of something else."""

from __future__ import annotations

from pathlib import Path

from fork.engine.compile.compiler import Compiler, Unit, listed
from fork.engine.wheel import base as bases
from fork.tests.helpers import flags_of, write


def made(tmp_path: Path, unit: Unit) -> bytes:
    """The object of a unit, by a compiler that looks for headers in `front` and then in `behind`."""
    flags = flags_of(bases.installed(), tmp_path / "work", [tmp_path / "front"], [tmp_path / "behind"])
    compiler = Compiler(flags)
    (object_,) = compiler.compile_all([unit]).values()
    assert isinstance(object_, Path)
    return object_.read_bytes()


def test_a_header_that_appears_in_front_of_another(tmp_path: Path) -> None:
    """Neither the list of an object's headers nor ccache's has it, and the command is the same."""
    unit = Unit("aten/src/ATen/a.cpp", "#include <X.hpp>\nextern const int value = V;\n")
    write(tmp_path, {"behind/X.hpp": "#define V 11\n", "front/Y.h": ""})
    first = made(tmp_path, unit)
    write(tmp_path, {"front/X.hpp": "#define V 12\n"})
    second = made(tmp_path, unit)
    write(tmp_path, {"front/X.hpp": "#define V 13\n"})
    assert len({first, second, made(tmp_path, unit)}) == 3


def test_a_change_of_flags(tmp_path: Path) -> None:
    write(tmp_path, {"front/Y.h": "", "behind/Y.h": ""})
    text = "extern const int value = V;\n"
    assert made(tmp_path, Unit("a.cpp", text, words=("-DV=11",))) != made(
        tmp_path, Unit("a.cpp", text, words=("-DV=12",))
    )


def test_what_a_compiler_lists() -> None:
    """As GCC writes it, and as nvcc does."""
    for colon in (":", " :"):
        files = listed(f"/a\\ b/x.part.o{colon} units/a.cu \\\n  /with\\ blank/b.h \\\n /x:y.h /$$c.h\n")
        assert files == ["units/a.cu", "/with blank/b.h", "/x:y.h", "/$c.h"]
