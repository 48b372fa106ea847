"""What code may use of the base is of a library that is loaded with it, whatever else hides the same name."""

from __future__ import annotations

import itertools

import pytest

from fork.engine.binary.libraries import LATE, NAMES, Held, Place
from fork.engine.binary.objects import is_other

CPU, C10, BINDINGS, CUDA, C10_CUDA = NAMES


def holding(*libraries: str) -> Held:
    """What is known where each of these libraries hides a function of the same name."""
    places = {"name": {Place(library, 16, 16) for library in libraries}}
    return Held(hidden={"name"}, places=places)


@pytest.mark.parametrize("python", [False, True])
def test_only_what_is_loaded_with_the_code(python: bool) -> None:
    """A C++ program is without the bindings, and nobody knows when the base loads the late libraries."""
    absent = {*LATE, *([] if python else [BINDINGS])}
    for count in (1, 2, 3):
        for libraries in itertools.combinations((*NAMES, *LATE), count):
            place = holding(*libraries).hides("name", python)
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
