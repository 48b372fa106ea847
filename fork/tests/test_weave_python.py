"""Weaving Python: entries of lists and dicts, statements, functions, methods and imports."""

from expecttest import assert_expected_inline
from pytest import mark

from fork.tests.helpers import anchor, refused, woven
from fork.weave import weave
from fork.weave.file_kinds import Fragment

PATH = "module.py"


@mark.parametrize(
    ("place", "line"),
    [("after torch.one", "        # about two\n"), ("before torch.two", "        # about two\n"), ("last", "    }\n")],
)
def test_an_entry_of_a_dict_inside_a_function(place: str, line: str) -> None:
    base = """\
import torch
def overrides():
    ret = {
        torch.one: lambda a: -1,  # the first
        # about two
        torch.two: (
            lambda a: -1
        ),
    }
    return ret
"""
    fragment = '''\
"""The entry of torch.new."""
import torch

def overrides():
    ret = {torch.new: lambda a: -1}
    return ret
'''
    out = weave(PATH, base, fragment, anchor(**{"overrides.ret": place}))
    assert out == base.replace(line, f"        torch.new: lambda a: -1,\n{line}")


def test_an_entry_of_a_list_that_a_function_returns() -> None:
    entries = "            ops.one,\n            ops.two,\n"
    base = f"def table():\n    ops = 1\n    return get(\n        [\n{entries}        ]\n    )\n"
    fragment = "def table():\n    ops = 2\n    return get([ops.new])\n"
    out = weave(PATH, base, fragment, anchor(**{"table.return": "after ops.one"}))
    assert out == base.replace("            ops.two", "            ops.new,\n            ops.two")


@mark.parametrize(
    ("place", "lines"),
    [
        ("after one", ["    'one', 'new', 'two',", "    'three', 'four'"]),
        ("after two", ["    'one', 'two',", "    'new',", "    'three', 'four'"]),
        ("before four", ["    'one', 'two',", "    'three', 'new', 'four'"]),
        ("after four", ["    'one', 'two',", "    'three', 'four', 'new'"]),
    ],
)
def test_an_entry_among_several_on_a_line(place: str, lines: list[str]) -> None:
    base = "names = {\n    'one', 'two',\n    'three', 'four'\n}\n"
    assert weave(PATH, base, "names = {'new'}\n", anchor(names=place)).splitlines() == ["names = {", *lines, "}"]


def test_the_list_that_has_the_neighbour_where_a_name_is_assigned_twice() -> None:
    base = "table = {}\n\ntable = {\n    aten.one: 1,\n}\ntable |= extra\n"
    fragment = "table = {\n    aten.new: 2,\n}\n"
    out = weave(PATH, base, fragment, anchor(table="after aten.one"))
    assert out == base.replace("one: 1,\n", "one: 1,\n    aten.new: 2,\n")
    told = "module.py: container 'table' found 2 times: see its anchor in stack/series.yaml"
    assert refused(PATH, base, fragment, anchor(table="last")) == told


def test_an_entry_of_many_lines_keeps_its_shape() -> None:
    base = "def lists():\n    infos = [\n        Info('one',\n             a=1),\n    ]\n"
    fragment = '''\
def lists():
    infos = [
    # why
    Info('new',
         text="""
  as it is
""",
         a=2),
    ]
'''
    assert_expected_inline(
        woven(PATH, base, fragment, anchor(**{"lists.infos": "after one"})),
        """\
@@ -4,2 +4,8 @@
              a=1),
+        # why
+        Info('new',
+             text=\"\"\"
+  as it is
+\"\"\",
+             a=2),
     ]
""",
    )


def test_functions_statements_and_their_gaps() -> None:
    base = """\
import torch

# about one
@register
def one():
    pass

def two():
    pass


add_docstr(
    torch.one,
    "text",
)

make_fallback(aten.one)
make_fallback(aten.two)
register_kernel(aten.one)
"""
    fragment = '''\
"""What is new."""

import torch
from elsewhere import register  # fragment only


# Why it is there.
@register
def new():
    return 1


def newer():
    return 2


add_docstr(
    torch.new,
    "text",
)
make_fallback(aten.new)
'''
    where = anchor(**{"file": "after one", "torch.new": "after torch.one", "aten.new": "after aten.one"})
    told = "module.py: anchor 'after aten.one' in 'aten.new' found 2 times: see its anchor in stack/series.yaml"
    assert refused(PATH, base, fragment, where) == told
    places = {"torch.new": 'after add_docstr(torch.one, "text")', "aten.new": "after make_fallback(aten.one)"}
    assert_expected_inline(
        woven(PATH, base, fragment, anchor(file="after two", **places)),
        """\
@@ -11,2 +11,12 @@

+# Why it is there.
+@register
+def new():
+    return 1
+
+
+def newer():
+    return 2
+
+
 add_docstr(
@@ -16,3 +26,9 @@

+add_docstr(
+    torch.new,
+    "text",
+)
+
 make_fallback(aten.one)
+make_fallback(aten.new)
 make_fallback(aten.two)
""",
    )


def test_a_method_of_a_class_and_a_list_in_another() -> None:
    base = """\
class Lists:
    def __init__(self, dev):
        self.low = [
            ("one", a),
        ]
        self.high = [
            ("one", a),
        ]

    def last(self):
        pass
"""
    fragment = """\
class Lists:
    def __init__(self, dev):
        self.low = [
            ("new", b),
        ]

    def check(self):
        return self.low
"""
    out = weave(PATH, base, fragment, anchor(**{"Lists.__init__.self.low": "after one", "Lists": "before last"}))
    expected = base.replace("        ]\n", '            ("new", b),\n        ]\n', 1)
    last = "    def last(self):\n"
    assert out == expected.replace(last, f"    def check(self):\n        return self.low\n\n{last}")


def test_imports_are_merged() -> None:
    base = """\
import math
import sys

import torch
from torch.a import (
    alpha,
    gamma,
)
from torch.b import one, three
from .c import relative


def last():
    pass
"""
    fragment = """\
import os
import math

from torch.a import beta
from torch.aa import first
from torch.b import one, two, zero
from torch.c import relative


def new():
    pass
"""
    assert_expected_inline(
        woven(PATH, base, fragment, anchor(file="after last")),
        """\
@@ -1,2 +1,3 @@
 import math
+import os
 import sys
@@ -6,5 +7,7 @@
     alpha,
+    beta,
     gamma,
 )
-from torch.b import one, three
+from torch.aa import first
+from torch.b import one, three, two, zero
 from .c import relative
@@ -15 +18,5 @@

+
+def new():
+    pass
+
""",
    )


METHOD = "class A:\n    def f(self):\n        return 1\n"


@mark.parametrize(
    ("base", "fragment", "where", "told"),
    [
        ("a = [\n    1,\n]\n", "a = [\n    2,\n]\n", anchor(b="last"), "'a' has no anchor"),
        ("a = [1]\n", "a = [\n", anchor(a="last"), "line 1 of the fragment does not parse here: '[' was never closed"),
        ("if\n", "a = [1]\n", anchor(a="last"), "line 1 of the base does not parse here: invalid syntax"),
        (
            "class A: pass\n",
            METHOD,
            anchor(A="last"),
            "line 3 of the woven file does not parse here: unexpected indent",
        ),
    ],
    ids=["no anchor", "fragment", "base", "what is woven"],
)
def test_what_cannot_be_woven(base: str, fragment: str, where: Fragment, told: str) -> None:
    assert refused(PATH, base, fragment, where) == f"module.py: {told}: see its anchor in stack/series.yaml"


def test_an_entry_behind_letters_of_several_bytes() -> None:
    base = "names = ['äöü', 'β', 'one']  # ω\n"
    out = weave(PATH, base, "names = ['new']\n", anchor(names="after β"))
    assert out == "names = ['äöü', 'β', 'new', 'one']  # ω\n"
