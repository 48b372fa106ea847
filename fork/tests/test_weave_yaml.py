"""Weaving the entries of native_functions.yaml and derivatives.yaml."""

from dataclasses import replace

from expecttest import assert_expected_inline
from pytest import mark

from fork.tests.helpers import anchor, refused
from fork.weave import weave

PATH = "native_functions.yaml"
BASE = """\
# All operators.

- func: one(Tensor a) -> Tensor
  variants: function

# Two of them; see one.
- func: two(Tensor a) -> Tensor
  dispatch:
    # chosen at run time
    CPU: two_cpu

- func: two.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)
"""
OURS = """\
# What this file is, which stays here.

# Why there is a new one.
- func: new(Tensor a) -> Tensor
  variants: function

- func: new.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)
"""


@mark.parametrize(
    ("place", "behind"), [("after two", "- func: two.out"), ("before two", "# Two of them"), ("last", "")]
)
def test_where_entries_go(place: str, behind: str) -> None:
    """With their comments, and in front of the comment of the entry that they stand before."""
    entries = OURS[OURS.index("# Why") :]
    expected = BASE.replace(behind, f"{entries}\n{behind}") if behind else f"{BASE}\n{entries}"
    assert weave(PATH, BASE, OURS, anchor(file=place)) == expected


def test_the_first_alternative_that_the_release_has() -> None:
    where = anchor(file=("after two.dtype", "after two.out"))
    assert weave(PATH, BASE, OURS, where) == weave(PATH, BASE, OURS, anchor(file="after two.out"))


@mark.parametrize("keys", ["CPU, New", "New, CPU", "CPU, New, Newer"])
def test_a_word_that_only_newer_releases_have(keys: str) -> None:
    fragment = f"- func: fresh(Tensor a) -> Tensor\n  dispatch:\n    {keys}: fresh\n"
    where = replace(anchor(file="last"), only_if_base_has=("New",))
    older = keys.replace(", New", "", 1).replace("New, ", "")
    for base, expected in ((f"{BASE}# New\n", keys), (f"{BASE}# Newer\n", older)):
        assert f"    {expected}: fresh\n" in weave(PATH, base, fragment, where)


SOFTMAX = "\n- func: softmax.int(Tensor a) -> Tensor\n\n- func: softmax_backward(Tensor a) -> Tensor\n"


@mark.parametrize(
    ("more", "place", "told"),
    [
        ("", ("after no", "before it"), "'after no' or 'before it' in 'file' found 0 times"),
        ("\n- func: one(int a) -> Tensor\n", "after one", "'after one' in 'file' found 2 times"),
        (SOFTMAX, "after softmax", "'after softmax' in 'file' found 0 times (did you mean 'softmax.int'?)"),
    ],
    ids=["none", "two", "none but a near one"],
)
def test_no_such_entry_or_two(more: str, place: str | tuple[str, ...], told: str) -> None:
    """Where there is none, the nearest name is suggested."""
    said = refused(PATH, BASE + more, OURS, anchor(file=place))
    assert said == f"native_functions.yaml: anchor {told}: see its anchor in stack/series.yaml"


def test_an_entry_that_is_there_already() -> None:
    assert_expected_inline(
        refused(PATH, weave(PATH, BASE, OURS, anchor(file="last")), OURS, anchor(file="last")),
        """\
2 places do not fit: see the anchors in stack/series.yaml
  native_functions.yaml: the base already has an entry 'new'
  native_functions.yaml: the base already has an entry 'new.out'""",
    )
