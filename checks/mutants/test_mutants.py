"""The table of mutants fits the sources: every mutation can be applied, and every test that it names is there."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import groupby
from types import ModuleType

import pytest

from checks import ROOT, load
from checks.mutants import test_sanitized as sanitized
from checks.mutants.mutant import Mutant, mutated, table, with_switches
from fork.errors import ForkError

MUTANTS = table()


@cache
def loaded(path: str) -> ModuleType:
    return load(str(ROOT / path))


@pytest.mark.parametrize("mutant", [*MUTANTS, sanitized.OVERFLOW, sanitized.RACE], ids=lambda mutant: mutant.name)
def test_every_mutation_can_be_applied(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert mutated(text, mutant) != text
    assert not mutant.switched or (is_expression(mutant.old) and is_expression(mutant.new))
    path, *names = mutant.test.partition("[")[0].split("::")
    if mutant.switched:  # PyTorch names tests when they are loaded, as test_x_m_5_cpu_float32.
        assert hasattr(getattr(loaded(path), names[0]), names[1])
    else:
        assert re.search(rf"def {names[-1]}\(", (ROOT / path).read_text()), f"{path} has no {names[-1]}"


def is_expression(text: str) -> bool:
    """Whether a text may be one: a switch puts it into parentheses, so brackets match and no comma is outside them."""
    inner = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
    while (shorter := inner.sub("", text)) != text:
        text = shorter
    return not set(text) & set("()[]{},;")


@pytest.mark.parametrize("text", ["a, b", "rows}", "(a", "f(a); b"])
def test_what_is_no_expression(text: str) -> None:
    assert not is_expression(text) and is_expression("f(a, {b[0]})")


def test_all_mutations_of_a_file_can_stand_side_by_side() -> None:
    for file, group in groupby(MUTANTS, lambda mutant: mutant.file):
        mutants = list(group)
        if mutants[0].switched:
            text = with_switches((ROOT / file).read_text(), mutants)
            assert all(text.count(f'"{mutant.switch}"') == 1 for mutant in mutants)


def test_there_are_enough_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.switch for mutant in MUTANTS}) == len(MUTANTS)


def test_a_line_that_has_gone_is_told_in_one_sentence() -> None:
    gone = Mutant("a name", "README.md", "no such line", "line", "", "test/test_attn.py::test")
    with pytest.raises(ForkError, match="mutant 'a name': README.md has its text 0 times, not once"):
        gone.place((ROOT / "README.md").read_text())


def test_switches() -> None:
    one = Mutant("one", "a.py", "x * y", "x * y", "x", "")
    two = replace(one, name="two", new="y")
    text = with_switches("z = x * y\n", [one, two])
    assert [
        eval(text[4:], {"x": 2, "y": 3, "__builtins__": {"__import__": lambda _, name=name: Switches(name)}})
        for name in ("", "one", "two")
    ] == [
        6,
        2,
        3,
    ]
    assert with_switches("x * y;", [replace(one, file="a.cpp")]) == '(std::getenv("MUTANT_one") ? (x) :(x * y));'


class Switches:
    """os, in whose environment one mutant is switched on."""

    def __init__(self, name: str) -> None:
        self.environ = {f"MUTANT_{name}": "1"}
