"""Times attn on a GPU, on heads as a layer has them: (B, rows, H, D).transpose(1, 2).

Contenders are composition, torch.compile of it, SDPA (flash, which keeps no attn), the Triton kernels of rival.py, and
torch.attn with its kernels wherever they can run. Backward is from output's gradient, and its gradients are wanted
contiguous in (B, rows, H, D). Of each it takes two medians in microseconds: on the device, by replays of a CUDA graph,
and of calls in a row from Python, where launches count too.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.arguments import duration
from bench.attn.cpu.record import kernels
from bench.attn.gpu.report import Result, document, line
from bench.attn.reference import composition, require_attn, runs_kernels
from bench.documents import lines
from bench.machine import commit
from fork.arguments import Parser, status

DTYPES = ("bfloat16", "float16")
HEADS = (8, 96)
SIZES = ((128, 128), (512, 512), (2048, 2048), (8192, 8192), (1, 4096), (16, 4096))  # M and N
WIDTHS = (64, 128)
ROUNDS = 7
Call = Callable[[], object]
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """Queries and keys of all heads together, D = E columns wide."""

    heads: int
    m: int
    n: int
    d: int

    def leaf(self, rows: int, device: str, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        batch = 2 if self.heads < 16 else 8
        return (torch.randn(batch, rows, self.heads // batch, self.d, device=device) * scale).to(dtype)


def contenders() -> dict[str, Function]:
    """The functions of q, k and v that return output, by their names."""
    from bench.attn.gpu.rival import rival  # Triton comes with a CUDA build of torch

    compiled = torch.compile(composition, dynamic=True, fullgraph=True)
    return {
        "composition": lambda q, k, v: composition(q, k, v)[0],
        "compiled": lambda q, k, v: compiled(q, k, v)[0],
        "SDPA": F.scaled_dot_product_attention,
        "Triton": lambda q, k, v: rival(q, k, v)[0],
        "torch.attn": lambda q, k, v: torch.attn(q, k, v).output,
    }


def calls(function: Function, shape: Shape, dtype: torch.dtype, device: str = "cuda") -> dict[str, Call]:
    """Forward, and backward as the layer before needs it; each has run once."""
    torch.manual_seed(0)
    scale = shape.d**-0.25
    rows = (shape.m, scale), (shape.n, scale), (shape.n, 1.0)
    leaves = [shape.leaf(count, device, dtype, s).requires_grad_() for count, s in rows]
    heads = [t.transpose(1, 2) for t in leaves]
    grad = shape.leaf(shape.m, device, dtype).transpose(1, 2)
    output = function(*heads)

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*heads)

    def backward() -> list[Tensor]:
        return [t.contiguous() for t in torch.autograd.grad(output, leaves, grad, retain_graph=True)]

    forward()
    backward()
    return {"forward": forward, "backward": backward}


def replays(call: Call, stream: torch.cuda.Stream) -> Call:
    """A replay of the call's kernels."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def median(call: Call, budget: float) -> float:
    """Of many calls in a row, in microseconds, for about so many seconds."""

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    count = max(1, min(100, int(budget / ROUNDS / min(seconds(1), seconds(1)))))
    return statistics.median(seconds(count) / count for _ in range(ROUNDS)) * 1e6


def measure(functions: dict[str, Function], shape: Shape, dtype: torch.dtype, budget: float) -> list[Result]:
    """Forward and backward of one shape. One contender at a time has memory; who has too little is left out.

    So is a rival that raises, and each says why.
    """
    results: dict[str, Result] = {}
    stream = torch.cuda.Stream()
    for name, function in functions.items():
        torch.cuda.empty_cache()
        try:
            with torch.cuda.stream(stream):
                for kind, call in calls(function, shape, dtype).items():
                    result = results.setdefault(kind, {**vars(shape), "kind": kind, "device": {}, "calls": {}})
                    result["kernels"] = name == "torch.attn" and runs_kernels(call)
                    result["calls"][name] = round(median(call, budget), 2)
                    torch.cuda.empty_cache()  # A graph has memory of its own.
                    result["device"][name] = round(median(replays(call, stream), budget), 2)
        except Exception as error:
            if name in ("composition", "torch.attn") and not isinstance(error, torch.OutOfMemoryError):
                raise
            print(f"{dtype} {shape}: {name} left out: {type(error).__name__}: {str(error).splitlines()[0]}")
    return list(results.values())


def main() -> None:
    parser = Parser(prog="python -m bench.attn.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", type=duration, default=0.05, help="seconds per measurement")
    parser.add_argument("--minutes", type=float, default=9, help="begins no shape after so many")
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--d", nargs="+", type=int, default=WIDTHS, choices=WIDTHS)
    parser.add_argument("--out", type=Path, default=Path("build/gpu/results"), help="folder of results.json, tables.md")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU on this machine")
    require_attn("python -m fork build --cuda on")
    os.environ["TORCH_ATTN_KERNELS"] = "1"  # The operator reads it at its first call.
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.donated_buffer = False  # Each backward runs many times.
    record: Result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
    record |= {"kernels": kernels("cuda"), "results": []}
    print(f"{record['device']}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    options.out.mkdir(parents=True, exist_ok=True)
    functions, end = contenders(), time.monotonic() + 60 * options.minutes
    cases = list(itertools.product(options.d, options.dtype, HEADS, SIZES))
    for i, (d, dtype, heads, (m, n)) in enumerate(cases):
        if time.monotonic() > end:
            print(f"bench: {len(cases) - i} of {len(cases)} shapes are left out for time")
            break
        for result in measure(functions, Shape(heads, m, n, d), getattr(torch, dtype), options.budget):
            record["results"].append({"dtype": dtype} | result)
            print(line(record["results"][-1]), flush=True)
        # Written after each shape, because a run may be stopped before its end.
        (options.out / "results.json").write_text(lines(record))
        (options.out / "tables.md").write_text(document(record))


if __name__ == "__main__":
    sys.exit(status("bench.attn.gpu", main))
