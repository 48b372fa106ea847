"""`make lint` says of the stack's files what the settings of a real PyTorch tree say: PYTORCH_SOURCE names the tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from checks import ROOT

SOURCE = os.environ.get("PYTORCH_SOURCE")
pytestmark = pytest.mark.skipif(not SOURCE, reason="PYTORCH_SOURCE names no checkout of PyTorch")
# A fragment ends a namespace that its file has already by `// fragment only`. Every release names some macros anew.
OURS_ALONE = {"FixNamespaceComments"}
MACROS = ("Macros", "StatementMacros")


def said(*words: str | Path) -> str:
    """What one of this environment's linters prints in the tree."""
    program = Path(sys.executable).with_name(str(words[0]))
    return subprocess.run([program, *words[1:]], cwd=SOURCE, check=True, capture_output=True, text=True).stdout


def test_clang_format_has_the_trees_settings() -> None:
    def settings(folder: str | Path) -> dict[str, Any]:
        style = f"--style=file:{folder}/.clang-format"
        return yaml.safe_load(said("clang-format", style, "--assume-filename=a.cpp", "--dump-config"))

    theirs, ours = settings(str(SOURCE)), settings(ROOT)
    named = {re.split(r"\W", macro)[0] for key in MACROS for macro in theirs.pop(key, [])}
    assert {key for key in theirs if theirs[key] != ours[key]} == OURS_ALONE
    listed = subprocess.run(
        ["git", "ls-files", "aten", "torch", "stack"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    used = {word for path in listed.stdout.split() for word in re.findall(r"\w+", (ROOT / path).read_text())}
    assert "TORCH_CHECK" in used and not named & used


def test_ruff_has_every_rule_of_the_tree() -> None:
    def enabled(settings: str | Path) -> set[str]:
        shown = said(
            "ruff", "check", "--no-cache", "--config", settings, "--show-settings", f"{ROOT}/test/test_attn.py"
        )
        listed = re.search(r"^linter\.rules\.enabled = \[\n(.*?)^\]", shown, re.MULTILINE | re.DOTALL)
        assert listed is not None
        return set(re.findall(r"\((\w+)\)", listed[1]))

    theirs = enabled("pyproject.toml")
    assert {"F401", "UP035", "B904"} <= theirs
    # A fragment uses names that the rest of its file defines. Trees for older Pythons have no zip with strict=, and
    # those that pin an older ruff do not know that it has FURB122, which later trees ignore.
    assert theirs - enabled(ROOT / ".ruff-upstream.toml") - {"F821", "B905", "FURB122"} == set()
