"""`python -m checks.big`: 2.5e9 elements of attn, forward and backward, right on sampled rows and columns (24 GiB)."""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import Tensor

SAMPLES = 40
D, E = 64, 48


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m checks.big", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000, metavar="N")
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
    forward = time.monotonic() - start
    start = time.monotonic()
    grads = torch.ops.aten._attn_backward(grad_output, None, q, k, v, attn, (True, True, True))
    backward = time.monotonic() - start
    # The ends, the places where 32-bit offsets overflow, and others
    picked = torch.randint(n, (SAMPLES,), generator=generator).tolist()
    rows = sorted({0, 1, n - 2, n - 1, 2**31 // n, 2**31 // n + 1, 2**32 // n, *picked} & set(range(n)))
    q64, k64, v64, g64 = (t.double() for t in (q, k, v, grad_output))
    scores = torch.tanh(q64[rows] @ k64.T)
    columns = torch.tanh(q64 @ k64[rows].T)
    expected = {
        "attn": (attn[rows], scores),
        "output": (output[rows], scores @ v64),
        "grad_q": (grads[0][rows], (g64[rows] @ v64.T * (1 - scores**2)) @ k64),
        "grad_k": (grads[1][rows], (g64 @ v64[rows].T * (1 - columns**2)).T @ q64),
        "grad_v": (grads[2][rows], columns.T @ g64),
    }
    errors = {name: relative(*pair) for name, pair in expected.items()}
    said = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{dtype}, N = {n}: forward {forward:.1f} s, backward {backward:.1f} s, peak {peak:.1f} GiB")
    print(f"    largest error over largest value, {len(rows)} rows: {said}", flush=True)
    if max(errors.values()) > 2 * torch.finfo(dtype).eps:
        raise SystemExit("wrong: more than two roundings of the dtype")


def relative(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max())


if __name__ == "__main__":
    main()
