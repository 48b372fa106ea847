"""`python -m bench.cpu [--quick]`: times torch.attn against its rivals; prints a table, writes JSON and SVG charts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.cpu import plot
from bench.cpu.measure import Floor, flop, medians, peak_memory
from bench.cpu.routes import KINDS, Attn, jax_works, routes, works

# Where there is next to nothing to compute: what is left is the cost of a call.
OVERHEAD_N = 2
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One row of the table: a kind of work at one size and dtype."""

    kind: str
    dtype: str
    n: int
    d: int = 64
    e: int = 64


@dataclass(frozen=True)
class Result:
    """seconds and bytes by route; floor in seconds, for forward and backward."""

    case: Case
    seconds: dict[str, float]
    memory: dict[str, int]
    floor: float | None

    @property
    def speedup(self) -> float:
        return self.seconds["composition"] / self.seconds["torch.attn"]


def cases(quick: bool) -> Iterator[Case]:
    """The marks' sizes and dtypes; without --quick also all widths, N up to 8192 and each kind everywhere."""
    sizes = (2, 16, 256, 1024, 2048, 4096) if quick else (2, 4, 8, 16, 64, 256, 512, 1024, 2048, 4096, 8192)
    for n in sizes:
        for kind in ("forward", "backward"):
            yield Case(kind, "f32", n)
    for dtype in ("f64", "bf16", "f16"):
        for n in (256, 2048) if quick else (256, 2048, 4096):
            for kind in ("forward", "backward"):
                yield Case(kind, dtype, n)
    for kind in KINDS[2:]:
        for n in (1024,) if quick else (16, 256, 1024, 4096):
            yield Case(kind, "f32", n)
    if not quick:
        for d in (16, 64, 128):
            for e in (16, 64, 128):
                if (d, e) != (64, 64):
                    for kind in ("forward", "backward"):
                        yield Case(kind, "f32", 2048, d, e)
        for dtype in ("f32", "bf16"):
            for n, d in ((16, 1024), (256, 1024), (1024, 256), (1024, 1024)):
                for kind in ("forward", "backward"):
                    yield Case(kind, dtype, n, d, d)


def takes_part(name: str, case: Case, quick: bool) -> bool:
    """Not every route is timed everywhere: compiling takes seconds per case, float16 composition seconds per call."""
    if name in ("composition", "torch.attn"):
        return True
    if case.dtype != "f32" or (case.d, case.e) != (64, 64):
        return False
    if name == "torch.compile":
        compiles = case.kind in ("forward", "backward", "both") and (case.n == OVERHEAD_N or case.n >= 1024)
        return compiles and (not quick or case.n == 2048)
    return not quick or case.n in (OVERHEAD_N, 1024)


def run(case: Case, attns: dict[str, Attn], floor: Floor, quick: bool) -> Result:
    size = (case.n, case.d, case.e)
    dtype = DTYPES[case.dtype]
    chosen = {}
    torch._dynamo.reset()  # Past its limit of compilations per function, torch.compile would run eagerly.
    for name, attn in attns.items():
        if not takes_part(name, case, quick):
            continue
        try:
            work = works(attn, case.kind, *size, dtype)
            work()
            chosen[name] = work
        except (NotImplementedError, RuntimeError):
            print(f"    {name} has no {case.kind}")  # A custom Function without a jvp, say
    other = jax_works(case.kind, *size, dtype)
    if other is not None:
        chosen["jax.jit"] = other
    seconds = medians(chosen, 0.15 if quick else 0.5)
    memory = {name: peak_memory(chosen[name]) for name in ("composition", "torch.attn")} if case.n >= 1024 else {}
    least = floor.of(case.kind, *size) if case.kind in ("forward", "backward") else None
    return Result(case, seconds, memory, least)


def row(result: Result) -> str:
    case, ours = result.case, result.seconds["torch.attn"]
    others = ", ".join(
        f"{name} {time * 1e3:.4g}" for name, time in result.seconds.items() if name not in ("composition", "torch.attn")
    )
    rate = f"{flop(case.kind, case.n, case.d, case.e) / ours / 1e9:6.0f}" if case.kind in KINDS[:3] else " " * 6
    share = f"{ours / result.floor:6.2f}" if result.floor and case.n >= 256 else " " * 6
    whole = case.n**2 * DTYPES[case.dtype].itemsize
    memory = " ".join(
        f"{result.memory[x] / whole:5.2f}" if result.memory else " " * 5 for x in ("composition", "torch.attn")
    )
    return (
        f"{case.kind:15} {case.dtype:4} {case.n:5} {case.d:4} {case.e:4} {result.seconds['composition'] * 1e3:10.4f}"
        f" {ours * 1e3:10.4f} {result.speedup:7.2f} {rate} {share} {memory}  {others}"
    )


HEADER = (
    "kind            type     N    D    E composition torch.attn speedup  GF/s floor  N^2 of memory\n"
    "                                              ms         ms                     comp. attn  others, ms"
)


def overhead(results: list[Result]) -> str:
    """What a call costs by each route, in microseconds."""
    small = {r.case.kind: r.seconds for r in results if r.case.dtype == "f32" and r.case.n == OVERHEAD_N}
    names = dict.fromkeys(name for seconds in small.values() for name in seconds)
    lines = [f"cost of a call, microseconds (N = {OVERHEAD_N})  " + " ".join(f"{kind:>9}" for kind in small)]
    for name in names:
        times = (seconds.get(name) for seconds in small.values())
        lines.append(f"{name:38}" + " ".join(f"{t * 1e6:9.1f}" if t else " " * 9 for t in times))
    return "\n".join(lines)


def charts(results: list[Result]) -> dict[str, str]:
    """File name and text of each chart, from the float32 results at D = E = 64."""
    square = [r for r in results if r.case.dtype == "f32" and (r.case.d, r.case.e) == (64, 64)]
    kinds = ("forward", "backward")
    speedups = {k: [(r.case.n, r.speedup) for r in square if r.case.kind == k] for k in kinds}
    drawn = {"speedup.svg": plot.chart("Speed-up over composition, float32", "N", "times", speedups, line=1)}
    shares = {
        f"{name}, {k}": [
            (r.case.n, r.floor / r.seconds[name]) for r in square if r.case.kind == k and r.floor and r.case.n >= 256
        ]
        for k in kinds
        for name in ("torch.attn", "composition")
    }
    drawn["roofline.svg"] = plot.chart("Share of the floor, float32", "N", "floor / time", shares, line=1)
    memory = {
        f"{name}, {k}": [(r.case.n, max(r.memory[name], 4096) / 2**20) for r in square if r.case.kind == k and r.memory]
        for k in kinds
        for name in ("torch.attn", "composition")
    }
    drawn["memory.svg"] = plot.chart("Peak memory over the inputs, float32", "N", "MiB", memory)
    return drawn


def machine() -> dict[str, object]:
    known = Path("/proc/cpuinfo")
    names = (
        [x.split(":")[1].strip() for x in known.read_text().splitlines() if x.startswith("model name")]
        if known.exists()
        else []
    )
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the marks only, in under two minutes")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for results.json and the charts")
    options = parser.parse_args()
    if not hasattr(torch, "attn"):
        raise SystemExit("bench: this torch has no torch.attn; run `python -m fork build` first")
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    attns = routes(options.quick)
    floors: dict[str, Floor] = {}
    results = []
    print(HEADER)
    for case in cases(options.quick):
        if case.dtype not in floors:
            floors[case.dtype] = Floor(DTYPES[case.dtype], 0.1)
        results.append(run(case, attns, floors[case.dtype], options.quick))
        print(row(results[-1]), flush=True)
    print(overhead(results))
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine(), "results": [dataclasses.asdict(r) for r in results]}
    (options.out / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    for name, text in charts(results).items():
        (options.out / name).write_text(text)
    print(f"written: {options.out}/results.json, speedup.svg, roofline.svg, memory.svg")


if __name__ == "__main__":
    main()
