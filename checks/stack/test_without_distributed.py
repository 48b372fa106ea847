"""A PyTorch without distributed runs PR 4's tests, all but DTensor's."""

from __future__ import annotations

import sys

from checks import ROOT
from checks.built import run

WITHOUT_DISTRIBUTED = f"""
import runpy, sys, unittest, torch
torch.distributed.is_available = lambda: False
sys.modules["torch.distributed.tensor"] = None
names = runpy.run_path({str(ROOT / "test/test_attn_explicit.py")!r}, run_name="tests")
for name, cls in names.items():
    if name.startswith("Test") and cls.__module__ == "tests":
        tests = unittest.defaultTestLoader.getTestCaseNames(cls)
        print(name, len(tests) > 0, getattr(cls, "__unittest_skip__", False))
"""


def test_without_distributed() -> None:
    lines = run(sys.executable, "-c", WITHOUT_DISTRIBUTED).splitlines()
    assert "TestGradients True False" in lines
    assert not [line for line in lines if not line.endswith(" True False")]
