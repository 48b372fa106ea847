"""Times attn on a GPU against composition, torch.compile of it and cuBLAS by chunks of rows; memory and roofline.

FLOP: forward 2 N^2 (D + E), backward 4 N^2 (D + E). Each time is the median of events around single calls, in turns,
after warm-up. The roofline is the larger of two times: the FLOP at the dtype's rate, and one pass over attn at the
memory's rate. Both rates are from the data sheet of the device. A device that is not in the table gets only times.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.gpu import peak_memory
from bench.reference import Attn, composition, flop, require_attn
from fork.arguments import Parser, duration, status

# Dense TFLOP/s and TB/s of NVIDIA's data sheets; float64 on tensor cores, float32 without TF32.
RATES = {
    "H200": ({"bfloat16": 989.0, "float16": 989.0, "tf32": 494.0, "float32": 67.0, "float64": 67.0}, 4.8),
    "H100": ({"bfloat16": 989.0, "float16": 989.0, "tf32": 494.0, "float32": 67.0, "float64": 67.0}, 3.35),
    "A100": ({"bfloat16": 312.0, "float16": 312.0, "tf32": 156.0, "float32": 19.5, "float64": 19.5}, 2.0),
}
# The smallest speed-ups over composition and shares of the roofline (forward, backward), and from which N they hold.
MARKS = {
    "bfloat16": (2.5, 2.5, 0.55, 0.45, 4096),
    "float16": (2.5, 2.5, 0.55, 0.45, 4096),
    "float32": (1.3, 1.3, 0.0, 0.0, 4096),
    "float64": (1.1, 1.1, 0.0, 0.0, 4096),
}


class Chunked(torch.autograd.Function):
    """attn by products of as many rows at a time as have 16 MiB of scores, which fit in the second-level cache."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        attn, output = q.new_empty(len(q), len(q)), torch.empty_like(v)
        for rows in Chunked.rows(attn):
            torch.tanh(q[rows] @ k.t(), out=attn[rows])
            torch.mm(attn[rows], v, out=output[rows])
        ctx.set_materialize_grads(False)  # attn's would be N x N zeros
        ctx.save_for_backward(q, k, v, attn)
        return output, attn

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, attn = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for rows in Chunked.rows(attn):
            x = torch.ops.aten.tanh_backward(grad_output[rows] @ v.t(), attn[rows])
            torch.mm(x, k, out=grad_q[rows])
            grad_k.addmm_(x.t(), q[rows])
            grad_v.addmm_(attn[rows].t(), grad_output[rows])
        return grad_q, grad_k, grad_v

    @staticmethod
    def rows(attn: Tensor) -> list[slice]:
        count = max(128, 2**24 // (len(attn) * attn.itemsize))
        return [slice(begin, begin + count) for begin in range(0, len(attn), count)]


@dataclass(frozen=True)
class Size:
    name: str  # of the arithmetic
    n: int
    d: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.name == "tf32" else getattr(torch, self.name)

    def floor(self, backward: bool) -> float | None:
        """A lower bound in seconds, if the device is in the table."""
        for device, (rates, memory) in RATES.items():
            if device in torch.cuda.get_device_name():
                operations = flop("backward" if backward else "forward", self.n, self.d, self.d)
                return max(operations / rates[self.name] / 1e12, self.n**2 * self.dtype.itemsize / memory / 1e12)
        return None


def medians(functions: dict[str, Callable[[], object]], budget: float) -> dict[str, float]:
    """Median seconds of one call of each on the device, in turns, in about this many seconds each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    longest = 0.0
    for function in functions.values():
        for _ in range(3):
            function()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        longest = max(longest, time.perf_counter() - begin)
    for _ in range(max(7, min(200, int(budget / longest)))):
        events = {}
        for name, function in functions.items():
            events[name] = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[name][0].record()
            function()
            events[name][1].record()
        torch.cuda.synchronize()
        for name, (start, stop) in events.items():
            times[name].append(start.elapsed_time(stop) / 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


@dataclass(frozen=True)
class Result:
    """Seconds of a call, and its peak memory in N^2 elements."""

    seconds: float
    memory: float


def calls(size: Size, function: Attn) -> list[Callable[[], object]]:
    """Forward, and backward from output's gradient; both have run once."""
    torch.manual_seed(0)
    shape = (size.n, size.d)
    scale = size.d**-0.25
    q, k, v = ((torch.randn(shape, device="cuda") * s).to(size.dtype) for s in (scale, scale, 1.0))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    grad = torch.randn(shape, device="cuda").to(size.dtype)

    def forward() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return function(*leaves)

    output = function(*leaves)[0]

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, leaves, grad, retain_graph=True)

    forward(), backward()
    return [forward, backward]


def measure(size: Size, contenders: dict[str, Attn], budget: float) -> list[dict[str, Result]]:
    """The results of forward and of backward, without contenders that raise."""
    able = {}
    for name, function in contenders.items():
        try:
            able[name] = calls(size, function)
        except Exception as error:
            if name in ("attn", "composition"):
                raise
            print(f"{size}: {name} left out: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    results = []
    for phase in range(2):
        functions = {name: pair[phase] for name, pair in able.items()}
        seconds = medians(functions, budget)
        results.append(
            {
                name: Result(seconds[name], peak_memory(f) / (size.n**2 * size.dtype.itemsize))
                for name, f in functions.items()
            }
        )
    return results


def report(size: Size, budget: float, with_compile: bool) -> list[str]:
    """Prints the lines of one size; returns the marks that it misses."""
    contenders: dict[str, Attn] = {"attn": torch.attn, "composition": composition, "chunked": Chunked.apply}
    if with_compile:
        torch._dynamo.reset()  # After eight sizes it would run eagerly.
        contenders["compiled"] = torch.compile(composition, dynamic=False, fullgraph=True)
    torch.backends.cuda.matmul.allow_tf32 = size.name == "tf32"
    missed = []
    for phase, results in enumerate(measure(size, contenders, budget)):
        direction = ("forward", "backward")[phase]
        mine, plain = results["attn"], results["composition"]
        operations = flop(direction, size.n, size.d, size.d)
        floor = size.floor(bool(phase))
        line = f"{size.name:8} {size.n:6} {size.d:4} {direction:8}"
        line += f" {mine.seconds * 1e3:9.3f} ms {operations / mine.seconds / 1e12:7.1f} TFLOP/s"
        line += f" {floor / mine.seconds:5.0%} of roofline" if floor else ""
        for name, other in results.items():
            line += f"  {other.seconds / mine.seconds:5.2f}x {name}" if other is not mine else ""
        print(f"{line}  memory {mine.memory:.2f} (composition {plain.memory:.2f}) N^2", flush=True)
        for miss in misses(size, phase, mine, plain):
            # Printed at once, because a run may be stopped before its end.
            missed.append(f"{size.name} {size.n} {size.d} {direction}: {miss}")
            print(f"    missed: {miss}", flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return missed


def misses(size: Size, phase: int, mine: Result, plain: Result) -> Iterator[str]:
    """The marks that a result misses. Below a mark's N, attn only has to be as fast as composition."""
    if size.name not in MARKS:
        return
    mark, floor, speedup = MARKS[size.name], size.floor(bool(phase)), plain.seconds / mine.seconds
    wanted = mark[phase] if size.n >= mark[4] else 1.0
    if speedup < wanted:
        yield f"{speedup:.2f}x composition, wanted {wanted}x"
    if floor and size.n >= mark[4] and floor / mine.seconds < mark[2 + phase]:
        yield f"{floor / mine.seconds:.0%} of the roofline, wanted {mark[2 + phase]:.0%}"


def main() -> int:
    parser = Parser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=duration, default=0.15, help="seconds per measurement")
    parser.add_argument("--names", nargs="+", default=["bfloat16", "float16", "float32", "float64", "tf32"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU on this machine")
    require_attn("python -m fork build --cuda on")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    large = {"bfloat16": (4096, 8192, 16384, 32768), "float16": (4096, 16384), "tf32": (4096, 16384)}
    missed = []
    for name in options.names:
        for n in (2, 256, 1024, *large.get(name, (4096, 8192))):
            for d in (64, 128) if n >= 4096 else (64,):
                # Compiling takes longer than measuring.
                with_compile = n == 4096 or (name == "bfloat16" and n == 16384)
                missed += report(Size(name, n, d), options.budget, with_compile)
    print("every mark is met" if not missed else "marks that are missed:\n  " + "\n  ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(status("bench.gpu", main))
