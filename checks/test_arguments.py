"""Every program of this project tells a wrong option in one sentence, with exit status 1."""

from __future__ import annotations

import os
import re
import runpy
import sys

import pytest

from checks import ROOT

# The rows start it with words of their own.
TAKES_WORDS = ("bench.tool.coverage.probe", "checks.processors.worker")
MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def programs() -> list[str]:
    found = [
        p
        for folder in ("bench", "checks")
        for p in (ROOT / folder).rglob("*.py")
        if p.stem[:5] != "test_" and MAIN.search(p.read_text())
    ]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in found)
    return sorted(set(names) - set(TAKES_WORDS))


def refused(name: str, *words: str) -> None:
    before = dict(os.environ)
    sys.argv = [name, *words]
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert ended.value.code == 1


@pytest.mark.parametrize("name", programs())
def test_an_option_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(name, "--nothing")
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and len(said.err) > 30


@pytest.mark.parametrize(
    "line,sentence",
    [
        ("checks.fuzz --seconds 0", "argument --seconds: '0' is not a number of seconds above 0"),
        ("checks.fuzz --seconds nan", "argument --seconds: 'nan' is not a number of seconds above 0"),
        ("checks.fuzz --seed -1", "argument --seed: '-1' is not a whole number of 0 or more"),
        ("checks.fuzz --context moon", "argument --context: invalid choice: 'moon'"),
        ("checks.cpu.concurrent", "the following arguments are required: name"),
        ("checks.memory.programs nothing", "invalid choice: 'nothing'"),
        ("checks.mutants.trial nothing", "no mutant with a switch is called 'nothing'"),
        ("checks.processors nothing", "no row has 'nothing' in its name"),
        ("bench.attn.tanh --stride 0", "argument --stride: '0' is not a whole number of 1 or more"),
        ("bench.attn.cpu --seconds -1", "argument --seconds: '-1' is not a number of seconds above 0"),
    ],
)
def test_a_value_that_cannot_be(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *words = line.split()
    refused(name, *words)
    said = capsys.readouterr().err
    assert said.startswith(name.removesuffix(".programs")) and sentence in said and said.count("\n") == 1
