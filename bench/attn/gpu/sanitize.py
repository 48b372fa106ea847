"""Runs every fused kernel on small heads for compute-sanitizer: edges, whole blocks, parts, odd rows."""

from __future__ import annotations

import itertools
import os
import sys
from functools import partial

import torch

from bench.attn.reference import require_attn, runs_kernels
from fork.arguments import Parser, status


def step(dtype: torch.dtype, m: int, n: int, d: int) -> None:
    def random(rows: int) -> torch.Tensor:
        return torch.randn(2, rows, 2, d, device="cuda").to(dtype).transpose(1, 2).requires_grad_()

    q, k, v = random(m), random(n), random(n)
    output = torch.attn(q, k, v).output
    if d == 64:
        torch.autograd.grad(output, [q, k, v], torch.randn_like(output))


def main() -> None:
    parser = Parser(prog="python -m bench.attn.gpu.sanitize", description=__doc__)
    parser.add_argument("--half", action="store_true", help="half as many sizes, for racecheck, which is slow")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU on this machine")
    require_attn("python -m fork build --cuda on")
    # The operator reads it at its first call.
    os.environ["TORCH_ATTN_KERNELS"] = "1"
    torch.manual_seed(0)
    sizes = ((72, 67), (520, 520)) if options.half else ((1, 520), (72, 67), (128, 128), (520, 520))
    for dtype, (m, n), d in itertools.product((torch.float16, torch.bfloat16), sizes, (64, 128)):
        if not runs_kernels(partial(step, dtype, m, n, d)):
            raise SystemExit(f"bench: {dtype} M={m} N={n} D={d} was composed of ATen's products, and no kernel ran")
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    sys.exit(status("bench.attn.gpu.sanitize", main))
