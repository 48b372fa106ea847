"""`python -m bench.attn.tanh [--stride S]`: error of attn over all finite scores, in units in the last place.

float32 takes every S-th number. bfloat16 and float16, which have a tanh of their own, always take all.
"""

from __future__ import annotations

import os
import sys

import torch

from bench.attn.reference import require_attn
from fork.arguments import Parser, at_least, status

# For some processors and sizes ATen's tanh would run.
os.environ["TORCH_ATTN_KERNELS"] = "1"
SIDE = 64
# Numbers at a time
BATCH = 2**20
BITS_OF_INFINITY = 0x7F800000


def tanh(values: torch.Tensor) -> torch.Tensor:
    """tanh of finite values, by torch.attn: with k the identity, the scores are q."""
    k = torch.eye(SIDE, dtype=values.dtype)
    q = torch.nn.functional.pad(values, (0, -values.numel() % SIDE**2)).view(-1, SIDE, SIDE)
    return torch.cat([torch.attn(part, k, k[:, :1])[1].flatten() for part in q])[: values.numel()]


def units(got: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The error of each number in units in the last place of the exact one."""
    exact = torch.tanh(x.double())
    nearest = exact.to(x.dtype).abs()
    ulp = (torch.nextafter(nearest, torch.tensor(2.0, dtype=x.dtype)).double() - nearest.double()).abs()
    return (got.double() - exact).abs() / ulp


def short(dtype: torch.dtype) -> str:
    """The largest error over all normal finite numbers of 16 bits."""
    bits = torch.arange(0x8000, dtype=torch.int32).to(torch.int16).view(dtype)
    x = bits[bits.isfinite() & (bits >= torch.finfo(dtype).smallest_normal)]
    errors = units(tanh(x), x)
    index = int(errors.argmax())
    return f"{dtype}: largest error {errors[index].item():.3f} ulp, at {x[index].item()!r}"


def main() -> None:
    parser = Parser(prog="python -m bench.attn.tanh", description=__doc__)
    parser.add_argument("--stride", type=at_least(1), default=1, help="take every S-th float (default 1: all 2^32)")
    stride = parser.parse_args().stride
    require_attn()
    worst, where = 0.0, 0.0
    step = BATCH * stride
    for first in range(0, BITS_OF_INFINITY, step):
        bits = torch.arange(first, min(first + step, BITS_OF_INFINITY), stride, dtype=torch.int64)
        x = bits.to(torch.int32).view(torch.float32)
        got = tanh(x)
        if not torch.equal(tanh(-x), -got):
            raise SystemExit(f"tanh is not odd near {x[0].item()}")
        errors = units(got, x)
        index = int(errors.argmax())
        if errors[index] > worst:
            worst, where = errors[index].item(), x[index].item()
    print(f"torch.float32: largest error {worst:.3f} ulp, at {where!r}; odd")
    for dtype in (torch.bfloat16, torch.float16):
        print(short(dtype))


if __name__ == "__main__":
    sys.exit(status("bench.attn.tanh", main))
