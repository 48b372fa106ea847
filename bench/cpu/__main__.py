"""`python -m bench.cpu`: times torch.attn on the CPU against composition on a grid, and against its other rivals.

Results are merged into results.json of a folder per processor, with tables and charts made from it. The options choose
a part of the cases, so that a long run can be made in slices.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from timeit import Timer

import torch

from bench.cpu import charts, report
from bench.cpu.cases import DTYPES, OVERHEAD_N, PARTS, SIZES, Case, grid, is_quick, other_routes, torch_dtype
from bench.cpu.measure import LONGEST, Floor, Work, medians, peak_memory
from bench.cpu.record import FOLDER, Record, Result, commit, here, kernels
from bench.cpu.routes import KINDS, jax_works, routes, works
from bench.reference import Attn, flop, require_attn
from fork.arguments import Parser, duration, status

HEADER = (
    "kind            type        N    D    E composition torch.attn speedup  GF/s floor  N^2 of memory\n"
    "                                                 ms         ms                     comp. attn  others, ms"
)


def chosen(options: Namespace) -> Iterator[Case]:
    for case in itertools.chain(grid(), other_routes()):
        if (
            case.part in (options.part or PARTS)
            and case.dtype in (options.dtype or DTYPES)
            and case.n in (options.n or [case.n])
            and case.d in (options.d or [case.d])
            and (is_quick(case) or not options.quick)
        ):
            yield case


def calls(case: Case, attns: dict[str, Attn]) -> dict[str, Work]:
    """The case's work by route; a route that cannot do it is named and left out."""
    size, dtype = (case.n, case.d, case.e), torch_dtype(case.dtype)
    found = {}
    torch._dynamo.reset()  # Past its limit of compilations per function, torch.compile would run eagerly.
    for name, attn in attns.items():
        if not case.takes(name):
            continue
        try:
            work = works(attn, case.kind, *size, dtype)
            work()
            found[name] = work
        except (NotImplementedError, RuntimeError):
            print(f"    {name} has no {case.kind}")  # A custom Function without a jvp, say
    if case.part == "routes" and (other := jax_works(case.kind, *size, dtype)) is not None:
        found["jax.jit"] = other
    return found


def expected(case: Case, attns: dict[str, Attn]) -> float:
    """About the seconds of the slowest call, from one at a quarter of N where N is large."""
    if case.n < 2048:
        return 0.0
    smaller = (case.n // 4, case.d, case.e)
    probes = [works(attn, case.kind, *smaller, torch_dtype(case.dtype)) for attn in attns.values()]
    return 16 * max(min(Timer(probe).repeat(2, 1)) for probe in probes)


def measure(case: Case, attns: dict[str, Attn], floor: Floor, seconds: float) -> Result:
    found = calls(case, attns)
    size = (case.n, case.d, case.e)
    least = floor.of(case.kind, *size) if case.kind in KINDS[:2] else None
    result = Result(case, medians(found, seconds), floor=least)
    if case.part == "grid" and result.speedup < 1:
        # A longer measurement decides whether torch.attn is slower or the machine was busy.
        result = dataclasses.replace(result, seconds=medians(found, 4 * seconds))
    if case.n >= 1024:
        memory = {name: peak_memory(found[name]) for name in ("composition", "torch.attn")}
        result = dataclasses.replace(result, memory=memory)
    return result


def row(result: Result) -> str:
    case, ours = result.case, result.seconds["torch.attn"]
    others = ", ".join(
        f"{name} {time * 1e3:.4g}" for name, time in result.seconds.items() if name not in ("composition", "torch.attn")
    )
    rate = f"{flop(case.kind, case.n, case.d, case.e) / ours / 1e9:6.0f}" if case.kind in KINDS[:3] else " " * 6
    share = f"{ours / result.floor:6.2f}" if result.floor and case.n >= 256 else " " * 6
    memory = " ".join(
        f"{result.memory[x] / case.bytes:5.2f}" if result.memory else " " * 5 for x in ("composition", "torch.attn")
    )
    return (
        f"{case.kind:15} {case.dtype:8} {case.n:5} {case.d:4} {case.e:4} {result.seconds['composition'] * 1e3:10.4f}"
        f" {ours * 1e3:10.4f} {result.speedup:7.2f} {rate} {share} {memory}  {others}".rstrip()
    )


def overhead(results: Iterable[Result]) -> str:
    """What a call costs by each route, in microseconds."""
    small = {r.case.kind: r.seconds for r in results if r.case.part == "routes" and r.case.n == OVERHEAD_N}
    names = dict.fromkeys(name for seconds in small.values() for name in seconds)
    lines = [f"cost of a call, microseconds (N = {OVERHEAD_N})  " + " ".join(f"{kind:>15}" for kind in small)]
    for name in names:
        times = (seconds.get(name) for seconds in small.values())
        lines.append(f"{name:38}" + " ".join(f"{t * 1e6:15.1f}" if t else " " * 15 for t in times))
    return "\n".join(lines) if small else ""


def run(cases: Sequence[Case], record: Record, folder: Path, seconds: float, until: float = math.inf) -> list[Result]:
    """Prints a line for each case and keeps its result at once, so that a run that is stopped loses nothing."""
    floors: dict[str, Floor] = {}
    every: dict[str, Attn] = {}
    state, release = commit(), torch.__version__
    results = []
    print(HEADER)
    for place, case in enumerate(cases):
        if time.monotonic() > until:
            print(f"the time is up: {len(cases) - place} cases are left; `--missing` measures them")
            break
        if case.part == "routes" and not every:
            every = routes(others=True)
        attns = every if case.part == "routes" else routes(others=False)
        guess = expected(case, routes(others=False))
        if guess > LONGEST:
            print(
                f"{case.kind:15} {case.dtype:8} {case.n:5} {case.d:4} {case.e:4} left out: about {guess:.0f} s a call"
            )
            continue
        if case.dtype not in floors:
            floors[case.dtype] = Floor(torch_dtype(case.dtype), 0.1)
        result = measure(case, attns, floors[case.dtype], seconds)
        results.append(dataclasses.replace(result, commit=state, torch=release, kernels=kernels("cpu")))
        print(row(results[-1]), flush=True)
        record.add(results[-1])
        record.write(folder)
    return results


def refuse_huge_pages() -> None:
    """From now on advice for huge pages has no effect in this process, its own or PyTorch's."""
    pr_set_thp_disable = 41
    if ctypes.CDLL(None).prctl(pr_set_thp_disable, 1, 0, 0, 0):
        raise SystemExit("bench: this system cannot refuse huge pages (prctl PR_SET_THP_DISABLE)")


def main() -> None:
    parser = Parser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases, in under two minutes")
    parser.add_argument("--seconds", type=duration, help="for each route of a case (default 0.4; 0.15 with --quick)")
    parser.add_argument("--part", nargs="+", choices=PARTS, help="the grid, or every other route at a few sizes")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="only these")
    parser.add_argument("--n", nargs="+", type=int, metavar="N", help=f"only these of {SIZES}")
    parser.add_argument("--d", nargs="+", type=int, metavar="D", help="only these widths")
    parser.add_argument("--out", type=Path, help="folder of the results (default: guide/bench/<processor>)")
    parser.add_argument(
        "--no-huge-pages",
        action="store_true",
        help=f"refuse them to this process; the folder is {report.WITHOUT_PAGES} inside of --out",
    )
    parser.add_argument("--minutes", type=duration, help="begin no case after as many; --missing goes on from there")
    parser.add_argument("--missing", action="store_true", help="only cases without a result of the present kernels")
    options = parser.parse_args()
    require_attn()
    if options.no_huge_pages:
        refuse_huge_pages()
    cases = list(chosen(options))
    if not cases:
        parser.error("no case has this part, dtype, N and D")
    mine = here()
    folder = (options.out or FOLDER / mine.folder_name) / (report.WITHOUT_PAGES if options.no_huge_pages else "")
    record = Record.read(folder) if (folder / "results.json").exists() else mine
    if record.conditions != mine.conditions:
        raise SystemExit(
            f"bench: {folder}/results.json was taken on {record.conditions}, and this is {mine.conditions}; "
            "choose another folder with --out"
        )
    print(f"{mine.conditions}, torch {torch.__version__}, commit {commit()}")
    if options.missing:
        cases = [case for case in cases if record.present().find(case) is None]
    until = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    results = run(cases, record, folder, options.seconds or (0.15 if options.quick else 0.4), until)
    print(overhead(results), end="\n" * any(r.case.n == OVERHEAD_N for r in results))
    report.write(record, folder)
    charts.draw(record, folder)
    print(f"written: {folder}/results.json, tables.md and charts")
    print(report.verdict(results))


if __name__ == "__main__":
    sys.exit(status("bench.cpu", main))
