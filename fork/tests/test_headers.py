"""Of a changed header, the tool tells which names the change concerns, and whether generated code may have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fork.engine.replace.headers import HeaderNames, changed_names, generated
from fork.tests.helpers import write

HEADER = """\
#pragma once
#define LIMIT 4
namespace at {
int shown(int a);
inline int twice(int a) { return shown(a) * 2; }
struct Shape {
  int sides;
};
} // namespace at
"""


def names(text: str, *known: str, **others: str) -> HeaderNames:
    """Of a tree whose files have this text, which knows these names."""
    return HeaderNames(lambda path: text, lambda name: ["one"] * (name in known), others)


USER = "#include <A.h>\nint use() { return at::twice(1); }\n"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("shown(int a)", "shown(long a)", {"shown", "twice"}),
        ("LIMIT 4", "LIMIT 5", {"LIMIT"}),
        ("int sides", "long sides", None),
    ],
)
def test_names_that_a_change_concerns(before: str, after: str, expected: set[str] | None) -> None:
    headers = {"A.h": (HEADER, HEADER.replace(before, after))}
    assert changed_names(headers, ["A.h", "use.cpp"], names(USER)) == expected


def test_another_header_may_pass_a_name_on() -> None:
    headers = {"A.h": (HEADER, HEADER.replace("* 2", "* 3"))}
    for text, expected in (
        (USER, {"twice", "use"}),
        ("#include <A.h>\n", {"twice"}),
        ("#include <A.h>\nstruct Four {\n  int four = at::twice(2);\n};\n", None),
        ("#include <A.h>\n#define FOUR at::twice(2)\n", None),
    ):
        there = HeaderNames({"B.h": text}.get, lambda name: ["B.h"], {})
        assert changed_names(headers, ["A.h", "B.h"], there) == expected
    far = {"B.h": USER, "C.h": "#include <B.h>\ninline int far() { return use(); }\n"}
    there = HeaderNames(far.get, lambda name: ["B.h"], {})
    assert changed_names(headers, ["A.h", "B.h", "C.h"], there) == {"twice", "use", "far"}


def test_a_macro_of_a_header_that_includes_nothing_may_pass_a_name_on() -> None:
    """Whoever uses it names neither the function nor the header that has it."""
    headers = {"A.h": (HEADER, HEADER.replace("* 2", "* 3"))}
    for text, expected in (("#define FOUR(a) twice(twice(a))\n", None), ("// twice\nint twice_as();\n", {"twice"})):
        there = HeaderNames(lambda path, text=text: text, lambda name: ["C.h"], {})  # type: ignore[misc]
        assert changed_names(headers, ["A.h"], there) == expected


def test_a_header_that_the_branch_changes_too_passes_a_name_on() -> None:
    other = (
        "#include <A.h>\nnamespace at {\ninline int fourfold(int a) { return twice(a) * 2; }\nint beside(int a);\n}\n"
    )
    headers = {
        "B.h": (other, other.replace("beside(int", "beside(long")),
        "A.h": (HEADER, HEADER.replace("* 2", "* 3")),
    }
    assert changed_names(headers, headers, names("")) == {"twice", "fourfold", "beside"}


@pytest.mark.parametrize(
    ("name", "found"), [("cumsum", True), ("cumsum_stub", True), ("THPVariable_cumsum", True), ("asarray", False)]
)
def test_generated_code_joins_names(tmp_path: Path, name: str, found: bool) -> None:
    files = write(tmp_path, {"functions.yaml": "- func: cumsum(Tensor self) -> Tensor\n"})
    assert generated({name}, [files / "functions.yaml"]) == found
