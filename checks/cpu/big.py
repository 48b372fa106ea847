"""`python -m checks.cpu.big`: 2.5e9 elements, forward and backward, right on sampled rows and columns (24 GiB)."""

from __future__ import annotations

import resource
import sys
import time

import torch
from torch import Tensor

from fork.arguments import Parser, at_least, status

SAMPLES = 40
D, E = 64, 48


def main() -> None:
    parser = Parser(prog="python -m checks.cpu.big", description=__doc__)
    parser.add_argument("--rows", type=at_least(2), default=50_000, metavar="N")
    options = parser.parse_args()
    for dtype in (torch.bfloat16, torch.float16):
        run(options.rows, dtype)


def run(n: int, dtype: torch.dtype) -> None:
    """Raises where a sampled row of any result is further from float64 than its dtype and its sums explain."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((n, D), (n, D), (n, E), (n, E))
    q, k, v, grad_output = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    q, k = q.mul_(D**-0.25), k.mul_(D**-0.25)
    start = time.monotonic()
    output, attn = torch.attn(q, k, v)
    took = {"forward": time.monotonic() - start}
    # The ends, the places where 32-bit offsets overflow, and others
    picked = torch.randint(n, (SAMPLES,), generator=generator).tolist()
    rows = sorted({0, 1, n - 2, n - 1, 2**31 // n, 2**31 // n + 1, 2**32 // n, *picked} & set(range(n)))
    q64, k64, v64, g64 = (t.double() for t in (q, k, v, grad_output))
    scores, columns = torch.tanh(q64[rows] @ k64.T), torch.tanh(q64 @ k64[rows].T)
    errors = {"attn": relative(attn[rows], scores), "output": relative(output[rows], scores @ v64)}
    # attn serves as a gradient of itself, so that no other tensor of its size is needed.
    for name, grad_attn in (("backward", None), ("backward of both", attn)):
        start = time.monotonic()
        grads = torch.ops.aten._attn_backward(grad_output, grad_attn, q, k, v, attn, (True, True, True))
        took[name] = time.monotonic() - start
        by_row, by_column = g64[rows] @ v64.T, g64 @ v64[rows].T
        if grad_attn is not None:
            by_row, by_column = by_row + grad_attn[rows].double(), by_column + grad_attn[:, rows].double()
        expected = (by_row * (1 - scores**2)) @ k64, (by_column * (1 - columns**2)).T @ q64, columns.T @ g64
        for i, exact in enumerate(expected):
            errors[f"grad_{'qkv'[i]} ({name})"] = relative(grads[i][rows], exact)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    times = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in took.items())
    print(f"{dtype}, N = {n}: {times}, peak {peak:.1f} GiB")
    said = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    print(f"    largest error over largest value, {len(rows)} rows: {said}", flush=True)
    if not all(error <= 2 * torch.finfo(dtype).eps for error in errors.values()):
        raise SystemExit("wrong: more than two roundings of the dtype")


def relative(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max())


if __name__ == "__main__":
    sys.exit(status("checks.cpu.big", main))
