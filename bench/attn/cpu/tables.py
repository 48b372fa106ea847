"""The tables of one processor's results, and in words where torch.attn is slower than what it replaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path

from bench.attn.cpu.cases import DTYPES, PARTS, Case
from bench.attn.cpu.kinds import GIVEN, KINDS, MASKS, SHARED
from bench.attn.cpu.record import PAGES, SLOWER, Record, Result
from bench.documents import markdown_table, wrapped

HOW = (
    "`python -m bench.attn.cpu` took these figures, and `python -m bench.report` made the tables from `results.json`. "
    "Times are medians in milliseconds, taken in turns. Composition is `torch.tanh(q @ k.mT)` and `@ v`. Generic is "
    "the operator of the first commit, composed in place, which `TORCH_ATTN_KERNELS=0` runs. SDPA is "
    "`F.scaled_dot_product_attention`, which makes the same products around a softmax and keeps no attn; "
    "torch.attn beside SDPA is timed in turns with it alone, without composition between two calls. Heads are "
    "`(B, N, H, D).transpose(1, 2)`; fewer of k and v are expanded to those of q, and their backward ends in gradients "
    "that are contiguous as (B, N, H, D). Rows with huge pages have PyTorch's switch for them, "
    "`THP_MEM_ALLOC_ENABLE=1`, in every column. The floor is the time of 2 N² (D + E) operations forward and "
    "4 N² (D + E) backward at the rate of a square product, plus that of one pass over N x N. Memory is the peak that "
    "a call adds, in units of attn: of composition, generic and torch.attn. Bold speed-ups are below "
    f"{SLOWER}. Where torch.attn runs no kernel it is composed, as generic is."
)
# The tables of a document: of which part, and which kinds stand side by side
TABLES = (
    ("Heads", "heads", KINDS[:2]),
    ("Contiguous matrices", "grid", KINDS[:2]),
    ("One gradient alone", "grid", MASKS),
    ("A gradient of attn", "grid", GIVEN),
    ("Batches", "batches", KINDS[:2]),
    ("Batches with one k and v, and with a gradient of attn", "batches", (SHARED, GIVEN[1])),
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
    runs = {r.case: bool(r.fused) for r in measured}
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
    if rivals := [(str(r.case), gain) for r in measured if r.case.heads and (gain := r.speedup("SDPA"))]:
        said.append(f"heads, slower than SDPA in {_below(rivals)}")
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


def cells(result: Result, pages: str) -> dict[str, str]:
    """What a row says of a result, by the names of columns, with or without the switch for huge pages."""
    found = {"": "" if pages or result.fused is not False else "composed"}
    found |= {name.removesuffix(PAGES): milliseconds(s) for name, s in result.seconds.items() if _is_of(name, pages)}
    for over in HEAD[:2]:
        found[f"over {over}"] = gained(result.speedup(over, pages))
    if not pages and result.floor and result.case.n >= 256:
        found["of the floor"] = f"{result.floor / result.seconds['torch.attn']:.0%}"
    if not pages and result.memory:
        found["memory"] = " / ".join(f"{result.memory[name] / result.case.bytes:.2f}" for name in HEAD[:3])
    return found


def _is_of(column: str, pages: str) -> bool:
    return column.endswith(PAGES) == bool(pages)


def gained(gain: float | None) -> str:
    if gain is None:
        return ""
    text = f"{gain:.{2 if gain < 1.2 else 1 if gain < 10 else 0}f}x"
    return f"**{text}**" if gain < SLOWER else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without columns that have no figure."""
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return markdown_table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def details(results: Iterable[Result], kinds: Sequence[str]) -> str:
    """A row for each size, with these kinds of work side by side; empty where nothing of these kinds was measured."""
    rows: dict[tuple[object, ...], dict[str, dict[str, str]]] = {}
    for r in sorted(results, key=lambda r: (DTYPES.index(r.case.dtype), *astuple(r.case)[3:])):
        case = r.case
        size = (case.dtype, " x ".join(map(str, case.shape)), case.layout, case.d, case.e, case.threads or "")
        for pages in ("", PAGES):
            if case.kind in kinds and "torch.attn" + pages in r.seconds:
                rows.setdefault((*size, "huge" if pages else ""), {})[case.kind] = cells(r, pages)
    names = list(dict.fromkeys(name for row in rows.values() for found in row.values() for name in found))
    names = [name for name in ("", *HEAD, *names) if name in names]
    columns = [(kind, name) for kind in kinds for name in dict.fromkeys(names)]
    head = ["dtype", "attn", "layout", "D", "E", "threads", "pages", *(f"{k}: {n}" if n else k for k, n in columns)]
    body = [[*map(str, size), *(row.get(k, {}).get(n, "") for k, n in columns)] for size, row in rows.items()]
    return table(head, body) if rows else ""


def other_routes(results: Sequence[Result]) -> str:
    """Milliseconds by every route."""
    names = list(dict.fromkeys(name for r in results for name in r.seconds))
    rows = []
    for r in sorted(results, key=lambda r: (r.case.dtype[::-1], r.case.kind, r.case.batch, r.case.n)):
        size = [r.case.dtype, r.case.kind, " x ".join(map(str, r.case.shape)), str(r.case.d), str(r.case.e)]
        rows.append([*size, *(milliseconds(r.seconds.get(name)) for name in names)])
    return table(["dtype", "kind", "attn", "D", "E", *names], rows)


def document(record: Record) -> str:
    """tables.md of one processor."""
    parts = {part: [r for r in record.results if r.case.part == part] for part in PARTS}
    text = f"# {record.processor}\n"
    origin = f"{record.conditions}, {provenance(record.results)}.{record.remark and ' '}{record.remark}"
    if record.present().results != record.results:
        origin += " These are figures of earlier kernels."
    for paragraph in (origin, HOW, f"All but other routes: {verdicts(record)}."):
        text += "\n" + wrapped(paragraph)
    for title, part, kinds in TABLES:
        if shown := details(parts[part], kinds):
            text += f"\n## {title}\n\n{shown}"
    if parts["routes"]:
        text += f"\n## Other routes, milliseconds\n\n{other_routes(parts['routes'])}"
    return text


def write(record: Record, folder: Path) -> None:
    """The tables beside results.json."""
    (folder / "tables.md").write_text(document(record))
