"""Weaving lines: the sources of Bazel, and lists under headings of the docs."""

from pathlib import Path

from expecttest import assert_expected_inline
from pytest import raises

from fork.errors import ForkError
from fork.tests.helpers import anchor
from fork.weave import weave, weave_all

SOURCES = """\
some = [
    "native/One.cpp",
] + more

native = [
    "native/One.cpp",
    "native/Two.cpp",
]
"""
MARKDOWN = """\
# Library

## Linear algebra
```{eval-rst}
.. autosummary::

    one
    two
```

## Casts to `float16`

`one`,
`two`

## Others

    one
"""
RST = """\
Library
=======

Linear algebra
~~~~~~~~~~~~~~
.. autosummary::

    one
    two

Casts to ``float16``
~~~~~~~~~~~~~~~~~~~~

``one``,
``two``

Others
~~~~~~

    one
"""
DOCS = """\
## Linear algebra

    new

## Casts to `float16`

`new`,
"""
PLACES = {"Linear algebra": "after one", "Casts to `float16`": "after `one`,"}


def test_a_source_in_one_of_two_lists() -> None:
    fragment = '# Why.\n\nnative = [\n    "native/New.cpp",\n]\n'
    out = weave("build.bzl", SOURCES, fragment, anchor(native='before "native/Two.cpp",'))
    two = '    "native/Two.cpp",\n'
    assert out == SOURCES.replace(two, f'    "native/New.cpp",\n{two}')


def test_lines_under_a_heading() -> None:
    expected = MARKDOWN.replace("    two\n", "    new\n    two\n").replace("`two`\n", "`new`,\n`two`\n")
    assert weave("lib.md", MARKDOWN, DOCS, anchor(**PLACES)) == expected


def test_the_older_path_of_a_file_that_was_not_markdown_yet(tmp_path: Path) -> None:
    (tmp_path / "lib.md").write_text(DOCS)
    state = {"lib.md": tmp_path / "lib.md"}
    out = weave_all(state, {"lib.md": anchor("lib.rst", **PLACES)}, {"lib.rst": RST}.get)
    expected = RST.replace("    two\n", "    new\n    two\n").replace("``two``\n", "``new``,\n``two``\n")
    assert out == {"lib.rst": expected}


def test_all_bad_anchors_of_a_state_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "lib.md").write_text(DOCS)
    (tmp_path / "x.py").write_text("a = [1]\n")
    state = {path: tmp_path / path for path in ("lib.md", "x.py")} | {"y.py": tmp_path / "x.py"}
    places = {"Linear algebra": "after three", "Casts to `float16`": "after `three`,"}
    anchors = {"lib.md": anchor(**places), "x.py": anchor(a="after 2"), "y.py": anchor(a="last")}
    with raises(ForkError) as caught:
        weave_all(state, anchors, {"lib.md": MARKDOWN, "x.py": "a = [2, 2]\n"}.get)
    assert_expected_inline(
        str(caught.value),
        """\
4 places do not fit: see the anchors in stack/series.yaml
  lib.md: anchor 'after three' in 'Linear algebra' found 0 times
  lib.md: anchor 'after `three`,' in 'Casts to `float16`' found 0 times
  x.py: anchor 'after 2' in 'a' found 2 times
  y.py: the base has no such file""",
    )
