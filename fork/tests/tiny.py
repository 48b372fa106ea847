"""A stack of two PRs about an operator `twice`, and the upstream that it goes on; both written here."""

from __future__ import annotations

from pathlib import Path

from fork.tests.helpers import write

NATIVE = "aten/src/ATen/native/native_functions.yaml"

UPSTREAM = {
    NATIVE: "- func: one(Tensor a) -> Tensor\n\n- func: two(Tensor a) -> Tensor\n",
    "build_variables.bzl": 'native = [\n    "One.cpp",\n    "Two.cpp",\n]\n',
    "docs/source/ops.rst": "Operators\n~~~~~~~~~\n\n    one\n    two\n",
    "torch/overrides.py": "names = [\n    'one',\n    'two',\n]\n",
    "run.sh": "#!/bin/sh\n",
}

SERIES = """\
prs:
  - name: plain
    title: Add twice
    introduces:
      - aten/src/ATen/native/Twice.cpp
      - aten/src/ATen/native/native_functions.yaml
      - build_variables.bzl
      - docs/source/ops.md
  - name: fast
    title: Make twice fast
    introduces:
      - torch/overrides.py
anchors:
  aten/src/ATen/native/native_functions.yaml:
    file: after one
  build_variables.bzl:
    native: before "Two.cpp",
  docs/source/ops.md:
    older_path: docs/source/ops.rst
    Operators: [after one_and_a_half, after one]
  torch/overrides.py:
    names: after one
"""

DESCRIPTION = """\
{title}

Stack (oldest at bottom):
{stack}

## Why

Twice is needed.

## How to review

Top down.

## Test plan

`make test`: 2 passed.
"""

STACK = {
    "stack/series.yaml": SERIES,
    "stack/plain/PR.md": DESCRIPTION.format(title="Add twice", stack="* fast\n* **plain** (this PR)"),
    "stack/fast/PR.md": DESCRIPTION.format(title="Make twice fast", stack="* **fast** (this PR)\n* plain"),
    "stack/plain/aten/src/ATen/native/Twice.cpp": "// a + a\n",
    "stack/plain/build_variables.bzl": 'native = [\n    "Twice.cpp",\n]\n',
    "aten/src/ATen/native/Twice.cpp": "// 2 * a, and fast\n",
    NATIVE: "- func: twice(Tensor a) -> Tensor\n",
    "docs/source/ops.md": "# Operators\n\n    twice\n",
    "torch/overrides.py": "names = ['twice']\n",
}


# The same, with the second PR as two commits.
COMMITS = """\
    commits:
      - name: kernel
        title: Compute twice by one product
        introduces: []
      - name: name
        title: Give twice its name
        introduces:
          - torch/overrides.py
"""
SPLIT = STACK | {
    "stack/series.yaml": SERIES.replace("    introduces:\n      - torch/overrides.py\n", COMMITS),
    "stack/fast.kernel/COMMIT.md": "Compute twice by one product\n\nIt is two products otherwise.\n",
    "stack/fast.name/COMMIT.md": "Give twice its name\n\nOverrides need it.\n",
    "stack/fast.kernel/aten/src/ATen/native/Twice.cpp": "// 2 * a\n",
    "stack/fast.kernel/build_variables.bzl": 'native = [\n    "Twice.cpp",\n    "Fast.cpp",\n]\n',
}


def on_a_wheel(series: str) -> dict[str, str]:
    """A series as the installed torch can take it, with the file that this needs."""
    series = series.replace("file: after one", "file: before baddbmm").replace("torch/overrides", "docs/overrides")
    return {"stack/series.yaml": series, "docs/overrides.py": "names = ['twice']\n"}


def stack(root: Path) -> Path:
    """The stack in a folder. Its second PR changes Twice.cpp and drops the line for Bazel."""
    return write(root, STACK)


def split(root: Path) -> Path:
    """The stack with a PR of two commits. The first changes two files; the second changes one of them and drops one."""
    return write(root, SPLIT)
