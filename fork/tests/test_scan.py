"""Where comments, literals and directives of C++ begin and end, and which braces are open."""

from __future__ import annotations

import pytest

from fork.cpp.scan import code_of, lines, scan

TEXT = """\
#include <A.h> // one
#define TWO(a) \\
  do { /* in
  it */        \\
    a; // two
  } while (0)
namespace at {
extern "C" {
int f(char c) { return c == '{' ? 1'000'000 : 0x1'F; }
const char* raw = R"x(
#define NOT // one
)" }{ )x";
// goes on \\
#define NEITHER {
#if A
int g();
#elif B
int h() { return u8'a' + L'"' - 'b'; }
#endif
"""


def test_what_is_code() -> None:
    there = scan(TEXT)
    assert len(there.code) == len(there.plain) == len(there.bare) == len(there.kept) == len(TEXT)
    assert there.code.count("\n") == TEXT.count("\n")
    for word in ("one", "two", "NOT", "NEITHER", "in\n"):
        assert word not in there.code.replace("<A.h>", "")
    assert "1'000'000 : 0x1'F;" in there.code and "NOT // one" in there.plain
    assert there.bare.split()[:2] == ["}", "while"]  # The comment of two lines ends the macro behind `a;`.


def test_directives_end_with_their_last_line() -> None:
    there = scan(TEXT)
    assert [(one.kind, there.lines.index(one.start) + 1) for one in there.directives] == [
        ("include", 1),
        ("define", 2),
        ("if", 15),
        ("elif", 17),
        ("endif", 19),
    ]
    two = there.directives[1]
    assert TEXT[two.start : two.end].endswith("a; // two\n") and there.said(two.start, two.end).endswith("\\ a;")


@pytest.mark.parametrize(
    ("line", "kind"),
    [(2, None), (3, "define"), (4, "define"), (6, None), (11, "literal"), (13, None), (14, "comment"), (16, None)],
)
def test_what_goes_on_where_a_line_begins(line: int, kind: str | None) -> None:
    there = scan(TEXT)
    found = there.around(there.lines[line - 1])
    assert (found.kind if found else None) == kind


def test_what_is_open_and_what_depends_on_conditions() -> None:
    there = scan(TEXT.replace("  } while (0)\n", ""))
    assert there.heads(there.text.index("int g")) == ("namespace at", "extern")
    assert there.outside(there.text.index("int g")) and not there.outside(there.text.index("return c"))
    told = [there.said(one.start, one.end) for one in there.conditions(there.text.index("int h"))]
    assert told == ["#elif B"] and there.conditions(there.text.index("namespace")) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("int a;  // one\n\nint b;", "int a;\nint b; /* two */", True),
        ('f("a b");', 'f("a  b");', False),
        ('f(R"(a\n\nb)");', 'f(R"(a\nb)");', False),
        ("a\nb", "a b", False),
    ],
)
def test_what_a_compiler_reads(one: str, other: str, same: bool) -> None:
    assert (lines(one) == lines(other)) == same


def test_what_does_not_end() -> None:
    """A text that is cut off, or no C++ at all, is read to its end."""
    for text in ("int a; /* b", 'R"x(a)" b', "#define A \\", "'", '"a', "#error don't do it\nint a;\n"):
        assert len(code_of(text)) == len(text)
    assert "int a;" in code_of("#error don't do it\nint a;\n")
