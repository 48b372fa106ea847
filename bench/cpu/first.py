"""`python -m bench.cpu.first`: what the first call of attn at a new number of rows costs, beside a later one.

ATen's and oneDNN's products prepare a kernel for each new size, and so may a call of attn. A size is new once in a
process: the medians are over sizes of a range, each called first and then often. `--write` keeps the table.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.cpu.record import FOLDER, commit, here
from bench.reference import Attn, composition, require_attn
from fork.arguments import Parser, status

FILE = FOLDER / "first.json"
# Rows by range; D = E = 64.
RANGES = {"17 to 56": range(17, 57, 2), "129 to 208": range(129, 209, 4), "513 to 832": range(513, 833, 16)}
DTYPES = ("float32", "bfloat16")


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def step(function: Attn, n: int, dtype: torch.dtype) -> Callable[[], object]:
    """Forward and backward of one matrix, with its inputs made."""
    leaves = [torch.randn(n, 64).to(dtype).requires_grad_() for _ in range(3)]
    grad = torch.randn(n, 64).to(dtype)

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*leaves)[0], leaves, grad)

    return call


def measure(function: Attn, dtype: torch.dtype, sizes: range) -> dict[str, float]:
    """Median seconds of a first and of a later step."""
    step(function, sizes[0] - 1, dtype)()
    first, later = [], []
    for n in sizes:
        call = step(function, n, dtype)
        first.append(seconds(call))
        later.append(statistics.median(seconds(call) for _ in range(7)))
    return {"first": statistics.median(first), "later": statistics.median(later)}


def main() -> None:
    parser = Parser(prog="python -m bench.cpu.first", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"keep the results in {FILE.name}")
    options = parser.parse_args()
    require_attn()
    rows = []
    for name, sizes in RANGES.items():
        for dtype in DTYPES:
            for label, function in (("composition", composition), ("torch.attn", torch.attn)):
                found = measure(function, getattr(torch, dtype), sizes)
                rows.append({"n": name, "dtype": dtype, "by": label, **found})
                print(f"N {name:12} {dtype:9} {label:12} first {found['first'] * 1e3:.3f} ms", end=", ")
                print(f"later {found['later'] * 1e3:.3f} ms")
    if options.write:
        where = f"{here().conditions}, torch {torch.__version__}, commit {commit()}."
        FILE.write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(status("bench.cpu.first", main))
