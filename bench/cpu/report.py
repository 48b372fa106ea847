"""Tables of what results.json holds: `python -m bench.cpu.report` makes those of every processor again.

It also writes the table of all processors side by side into the documents that show it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.cpu.cases import DTYPES, SIZES, WIDTHS, Case
from bench.cpu.record import FOLDER, SLOWER, Record, Result
from bench.cpu.routes import KINDS
from bench.reference import flop
from fork.arguments import Parser, status

ROOT = FOLDER.parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "stack/explicit/PR.md")
# dtype, N, and D = E of the rows of the table side by side.
ROWS = (
    *(("float32", n, 64) for n in (2, 16, 256, 1024, 2048, 4096, 8192)),
    ("float64", 4096, 64),
    *(("bfloat16", n, 64) for n in (1024, 2048, 4096)),
    ("float16", 4096, 64),
    *((dtype, 1024, d) for dtype in ("float32", "bfloat16") for d in (256, 1024)),
)
HEADING = "| dtype | N | D = E |"
HOW = (
    "`python -m bench.cpu` took these figures, and `python -m bench.cpu.report` made the tables from `results.json`. "
    "Times are medians of calls taken in turns. Operations: forward 2 N² (D + E), backward 4 N² (D + E). The floor is "
    "the time of these operations at the rate of a square product, plus that of one pass over N x N. Memory is the "
    f"peak that a call adds, in elements of N x N. Bold speed-ups are below {SLOWER}."
)
SIDE_BY_SIDE = re.compile(rf"^{re.escape(HEADING)}.*\n(?:\|.*\n)+\n(?:(?:\* |  ).*\n)+", re.MULTILINE)


def verdict(results: Iterable[Result]) -> str:
    """Names every case of the grid in which torch.attn is slower than composition."""
    measured = [r for r in results if r.case.part == "grid"]
    slower = [
        f"{r.case.kind} {r.case.dtype} N={r.case.n} D={r.case.d} ({r.speedup:.2f})" for r in measured if r.is_slower
    ]
    return f"slower than composition (below {SLOWER}), of {len(measured)} cases: {', '.join(slower) or 'none'}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def provenance(results: Iterable[Result]) -> str:
    """On which commits and releases of torch the results were taken."""
    states: dict[tuple[str, str], int] = {}
    for result in results:
        key = (result.torch, result.commit)
        states[key] = states.get(key, 0) + 1
    if len(states) == 1:
        release, state = next(iter(states))
        return f"torch {release}, commit {state}"
    return "; ".join(f"torch {release}, commit {state} ({count} cases)" for (release, state), count in states.items())


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def side_by_side(records: Sequence[Record]) -> str:
    """composition's time, torch.attn's time and the speed-up on every processor, and where the figures are from."""
    head = ["dtype", "N", "D = E", *(f"{r.processor} {k}" if k == "forward" else k for r in records for k in KINDS[:2])]
    rows = []
    shown: list[list[Result]] = [[] for _ in records]
    for dtype, n, d in ROWS:
        cells = []
        for record, used in zip(records, shown):
            for kind in KINDS[:2]:
                result = record.find(Case("grid", kind, dtype, n, d, d))
                used += [result] if result else []
                cells.append(_times(result) if result else "")
        rows.append([dtype, str(n), str(d), *cells])
    lines = []
    for record, used in zip(records, shown):
        note = f"{record.conditions}, {provenance(used)}.{record.remark and ' '}{record.remark}"
        lines.append(wrapped(note, "* ", "  "))
    return f"{table(head, rows)}\n{''.join(lines)}"


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(text, 120, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) + "\n"


def _times(result: Result) -> str:
    ours, other = (milliseconds(result.seconds[x]) for x in ("torch.attn", "composition"))
    return f"{other} / {ours} = {_speedup(result)}"


def _speedup(result: Result) -> str:
    text = f"{result.speedup:.{2 if result.speedup < 1.2 else 1 if result.speedup < 10 else 0}f}x"
    return f"**{text}**" if result.is_slower else text


def overview(record: Record, dtype: str) -> str:
    """Speed-ups, forward and backward, by N and D."""
    head = ["N", *(f"D = E = {d}" for d in WIDTHS)]
    rows = []
    for n in SIZES:
        cells = []
        for d in WIDTHS:
            found = (record.find(Case("grid", kind, dtype, n, d, d)) for kind in KINDS[:2])
            cells.append(", ".join(_speedup(r) for r in found if r))
        rows.append([str(n), *cells])
    return table(head, rows)


def details(results: Iterable[Result]) -> str:
    """Every result of the grid."""
    head = ("N", "D = E", "kind", "composition, ms", "torch.attn, ms", "speed-up", "GFLOP/s", "of the floor")
    rows = []
    for r in sorted(results, key=lambda r: (r.case.n, r.case.d, KINDS.index(r.case.kind))):
        ours = r.seconds["torch.attn"]
        case = r.case
        memory = [f"{r.memory[x] / case.bytes:.2f}" if r.memory else "" for x in ("composition", "torch.attn")]
        rate = f"{flop(case.kind, case.n, case.d, case.e) / ours / 1e9:.0f}"
        share = f"{r.floor / ours:.0%}" if r.floor and case.n >= 256 else ""
        times = (milliseconds(r.seconds["composition"]), milliseconds(ours), _speedup(r))
        rows.append([str(case.n), str(case.d), case.kind, *times, rate, share, *memory, r.commit])
    return table((*head, "memory, N²: composition", "torch.attn", "commit"), rows)


def other_routes(results: Sequence[Result]) -> str:
    """Milliseconds by every route, in float32."""
    names = list(dict.fromkeys(name for r in results for name in r.seconds))
    rows = []
    for r in sorted(results, key=lambda r: (KINDS.index(r.case.kind), r.case.n, r.case.d, r.case.e)):
        size = [r.case.kind, str(r.case.n), str(r.case.d), str(r.case.e)]
        rows.append([*size, *(milliseconds(r.seconds.get(name)) for name in names)])
    return table(["kind", "N", "D", "E", *names], rows)


def document(record: Record) -> str:
    """tables.md of one processor."""
    grid = [r for r in record.results if r.case.part == "grid"]
    routes = [r for r in record.results if r.case.part == "routes"]
    text = f"# {record.processor}\n"
    origin = f"{record.conditions}, {provenance(record.results)}.{record.remark and ' '}{record.remark}"
    for paragraph in (origin, HOW, f"Grid: {verdict(grid)}."):
        text += "\n" + wrapped(paragraph)
    text += "\n"
    for dtype in DTYPES:
        mine = [r for r in grid if r.case.dtype == dtype]
        if mine:
            text += f"## {dtype}\n\nSpeed-up over composition, forward and backward:\n\n{overview(record, dtype)}\n"
            text += f"{details(mine)}\n"
    if routes:
        text += f"## Other routes, float32, milliseconds\n\n{other_routes(routes)}\n"
    return text.rstrip("\n") + "\n"


def write(record: Record, folder: Path) -> None:
    """The tables beside results.json."""
    (folder / "tables.md").write_text(document(record))


def everywhere() -> list[Record]:
    """The records that the repository keeps, by the names of their folders."""
    return [Record.read(path.parent) for path in sorted(FOLDER.glob("*/results.json"))]


def main() -> None:
    Parser(prog="python -m bench.cpu.report", description=__doc__).parse_args()
    for path in sorted(FOLDER.glob("*/results.json")):
        record = Record.read(path.parent)
        write(record, path.parent)
        print(f"{record.processor}: {verdict(record.results)}")
    for path in DOCUMENTS:
        text = path.read_text()
        if not SIDE_BY_SIDE.search(text):
            raise SystemExit(f"bench: {path} has no table that begins with `{HEADING}`; write one where it belongs")
        path.write_text(SIDE_BY_SIDE.sub(lambda _: side_by_side(everywhere()), text))


if __name__ == "__main__":
    sys.exit(status("bench.cpu.report", main))
