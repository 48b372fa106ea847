"""Times attn on a GPU against composition, torch.compile of it, and any other function that `--also` names.

Of each case it prints two times, medians over rounds in turns: on the device, by replays of a CUDA graph, and of calls
in a row from Python, where launches count too. FLOP: forward 2 N^2 (D + E), backward 4 N^2 (D + E). The roofline is the
larger of the FLOP at the rate of 16 bits and one pass over attn at the memory's rate, both from the device's data
sheet. With TORCH_ATTN_KERNELS=1 the kernels also run where the rule composes. A size is N, or BxN for B matrices.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.attn.gpu import peak_memory
from bench.attn.gpu.report import Result, document, size_of
from bench.attn.reference import Attn, composition, flop, require_attn, runs_kernels
from bench.machine import commit
from fork.arguments import Parser, duration, status

# Dense TFLOP/s in 16 bits and TB/s of NVIDIA's data sheets.
RATES = {"H200": (989.0, 4.8), "H100": (989.0, 3.35), "A100": (312.0, 2.0)}
KINDS = ("forward", "backward", "both")
DTYPES = ("bfloat16", "float16", "float32", "float64", "complex64")
SIZES = [*map(str, (256, 512, 1000, 1024, 2048, 3000, 4096, 6000, 8192, 16384, 32768)), "96x128", "8x512", "4x1024"]
Call = Callable[[], object]


def calls(function: Attn, dtype: torch.dtype, shape: tuple[int, ...]) -> dict[str, Call]:
    """Forward, backward from output's gradient, and both as a training step; each has run once."""
    torch.manual_seed(0)
    scale = shape[-1] ** -0.25
    leaves = [(torch.randn(shape, device="cuda") * s).to(dtype).requires_grad_() for s in (scale, scale, 1.0)]
    grad = torch.randn(shape, device="cuda").to(dtype)
    output = function(*leaves)[0]

    def forward() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return function(*leaves)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, leaves, grad, retain_graph=True)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*leaves)[0], leaves, grad)

    found: dict[str, Call] = dict(zip(KINDS, (forward, backward, both), strict=True))
    for call in found.values():
        call()
    return found


def on_device(call: Call, stream: torch.cuda.Stream) -> Call:
    """A replay of the call's kernels."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def medians(functions: dict[str, Call], budget: float) -> dict[str, float]:
    """Median microseconds of one of many calls in a row, for about this many seconds each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    counts = {}
    for name, function in functions.items():
        function()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        counts[name] = max(1, min(50, int(budget / 7 / (time.perf_counter() - begin))))
    for _ in range(7):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                function()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / counts[name] * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def size(text: str) -> str:
    """N or BxN, else ValueError."""
    if not re.fullmatch(r"([1-9]\d*x)?[1-9]\d*", text):
        raise ValueError
    return text


def shape_of(size: str, d: int) -> tuple[int, ...]:
    return (*map(int, size.split("x")), d)


def measure(contenders: dict[str, Attn], dtype: torch.dtype, shape: tuple[int, ...], budget: float) -> list[Result]:
    """The results of one shape of q, k and v, without contenders that raise."""
    *lead, n, d = shape
    batch = math.prod(lead)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        able: dict[str, dict[str, Call]] = {}
        for name, function in contenders.items():
            try:
                able[name] = calls(function, dtype, shape)
            except Exception as error:
                if name in ("torch.attn", "composition"):
                    raise
                print(f"{dtype} {shape}: {name} left out: {type(error).__name__}: {str(error).splitlines()[0]}")
        results = []
        for kind in KINDS:
            mine = {name: found[kind] for name, found in able.items()}
            result: Result = {"dtype": str(dtype).removeprefix("torch."), "n": n, "d": d, "kind": kind}
            result |= {"batch": batch} if lead else {}
            result["kernels"] = runs_kernels(mine["torch.attn"])
            result["memory"] = {x: peak_memory(f) / (batch * n * n * dtype.itemsize) for x, f in mine.items()}
            torch.cuda.synchronize()
            replays = {} if kind == "both" else {x: on_device(f, stream) for x, f in mine.items()}
            result["device"] = medians(replays, budget) if replays else {}
            result["calls"] = medians(mine, budget)
            result["calls_speedup"] = round(result["calls"]["composition"] / result["calls"]["torch.attn"], 2)
            results.append(result | {"commit": commit(), "torch": torch.__version__})
            del replays
    return results


def roofline(result: Result) -> float | None:
    """The share of the device's bound that a time on the device reaches."""
    rates = next((found for name, found in RATES.items() if name in torch.cuda.get_device_name()), None)
    if rates is None or not result["device"]:
        return None
    n, d, size = result["n"], result["d"], getattr(torch, result["dtype"]).itemsize
    seconds = max(flop(result["kind"], n, d, d) / rates[0], n * n * size / rates[1]) / 1e12
    return seconds * result.get("batch", 1) * 1e6 / result["device"]["torch.attn"]


def line(result: Result) -> str:
    """One result: times, and speed-ups of torch.attn over the others."""
    text = f"{result['dtype']:8} {size_of(result):>7} {result['d']:4} {result['kind']:8}"
    for where in ("device", "calls"):
        times = result[where]
        if times:
            text += f"  {where} {times['torch.attn']:9.1f} us"
            text += "".join(f" {t / times['torch.attn']:5.2f}x {x}" for x, t in times.items() if x != "torch.attn")
    share = roofline(result)
    text += f"  {share:4.0%} of roofline" if share else ""
    memory = result["memory"]
    return f"{text}  memory {memory['torch.attn']:.2f} (composition {memory['composition']:.2f}) N^2"


def main() -> None:
    parser = Parser(prog="python -m bench.attn.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", type=duration, default=0.1, help="seconds per measurement")
    parser.add_argument("--dtype", nargs="+", default=DTYPES[:2], choices=DTYPES)
    parser.add_argument("--n", nargs="+", type=size, default=SIZES, help="N, or BxN for a batch of B")
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--also", metavar="MODULE:FUNCTION", help="a function of q, k, v to time, such as a prototype")
    parser.add_argument("--no-compile", action="store_true", help="leaves torch.compile out, which takes longest")
    parser.add_argument("--out", type=Path, default=Path("build/gpu/results"), help="folder of results.json, tables.md")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU on this machine")
    require_attn("python -m fork build --cuda on")
    record: Result = {"device": torch.cuda.get_device_name(), "results": []}
    print(f"{record['device']}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    options.out.mkdir(parents=True, exist_ok=True)
    for dtype in options.dtype:
        for d in options.d:
            for n in options.n:
                contenders: dict[str, Attn] = {"torch.attn": torch.attn, "composition": composition}
                if options.also:
                    module, _, name = options.also.partition(":")
                    contenders[name] = getattr(importlib.import_module(module), name)
                if not options.no_compile and dtype == "bfloat16" and n in ("4096", "16384"):
                    torch._dynamo.reset()  # After eight sizes it would run eagerly.
                    contenders["compiled"] = torch.compile(composition, dynamic=False, fullgraph=True)
                for result in measure(contenders, getattr(torch, dtype), shape_of(n, d), options.budget):
                    print(line(result), flush=True)
                    record["results"].append(result)
                # Written after each size, because a run may be stopped before its end.
                (options.out / "results.json").write_text(json.dumps(record, indent=1) + "\n")
                (options.out / "tables.md").write_text(document(record))
                gc.collect()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(status("bench.attn.gpu", main))
