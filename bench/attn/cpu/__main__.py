"""`python -m bench.attn.cpu`: times torch.attn on the CPU against composition on a grid, and against its other rivals.

Results are merged into results.json of a folder per processor, with tables and charts made from it. The options choose
a part of the cases, so that a long run can be made in slices.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from bench.arguments import duration
from bench.attn.cpu import charts, tables
from bench.attn.cpu.cases import DTYPES, PARTS, Case, batches, grid, heads, is_quick, other_routes
from bench.attn.cpu.kinds import BATCHED, CAST, KINDS
from bench.attn.cpu.processes import OTHERS, RIVAL, SETTINGS, Process, Worker
from bench.attn.cpu.record import FOLDER, PAGES, Record, Result, here, kernels
from bench.attn.reference import require_attn
from bench.machine import commit
from fork.arguments import Parser, status

HEADER = (
    f"{'kind':15} {'type':8}{'attn':>14} {'D':>7} {'E':>7} threads; {', '.join(tables.HEAD)}; the same with huge pages"
)
ROUNDS = 5
# A case ends after about this many seconds, even if fewer rounds were taken than otherwise.
LONGEST = 10.0


def chosen(options: Namespace) -> Iterator[Case]:
    for case in itertools.chain(grid(), heads(), batches(), other_routes()):
        if (
            case.part in (options.part or PARTS)
            and case.dtype in (options.dtype or DTYPES)
            and case.n in (options.n or [case.n])
            and case.d in (options.d or [case.d])
            and (is_quick(case) or not options.quick)
        ):
            yield case


def measure(case: Case, processes: Sequence[Process], seconds: float) -> Result:
    used = []
    for process, (_, columns) in zip(processes, (*SETTINGS, RIVAL, OTHERS), strict=True):
        if _serves(columns, case):
            others = columns in (RIVAL[1], OTHERS[1])
            every = columns is OTHERS[1] and case.part != "heads"
            process.run(Worker.prepare, case, columns, others, every)
            used.append(process)
    least = (
        used[0].run(Worker.floor, case) if case.part == "grid" and case.kind in KINDS[:2] and case.n >= 256 else None
    )
    fused = used[0].run(Worker.runs_kernels) if case.kind not in KINDS[3:] else None
    result = Result(case, medians(used, seconds), floor=least, fused=fused)
    if case.part != "routes" and result.is_slower("composition", "generic"):
        # A longer measurement decides whether torch.attn is slower or the machine was busy.
        result = dataclasses.replace(result, seconds=medians(used, 4 * seconds))
    if case.part in ("grid", "heads") and math.prod(case.shape) >= 1 << 20:
        peaks = [process.run(Worker.peaks) for process in used]
        result = dataclasses.replace(result, memory={name: peak for found in peaks for name, peak in found.items()})
    return result


def _serves(columns: Mapping[str, str], case: Case) -> bool:
    """Whether a process with these columns has something to time."""
    if columns is RIVAL[1]:
        return case.part == "heads"
    if columns is OTHERS[1]:
        return case.part in ("batches", "routes") or case.takes(CAST)
    return case.has_huge_pages or not any(column.endswith(PAGES) for column in columns.values())


def medians(processes: Sequence[Process], seconds: float) -> dict[str, float]:
    """Median seconds per call of each column, about `seconds` of each, by processes in turns."""
    taken: dict[str, list[float]] = {}
    begin = time.monotonic()
    for _ in range(ROUNDS):
        for process in processes:
            for column, times in process.run(Worker.turn, seconds / ROUNDS).items():
                taken.setdefault(column, []).extend(times)
        if time.monotonic() - begin > LONGEST:
            break
    return {column: statistics.median(times) for column, times in taken.items() if column}


def row(result: Result) -> str:
    case = result.case
    said = []
    for pages in ("", PAGES) if "torch.attn" + PAGES in result.seconds else ("",):
        found = tables.cells(result, pages)
        said.append(" ".join(f"{found.get(name, ''):>8}" for name in tables.HEAD))
        said += [f"{name} {found[name]}" for name in found if name in (*BATCHED, CAST)]
    shape = "x".join(map(str, case.shape)) + f" of {case.shared}" * bool(case.shared)
    return f"{case.kind:15} {case.dtype:8}{shape:>14} {case.d:7} {case.e:7} {case.threads or '':1} {'; '.join(said)}"


def run(cases: Sequence[Case], record: Record, folder: Path, seconds: float, until: float = math.inf) -> list[Result]:
    """Prints a line for each case and keeps its result at once, so that a run that is stopped loses nothing."""
    processes = [Process(environment) for environment, _ in (*SETTINGS, RIVAL, OTHERS)]
    state, release = commit(), torch.__version__
    results = []
    print(HEADER)
    for place, case in enumerate(cases):
        if time.monotonic() > until:
            print(f"the time is up: {len(cases) - place} cases are left; `--missing` measures them")
            break
        said = {"commit": state, "torch": release, "kernels": kernels("cpu", record.capability)}
        results.append(dataclasses.replace(measure(case, processes, seconds), **said))
        print(row(results[-1]), flush=True)
        record.add(results[-1])
        record.write(folder)
    return results


def main() -> None:
    parser = Parser(prog="python -m bench.attn.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases, in under two minutes")
    parser.add_argument("--seconds", type=duration, default=0.1, help="for each column of a case (default 0.1)")
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, help="contiguous matrices, heads, batches, or every route at a few sizes"
    )
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="only these")
    parser.add_argument("--n", nargs="+", type=int, metavar="N", help="only these numbers of rows")
    parser.add_argument("--d", nargs="+", type=int, metavar="D", help="only these widths")
    parser.add_argument("--out", type=Path, help="folder of the results (default: guide/bench/<processor>)")
    parser.add_argument("--minutes", type=duration, help="begin no case after as many; --missing goes on from there")
    parser.add_argument("--missing", action="store_true", help="only cases without a result of the present kernels")
    parser.add_argument("--check", action="store_true", help="measure nothing; fail if a case is slower or missing")
    options = parser.parse_args()
    require_attn()
    cases = list(chosen(options))
    if not cases:
        parser.error("no case has this part, dtype, N and D")
    mine = here()
    folder = options.out or FOLDER / mine.folder_name
    record = Record.read(folder) if (folder / "results.json").exists() else mine
    if record.conditions != mine.conditions:
        raise SystemExit(
            f"bench: {folder}/results.json was taken on {record.conditions}, and this is {mine.conditions}; "
            "choose another folder with --out"
        )
    record = record.present()  # Drops results of earlier kernels.
    found = [result for case in cases if (result := record.find(case))]
    if options.check:
        print(tables.verdicts(dataclasses.replace(record, results=found), cases))
        if len(found) < len(cases):
            print(f"not measured with the present kernels: {len(cases) - len(found)} of {len(cases)} cases")
        raise SystemExit(len(found) < len(cases) or any(r.is_slower("composition") for r in found))
    print(f"{mine.conditions}, torch {torch.__version__}, commit {commit()}")
    if options.missing:
        cases = [case for case in cases if record.find(case) is None]
    until = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    results = run(cases, record, folder, options.seconds, until)
    tables.write(record, folder)
    charts.draw(record, folder)
    print(f"written: {folder}/results.json, tables.md and charts")
    print(tables.verdicts(dataclasses.replace(record, results=results)))


if __name__ == "__main__":
    sys.exit(status("bench.attn.cpu", main))
