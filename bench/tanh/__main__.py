"""`python -m bench.tanh [--stride S]`: error of attn over all finite float32 scores, in units in the last place."""

from __future__ import annotations

import argparse

import torch

from bench.reference import require_attn

SIDE = 512
BITS_OF_INFINITY = 0x7F800000


def tanh(values: torch.Tensor) -> torch.Tensor:
    """tanh of at most SIDE^2 finite values, by torch.attn: with k the identity, the scores are q."""
    q = torch.zeros(SIDE * SIDE)
    q[: values.numel()] = values
    k = torch.eye(SIDE)
    return torch.attn(q.view(SIDE, SIDE), k, k[:, :1])[1].flatten()[: values.numel()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="take every S-th float (default 1: all 2^32)")
    stride = parser.parse_args().stride
    if stride < 1:
        raise SystemExit(f"bench: --stride is {stride}; give 1 or more")
    require_attn()
    worst, where, last = 0.0, 0.0, torch.zeros(1)
    step = SIDE * SIDE * stride
    for first in range(0, BITS_OF_INFINITY, step):
        bits = torch.arange(first, min(first + step, BITS_OF_INFINITY), stride, dtype=torch.int64)
        x = bits.to(torch.int32).view(torch.float32)
        got = tanh(x)
        if not torch.equal(tanh(-x), -got):
            raise SystemExit(f"tanh is not odd near {x[0].item()}")
        if not (torch.diff(got, prepend=last) >= 0).all():
            raise SystemExit(f"tanh is not monotone near {x[0].item()}")
        last = got[-1:]
        exact = torch.tanh(x.double())
        nearest = exact.float()
        ulp = (torch.nextafter(nearest, torch.tensor(2.0)) - nearest).double()
        errors = (got.double() - exact).abs() / ulp
        index = int(errors.argmax())
        if errors[index] > worst:
            worst, where = errors[index].item(), x[index].item()
    print(f"largest error {worst:.3f} ulp, at {where!r}; odd and monotone")


if __name__ == "__main__":
    main()
