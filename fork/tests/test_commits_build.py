"""`fork check` on a PR of several commits builds each of them and runs its tests."""

from __future__ import annotations

import re
from pathlib import Path

from pytest import CaptureFixture, mark

from fork.cli import main
from fork.tests import halve
from fork.tests.helpers import write


@mark.long
def test_every_commit_is_built_and_tested(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """Each with its own kernel. A test that the first brings runs there, as it is there, and at the second again.

    What has passed runs again where something that it reads has changed, or all do.
    """
    test = "import torch\n\n\ndef test_node():\n    x = torch.ones(2, requires_grad=True)\n"
    test += "    assert torch.halve(x).grad_fn.name().startswith('{}Backward')\n"
    commits = f"""\
    commits:
      - name: first
        title: Divide
        introduces:
          - test/test_halve.py
          - test/more/test_plain.py
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
        "test/more/test_plain.py": "def test_one():\n    assert 1\n",
        f"stack/composite.first/{halve.KERNEL}": text,
        halve.KERNEL: text.replace("self.div(2)", "self.mul(0.5)"),
    }
    root = write(tmp_path, halve.FILES | files)

    def checked(*options: str) -> list[str]:
        assert main(["--root", str(root), "check", *options]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("composite.")]
        return [re.sub(r"1 passed in \d+\.\d+s|\d+ s\b", "N s", line) for line in lines]

    ran = "test/test_halve.py: N s (N s); test/more/test_plain.py: N s "
    first, second = "composite.first  " + ran + "(N s)", "composite.second " + ran
    # What names no operator reads the same in both.
    assert checked() == [first, second + "(as in composite.first)"]
    assert checked() == [
        line.replace("(N s)", f"(as in {name})")
        for name, line in zip(("composite.first", "composite.second"), (first, second + "(as in composite.first)"))
    ]
    (root / "test/more/test_plain.py").write_text("def test_another():\n    assert 1\n")
    again = [line.partition("; ")[2] for line in checked()]
    assert again == ["test/more/test_plain.py: N s (N s)", "test/more/test_plain.py: N s (as in composite.first)"]
    assert checked("--all") == [first, second + "(N s)"]
