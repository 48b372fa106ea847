"""The Triton kernels that bench.attn.gpu compares with, by Triton's interpreter on the CPU. `make cuda` runs it, since
a CUDA build of torch brings Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from checks import ROOT

pytestmark = pytest.mark.long

# Products of float16 alone: the interpreter has none of bfloat16. Each result's error is its norm over the exact one's.
SCRIPT = """
import json, sys, torch
from bench.attn.gpu.rival import rival
errors = []
for m, n, d in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    rows = (m, d**-0.25), (n, d**-0.25), (n, 1.0), (m, 1.0)
    *leaves, grad = [(torch.randn(2, count, 3, d) * scale).half().transpose(1, 2) for count, scale in rows]
    leaves = [t.detach().requires_grad_() for t in leaves]
    output, attn = rival(*leaves)
    assert output.transpose(1, 2).is_contiguous()
    results = output, attn, *torch.autograd.grad(output, leaves, grad)
    q, k, v = [t.detach().double().requires_grad_() for t in leaves]
    attn = torch.tanh(q @ k.mT)
    expected = attn @ v, attn, *torch.autograd.grad(attn @ v, (q, k, v), grad.double())
    errors.append([float((x - y).norm() / y.norm()) for x, y in zip(results, expected, strict=True)])
print(json.dumps(errors))
"""
SIZES = [(70, 67, 64), (1, 130, 64), (16, 64, 64), (128, 33, 128), (200, 200, 64)]


def test_the_rival_computes_attn_on_heads() -> None:
    if not torch.version.cuda:
        pytest.skip("this torch is not built for CUDA, so no Triton is beside it")
    variables = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(SIZES)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for size, errors in zip(SIZES, json.loads(done.stdout), strict=True):
        assert max(errors) < 1e-3, f"{size}: {errors}"
