"""Options that mean nothing: each command reads every option that its command line accepts, alone and beside others."""

from __future__ import annotations

import argparse
import os
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch, fixture, mark

from fork import cli
from fork.commands import build, check, compat, new, run, wheel
from fork.commands.combinations import EXCLUSIVE_OPTIONS, NAMED_OTHERWISE, NEEDS, refuse_senseless
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.page import html
from fork.tests.helpers import Tool, committed, git, write
from fork.tests.tiny import NATIVE, STACK, UPSTREAM
from fork.verify import lint, soundness
from fork.verify.prefix import Result

VALUES = {"--root": "ROOT", "--checkout": "TREE", "--since": "main", "--pr": "1", "--torch": "2.13.0", "--cuda": "on"}
VALUES |= {"--many": "50", "--sanitize": "thread", "--build": "DIR", "--out": "DIR", "--html": "PAGE", "--lint": "TREE"}
VALUES |= {"--linters": "RUFF", "--branch": "theirs"}
FLAGS = {"--added-only", "--install", "--plan", "--static", "--all", "--check", "--explicit", "--keep"}
POSITIONAL = {
    "apply": ["CLEAN"],
    "export": ["CLEAN", "DIR"],
    "import": ["TREE", "NEW"],
    "new": ["NEW", "one_more(Tensor a) -> Tensor"],
}
POSITIONAL |= {"run": ["--", "true"], "compat": ["2.13.0"], "clean": ["ccache"]}


class Recorded(argparse.Namespace):
    """A command line that remembers what was read of it."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            object.__getattribute__(self, "__dict__").setdefault("_read", set()).add(name)
        return object.__getattribute__(self, name)


@fixture
def places(tmp_path: Path, monkeypatch: MonkeyPatch, quiet_git: None) -> dict[str, str]:
    """A stack, a branch, and commands that stop where they would build, install or ask for long."""
    series = STACK["stack/series.yaml"] + "operator_tests: test/test_ops.py\n"
    write(tmp_path / "root", STACK | {"stack/series.yaml": series})
    tree = committed(tmp_path / "tree", UPSTREAM)
    git(tree, "switch", "--quiet", "--create", "mine")
    write(tree, {NATIVE: UPSTREAM[NATIVE] + "\n- func: three(Tensor a) -> Tensor\n"})
    (tmp_path / "dir").mkdir()
    for module in (build, run, wheel):
        monkeypatch.setattr(module, "make", lambda build, planned=False: tmp_path)
    base = bases.installed()
    for name in ("installed", "obtain"):
        monkeypatch.setattr(bases, name, lambda *_: base)
    monkeypatch.setattr(build, "install", lambda fork: "")
    monkeypatch.setattr(os, "execve", lambda *_: None)
    monkeypatch.setattr(wheel, "pack", lambda *_: tmp_path)
    monkeypatch.setattr(compat, "_try", lambda *_: ("", True))
    monkeypatch.setattr(soundness, "problems", lambda *_: [])
    monkeypatch.setattr(check, "build_and_test", lambda *_: Result("", ()))
    monkeypatch.setattr(lint, "lint", lambda *_: [])
    monkeypatch.setattr(new, "_refuse_name", lambda *_: None)
    monkeypatch.setattr(html, "page", lambda *_: "")
    places = {"ROOT": tmp_path / "root", "TREE": tree, "DIR": tmp_path / "dir"}
    places |= {"PAGE": tmp_path / "page.html", "NEW": tmp_path / "new", "CLEAN": tmp_path / "clean"}
    return {name: str(path) for name, path in places.items()}


def line(command: str, chosen: tuple[str, ...], places: dict[str, str]) -> list[str]:
    """A command line with these options, and with what they need."""
    if command != "import":
        chosen += tuple(needed for option, needed in NEEDS.items() if option in chosen and needed not in chosen)
    before = {option for option in ("--root", "--checkout", "--since", "--added-only") if option in chosen}
    if command not in ("import", "new"):
        before.add("--root")
    words = [word for option in sorted(before) for word in (option, VALUES.get(option, ""))] + [command]
    words += [word for option in chosen if option not in before for word in (option, VALUES.get(option, ""))]
    named = [] if "--all" in chosen else POSITIONAL.get(command, [])
    return [places.get(word, word) for word in words + named if word]


def options_of(command: str) -> tuple[list[str], list[str]]:
    """Those of all commands, and a command's own."""
    parser = cli.parser_of([command])
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    everywhere, own = (
        [action.option_strings[-1] for action in each._actions if action.option_strings and action.dest != "help"]
        for each in (parser, commands.choices[command])
    )
    return [option for option in everywhere if option != "--version"], own


@mark.parametrize("command", cli.COMMANDS)
def test_what_is_accepted_is_read(command: str, places: dict[str, str]) -> None:
    everywhere, own = options_of(command)
    assert not {*everywhere, *own} - VALUES.keys() - FLAGS
    accepted: set[tuple[str, ...]] = set()
    for chosen in [(one,) for one in (*everywhere, *own)] + list(combinations(set(own) - NEEDS.keys(), 2)):
        words = line(command, chosen, places)
        args = cli.parser_of(words).parse_args(words)
        try:
            refuse_senseless(args)
        except ForkError:
            continue
        accepted.add(chosen)
        for made in ("NEW", "CLEAN"):
            shutil.rmtree(places[made], ignore_errors=True)
        for folder in (places["DIR"], f"{places['ROOT']}/build"):
            Path(folder, "ccache").mkdir(parents=True, exist_ok=True)
        if command in ("apply", "export"):
            committed(Path(places["CLEAN"]), UPSTREAM)
        recorded = Recorded(**vars(args), typed=words)
        args.run(recorded)
        unread = {option for option in chosen if option.strip("-").replace("-", "_") not in vars(recorded)["_read"]}
        assert not unread, words
    assert {(one,) for one in own} <= accepted


SENSELESS = [
    *(
        ("check" if option == "--linters" else "build", [option], f"{option} means nothing without {other}")
        for option, other in NEEDS.items()
    ),
    *((command, [option], why) for (command, option), why in NAMED_OTHERWISE.items()),
    *(
        ("build" if option in ("--install", "--sanitize") else "check", [option, other.split()[0]], why)
        for (option, other), why in EXCLUSIVE_OPTIONS.items()
    ),
]


@mark.parametrize(("command", "options", "why"), SENSELESS)
def test_what_means_nothing_is_refused(
    command: str, options: list[str], why: str, places: dict[str, str], tool: Tool
) -> None:
    """In one sentence, and before anything is read."""
    everywhere, _ = options_of(command)
    words = {True: list[str](), False: list[str]()}
    for option in options:
        words[option in everywhere] += [option, VALUES[option]] if option in VALUES else [option]
    said = tool(*words[True], command, *words[False], *POSITIONAL.get(command, []), status=1)
    assert said.err.startswith(f"fork: {why}: ") and said.err.count("\n") == 1 and not said.out
