"""`fork check` on a PR of several commits builds each of them and runs its tests."""

from __future__ import annotations

import re
from pathlib import Path

from pytest import CaptureFixture

from fork.cli import main
from fork.tests import halve
from fork.tests.helpers import write


def test_every_commit_is_built_and_tested(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """Each with its own kernel. A test that the first brings runs there, as it is there, and at the second again."""
    test = "import torch\n\n\ndef test_node():\n    x = torch.ones(2, requires_grad=True)\n"
    test += "    assert torch.halve(x).grad_fn.name().startswith('{}Backward')\n"
    commits = f"""\
    commits:
      - name: first
        title: Divide
        introduces:
          - test/test_halve.py
          - {halve.KERNEL}
          - {halve.NATIVE}
      - name: second
        title: Multiply
        introduces:
          - torch/overrides.py
"""
    listed = re.sub(r"    introduces:\n(      - .*\n)+", commits, halve.FILES["stack/series.yaml"])
    text = halve.FILES[halve.KERNEL]
    files = {
        "stack/series.yaml": f"strict: false\n{listed}",
        "stack/composite.first/test/test_halve.py": test.format("Div"),
        "test/test_halve.py": test.format("Mul"),
        f"stack/composite.first/{halve.KERNEL}": text,
        halve.KERNEL: text.replace("self.div(2)", "self.mul(0.5)"),
    }
    root = write(tmp_path, halve.FILES | files)
    assert main(["--root", str(root), "check"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("composite.")]
    assert [re.sub(r"\d+\.?\d* ?s\b", "N s", line) for line in said] == [
        "composite.first  test/test_halve.py: 1 passed in N s (N s)",
        "composite.second test/test_halve.py: 1 passed in N s (N s)",
    ]
