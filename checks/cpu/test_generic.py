"""The column of the benchmark for commit 1: without its kernels the CPU calls what the generic kernel calls."""

from __future__ import annotations

import json
import sys

import pytest

from bench.attn.cpu.processes import GENERIC
from checks.built import run

# The operators that attn and its backward call on the CPU, and by a backend that has no kernels of its own.
PROGRAM = """
import json, torch
from torch.autograd.profiler import profile

def called(f, *arguments):
    with profile() as profiler:
        result = f(*arguments)
    names = [event.name for event in profiler.function_events]
    return [name for name in names if name not in ("aten::attn", "aten::_attn_backward")], result

def both(op, *arguments):
    other = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
    mine, result = called(op, *arguments)
    return (mine, called(op.redispatch, other, *arguments)[0]), result

q, k, v, grad = torch.randn(4, 100, 16)
forward, (_, attn) = both(torch.ops.aten.attn.default, q, k, v)
backward, _ = both(torch.ops.aten._attn_backward.default, grad, None, q, k, v, attn, [True] * 3)
print(json.dumps([forward, backward]))
"""


@pytest.mark.parametrize("kernels", [GENERIC, {"TORCH_ATTN_KERNELS": "1"}])
def test_commit_1_is_what_its_column_measures(kernels: dict[str, str]) -> None:
    for cpu, generic in json.loads(run(sys.executable, "-c", PROGRAM, variables=kernels).splitlines()[-1]):
        assert "aten::mm" in generic and (cpu == generic) == (kernels == GENERIC)
