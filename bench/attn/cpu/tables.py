"""The tables of one processor's results, and in words where torch.attn is slower than what it replaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.attn.cpu.cases import DTYPES, Case
from bench.attn.cpu.record import PAGES, SLOWER, Record, Result
from bench.attn.cpu.routes import GIVEN, KINDS, MASKS, SHARED
from bench.attn.cpu.rule import fused, present
from bench.documents import markdown_table, wrapped

HOW = (
    "`python -m bench.attn.cpu` took these figures, and `python -m bench.report` made the tables from `results.json`. "
    "Times are medians in milliseconds, taken in turns. Composition is `torch.tanh(q @ k.mT)` and `@ v`. Generic is "
    "the operator of the first commit, composed in place, which `TORCH_ATTN_KERNELS=0` runs. Rows with huge pages "
    "have PyTorch's switch for them, `THP_MEM_ALLOC_ENABLE=1`, in every column. The floor is the time of 2 N² (D + E) "
    "operations forward and 4 N² (D + E) backward at the rate of a square product, plus that of one pass over N x N. "
    f"Memory is the peak that a call adds, in units of N x N. Bold speed-ups are below {SLOWER}. Where torch.attn runs "
    "no kernel it is composed, as generic is."
)
HEAD = ("composition", "generic", "torch.attn", "over composition", "over generic")


def verdicts(record: Record, whole: Sequence[Case] = ()) -> str:
    """Where torch.attn is slower than composition, and where its kernels are slower than the generic operator.

    A case with huge pages counts as one more. Where no kernel runs, torch.attn is the generic operator's code in
    another process: how far these two are apart is the noise of the record. `whole` are the cases that there are.
    """
    measured = [r for r in record.results if r.case.part != "routes" and r.speedup()]
    if not measured:
        return "no case of the grid was measured"
    runs = dict(zip((r.case for r in measured), fused(record, [r.case for r in measured])))
    gains = {
        (over, kernels): [
            (f"{r.case}{pages}", gain)
            for r in measured
            if runs[r.case] == kernels
            for pages in ("", PAGES)
            if (gain := r.speedup(over, pages)) is not None
        ]
        for over in HEAD[:2]
        for kernels in (True, False)
    }
    counts = Counter(case.dtype for case in runs), Counter(case.dtype for case in whole)
    parts = [f"{dtype} {counts[0][dtype]} of {counts[1][dtype]}" for dtype in DTYPES if dtype in counts[1]]
    of = f" of {len(whole)} ({', '.join(parts)})" if len(measured) < len(whole) else ""
    said = [f"{len(measured)}{of} cases measured, the kernels run in {sum(runs.values())}"]
    for over in HEAD[:2]:
        said.append(f"with them, slower (below {SLOWER}) than {over} in {_below(gains[over, True])}")
    said.append(f"composed, slower than composition in {_below(gains[HEAD[0], False])}")
    if same := [gain for _, gain in gains[HEAD[1], False]]:
        apart = sum(not SLOWER <= gain <= 1 / SLOWER for gain in same)
        said.append(
            f"where no kernel runs, the same code in two processes differs by {min(same):.2f} to {max(same):.2f}, "
            f"in {apart} of {len(same)} pairs by more than {SLOWER} to {1 / SLOWER:.2f}"
        )
    return "; ".join(said)


def _below(gains: Sequence[tuple[str, float]]) -> str:
    slower = [f"{name} ({gain:.2f})" for name, gain in gains if gain < SLOWER]
    return f"{len(slower) or 'none'} of {len(gains)}{': ' * bool(slower)}{', '.join(slower)}"


def provenance(results: Iterable[Result]) -> str:
    """On which commits and releases of torch the results were taken."""
    states = Counter(f"torch {r.torch}, commit {r.commit}" for r in results)
    return "; ".join(state + f" ({count} cases)" * (len(states) > 1) for state, count in states.items())


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def columns(result: Result) -> list[list[str]]:
    """Pages, times and speed-ups; a second row with huge pages, where they were measured."""
    return [
        [
            "huge" if pages else "",
            *(milliseconds(result.seconds.get(name + pages)) for name in HEAD[:3]),
            *(gained(result.speedup(over, pages)) for over in HEAD[:2]),
        ]
        for pages in ("", PAGES)
        if "torch.attn" + pages in result.seconds
    ]


def _kind(result: Result) -> str:
    return result.case.kind + ", composed" * (result.fused is False)


def gained(gain: float | None) -> str:
    if gain is None:
        return ""
    text = f"{gain:.{2 if gain < 1.2 else 1 if gain < 10 else 0}f}x"
    return f"**{text}**" if gain < SLOWER else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without columns that have no figure."""
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return markdown_table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def details(results: Iterable[Result]) -> str:
    """Every result of the grid."""
    head = (
        "attn",
        "D",
        "E",
        "kind",
        "threads",
        "pages",
        *HEAD,
        "of the floor",
        *(f"memory: {name}" for name in HEAD[:3]),
    )
    rows = []
    kinds = (*KINDS, *MASKS, *GIVEN, SHARED)
    for r in sorted(
        results, key=lambda r: (r.case.threads, r.case.batch, r.case.n, r.case.d, r.case.e, kinds.index(r.case.kind))
    ):
        case = r.case
        memory = [f"{r.memory[name] / case.bytes:.2f}" if name in r.memory else "" for name in HEAD[:3]]
        share = f"{r.floor / r.seconds['torch.attn']:.0%}" if r.floor and case.n >= 256 else ""
        size = [" x ".join(map(str, case.shape)), str(case.d), str(case.e), _kind(r), str(case.threads or "")]
        for cells, more in zip(columns(r), ([share, *memory], [""] * 4)):
            rows.append([*size, *cells, *more])
    return table(head, rows)


def other_routes(results: Sequence[Result]) -> str:
    """Milliseconds by every route."""
    names = list(dict.fromkeys(name for r in results for name in r.seconds))
    rows = []
    for r in sorted(results, key=lambda r: (r.case.dtype[::-1], r.case.kind, r.case.batch, r.case.n)):
        size = [r.case.dtype, r.case.kind, " x ".join(map(str, r.case.shape)), str(r.case.d), str(r.case.e)]
        rows.append([*size, *(milliseconds(r.seconds.get(name)) for name in names)])
    return markdown_table(["dtype", "kind", "attn", "D", "E", *names], rows)


def document(record: Record) -> str:
    """tables.md of one processor."""
    measured = [r for r in record.results if r.case.part == "grid"]
    batches = [r for r in record.results if r.case.part == "batches"]
    routes = [r for r in record.results if r.case.part == "routes"]
    text = f"# {record.processor}\n"
    origin = f"{record.conditions}, {provenance(record.results)}.{record.remark and ' '}{record.remark}"
    if present(record).results != record.results:
        origin += " These are figures of earlier kernels."
    for paragraph in (origin, HOW, f"Grid: {verdicts(record)}."):
        text += "\n" + wrapped(paragraph)
    text += "\n"
    for dtype in DTYPES:
        mine = [r for r in measured if r.case.dtype == dtype]
        if mine:
            text += f"## {dtype}\n\n{details(mine)}\n"
    if batches:
        text += f"## Batches, milliseconds\n\n{other_routes(batches)}\n"
    if routes:
        text += f"## Other routes, milliseconds\n\n{other_routes(routes)}\n"
    return text.rstrip("\n") + "\n"


def write(record: Record, folder: Path) -> None:
    """The tables beside results.json."""
    (folder / "tables.md").write_text(document(record))
