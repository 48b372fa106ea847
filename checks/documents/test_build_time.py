"""The bench of the build: how Ninja's log is read, and that the guide shows what was measured."""

from __future__ import annotations

from pathlib import Path

from bench import build
from bench.documents import fill
from fork.tests.helpers import write

LOG = (
    "# ninja log v7\n"
    "1\t2087\t17954\tCMakeFiles/glue.dir/links/glue/blas_symbols.cpp.o\t313c33e9a03aec4e\n"
    "2000\t9500\t17954\tCMakeFiles/headers.dir/cmake_pch.hxx.gch\t66697e2eb794e883\n"
    "10\t5010\t17954\tCMakeFiles/kernels_AVX2.dir/links/stack/aten/src/ATen/native/cpu/K.cpp.o\taa\n"
    "10\t8010\t17954\tCMakeFiles/kernels_DEFAULT.dir/links/stack/aten/src/ATen/native/cpu/K.cpp.o\tbb\n"
    "10\t20\t17954\tCMakeFiles/torch.dir/a/b/generated/aten/RegisterEverything.cpp.o\tbb\n"
    "81000\t81100\t17954\tlibtorch.so\tcc\n"
)


def test_units_are_named_and_the_longest_is_first(tmp_path: Path) -> None:
    write(tmp_path, {"forks/state/work/cmake/.ninja_log": LOG})
    assert list(build.units(tmp_path).items()) == [
        ("stack/aten/src/ATen/native/cpu/K.cpp for DEFAULT", 8.0),
        ("cmake_pch.hxx", 7.5),
        ("stack/aten/src/ATen/native/cpu/K.cpp for AVX2", 5.0),
        ("glue/blas_symbols.cpp", 2.086),
        ("aten/RegisterEverything.cpp", 0.01),
    ]


def test_the_guide_shows_what_was_measured() -> None:
    text = build.GUIDE.read_text()
    assert fill(text, build.document(build.kept_here()), build.GUIDE.name) == text
