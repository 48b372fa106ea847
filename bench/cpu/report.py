"""Tables of what results.json holds: `python -m bench.cpu.report` makes those of every processor again.

It also draws the charts, and fills what documents show of the figures: tables, and single ones in their sentences. A
document shows the present kernels only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.counts import FILE as COUNTS
from bench.counts import table as counts
from bench.cpu.cases import DTYPES, SIZES, WIDTHS, Case
from bench.cpu.record import FOLDER, SLOWER, Record, Result
from bench.cpu.routes import KINDS
from bench.documents import fill, markdown_table, wrapped
from bench.reference import flop
from fork.arguments import Parser, status

ROOT = FOLDER.parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted(ROOT.glob("stack/*/*.md")))
WITHOUT_PAGES = "without-huge-pages"
# dtype, N, and D = E of the rows of the table side by side.
ROWS = (
    *(("float32", n, 64) for n in (2, 16, 256, 1024, 2048, 4096, 8192)),
    ("float64", 4096, 64),
    *(("bfloat16", n, 64) for n in (1024, 2048, 4096)),
    ("float16", 4096, 64),
    *((dtype, 1024, d) for dtype in ("float32", "bfloat16") for d in (256, 1024)),
)
# The case of the README's first sentence of speed, which is measured in a minute.
HEADLINE = ("float32", 4096, 64)
UNMEASURED = "No processor has been measured with the present kernels: `make bench` does so."
HOW = (
    "`python -m bench.cpu` took these figures, and `python -m bench.cpu.report` made the tables from `results.json`. "
    "Times are medians of calls taken in turns. Operations: forward 2 N² (D + E), backward 4 N² (D + E). The floor is "
    "the time of these operations at the rate of a square product, plus that of one pass over N x N. Memory is the "
    f"peak that a call adds, in elements of N x N. Bold speed-ups are below {SLOWER}."
)


def verdict(results: Iterable[Result]) -> str:
    """Names every case of the grid in which torch.attn is slower than composition."""
    measured = [r for r in results if r.case.part == "grid"]
    slower = [
        f"{r.case.kind} {r.case.dtype} N={r.case.n} D={r.case.d} ({r.speedup:.2f})" for r in measured if r.is_slower
    ]
    return f"slower than composition (below {SLOWER}), of {len(measured)} cases: {', '.join(slower) or 'none'}"


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


def side_by_side(records: Sequence[Record], rows: Iterable[tuple[str, int, int]] = ROWS) -> str:
    """composition's time, torch.attn's time and the speed-up where some processor has them, and where they are from."""
    head = ["dtype", "N", "D = E", *(f"{r.processor} {k}" if k == "forward" else k for r in records for k in KINDS[:2])]
    lines = []
    shown: list[list[Result]] = [[] for _ in records]
    for dtype, n, d in rows:
        cells = []
        for record, used in zip(records, shown):
            for kind in KINDS[:2]:
                result = record.find(Case("grid", kind, dtype, n, d, d))
                used += [result] if result else []
                cells.append(_times(result) if result else "")
        if any(cells):
            lines.append([dtype, str(n), str(d), *cells])
    notes = [
        wrapped(f"{record.conditions}, {provenance(used)}.{record.remark and ' '}{record.remark}", "* ", "  ")
        for record, used in zip(records, shown)
    ]
    return f"{markdown_table(head, lines)}\n{''.join(notes)}"


def headline(records: Sequence[Record]) -> str:
    """One sentence that a reader can check by the command in it."""
    dtype, n, d = HEADLINE
    found = []
    for record in records:
        both = [record.find(Case("grid", kind, dtype, n, d, d)) for kind in KINDS[:2]]
        gains = [f"{_speedup(result).strip('*x')}" for result in both if result]
        if len(gains) == 2:
            found.append(f"{gains[0]} and {gains[1]} times as fast on {record.processor}")
    if not found:
        return UNMEASURED
    command = f"make bench ARGS='--dtype {dtype} --n {n} --d {d} --out build/bench'"
    return (
        f"With {dtype}, N = {n} and D = E = {d}, forward and backward are {', and '.join(found)} as composition: "
        f"`{command}` measures it on yours."
    )


def memory(records: Sequence[Record], n: int = 8192) -> str:
    """The peaks of the largest size in the grid."""
    found = []
    for record in records:
        both = [record.find(Case("grid", kind, "float32", n, 64, 64)) for kind in KINDS[:2]]
        peaks = [[f"{r.memory[x] / r.case.bytes:.2f}" for r in both if r] for x in ("torch.attn", "composition")]
        if all(both):
            found.append(f"{' and '.join(peaks[0])} (composition {' and '.join(peaks[1])}) on {record.processor}")
    sentence = (
        f"Peak memory over the inputs in float32 at N = {n}, D = E = 64, forward and backward, in units of attn: "
    )
    return f"{sentence}{'; '.join(found)}." if found else UNMEASURED


def pages(pairs: Sequence[tuple[Record, Record]]) -> str:
    """Forward with and without huge pages, in milliseconds, on each processor where both were measured."""
    rows = []
    for record, without in pairs:
        for dtype in ("float32", "bfloat16"):
            for n in (2048, 4096, 8192):
                case = Case("grid", "forward", dtype, n)
                plain, refused = record.find(case), without.find(case)
                if plain and refused:
                    times = [
                        milliseconds(r.seconds[x]) for x in ("torch.attn", "composition") for r in (refused, plain)
                    ]
                    rows.append([record.processor, dtype, str(n), *times])
    head = ("processor", "dtype", "N", "torch.attn without", "with", "composition without", "with")
    return markdown_table(head, rows) if rows else UNMEASURED + "\n"


def slower(records: Sequence[Record]) -> str:
    """The verdict on every processor."""
    said = [wrapped(f"{record.processor}: {verdict(record.results)}.", "* ", "  ") for record in records]
    return "".join(said) or UNMEASURED + "\n"


def charts_of(records: Sequence[Record]) -> str:
    """Links to the charts of every processor."""
    titles = {"speedup": "Speed-up over composition", "roofline": "Share of the floor", "memory": "Peak memory"}
    return (
        "\n".join(
            f"![{title} against N, {record.processor}](guide/bench/{record.folder_name}/{name}.svg)"
            for record in records
            for name, title in titles.items()
        )
        or UNMEASURED
    )


def values() -> dict[str, str]:
    """What documents can show, by the names of the markers."""
    every = [(record, record.present()) for record in everywhere()]
    records = [present for _, present in every if present.results]
    pairs = [
        (present, Record.read(folder).present())
        for record, present in every
        if (folder := FOLDER / record.folder_name / WITHOUT_PAGES).is_dir()
    ]
    from bench.gpu import report as gpus

    return {
        "gpu": gpus.short(gpus.records()[0][1]),
        "headline": headline(records),
        "speed": side_by_side(records) if records else UNMEASURED,
        "slower": slower(records),
        "memory": memory(records),
        "huge-pages": pages(pairs),
        "charts": charts_of(records),
        "check": counts() if COUNTS.is_file() else "Nothing was counted: `python -m bench.counts` does so.",
    }


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
    return markdown_table(head, rows)


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
    return markdown_table((*head, "memory, N²: composition", "torch.attn", "commit"), rows)


def other_routes(results: Sequence[Result]) -> str:
    """Milliseconds by every route, in float32."""
    names = list(dict.fromkeys(name for r in results for name in r.seconds))
    rows = []
    for r in sorted(results, key=lambda r: (KINDS.index(r.case.kind), r.case.n, r.case.d, r.case.e)):
        size = [r.case.kind, str(r.case.n), str(r.case.d), str(r.case.e)]
        rows.append([*size, *(milliseconds(r.seconds.get(name)) for name in names)])
    return markdown_table(["kind", "N", "D", "E", *names], rows)


def document(record: Record) -> str:
    """tables.md of one processor."""
    grid = [r for r in record.results if r.case.part == "grid"]
    routes = [r for r in record.results if r.case.part == "routes"]
    text = f"# {record.processor}\n"
    origin = f"{record.conditions}, {provenance(record.results)}.{record.remark and ' '}{record.remark}"
    if any(r not in record.present().results for r in record.results):
        origin += " Of these, the ones of other kernels than the present ones are history: those of the commits "
        origin += (
            f"{', '.join(sorted({r.commit for r in record.results} - {r.commit for r in record.present().results}))}."
        )
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
    return [Record.read(folder) for folder in folders()]


def folders() -> list[Path]:
    """Where results of processors lie; those of GPUs are bench.gpu's."""
    return [path.parent for path in sorted(FOLDER.glob("*/results.json")) if '"threads"' in path.read_text()]


def filled(document: Path, figures: Mapping[str, str]) -> str:
    """The document with the figures of its markers."""
    return fill(document.read_text(), figures, document.name, whole=True)


def main() -> None:
    Parser(prog="python -m bench.cpu.report", description=__doc__).parse_args()
    from bench.cpu import charts

    for folder in folders():
        record = Record.read(folder)
        write(record, folder)
        charts.draw(record, folder)
        print(f"{record.processor}: {verdict(record.results)}")
    figures = values()
    # All of them are made before one is written.
    for document, text in [(document, filled(document, figures)) for document in DOCUMENTS]:
        document.write_text(text)


if __name__ == "__main__":
    sys.exit(status("bench.cpu.report", main))
