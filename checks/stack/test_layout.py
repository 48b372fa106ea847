"""At PR 3, where attn is composed, its results lie in memory as PR 4's test of layouts asks of the kernels."""

from __future__ import annotations

import sys

import pytest

from checks import ROOT
from checks.built import built, run

PROGRAM = f"""
import sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
torch.ops.aten._attn_backward = None  # PR 3 lacks it, and the test of PR 4 names it.
sys.path.insert(0, {str(ROOT / "test")!r})
from test_attn_explicit import TestLayout, lay_out, strides_like

def meta(x):
    return torch.empty_strided(x.shape, x.stride(), device="meta")

compiled = torch.compile(torch.attn, backend="aot_eager", dynamic=True)
seen = 0
for where in TestLayout.CASES:
    for sizes in (2, 3, 5, 4, 6, 7), (2, 1, 5, 4, 3, 6), (1, 3, 1, 4, 3, 2), (2, 3, 0, 4, 3, 2):
        q, k, v = inputs = lay_out(where, sizes)
        results = [torch.attn(*inputs), torch.attn(*map(meta, inputs))]
        with FakeTensorMode(allow_non_fake_inputs=True):
            results.append(torch.attn(*inputs))
        if 0 not in sizes:
            results.append(compiled(*inputs))
        for output, attn in results:
            assert output.stride() == strides_like(q, v.shape[-1]), (where, sizes)
            assert attn.is_contiguous(), (where, sizes)
            seen += not output.is_contiguous()
print(torch.attn(*lay_out(["heads"] * 3, (2, 3, 5, 4, 6, 7)))[0].transpose(1, 2).is_contiguous(), seen)
"""


@pytest.mark.long
def test_layout_of_the_composed_operator() -> None:
    right, seen = run(sys.executable, "-c", PROGRAM, site=built(pr="composite")).split()
    # Of the results of heads, permuted and shared rows, most are not contiguous.
    assert right == "True" and int(seen) > 20
