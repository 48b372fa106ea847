"""`python -m bench.report`: fills documents from the figures that the repository keeps, tables and charts included.

A document shows the present kernels only.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.attn.cpu import charts, tables
from bench.attn.cpu.cases import Case
from bench.attn.cpu.kinds import CAST, KINDS
from bench.attn.cpu.record import FOLDER, Record, Result, kernels
from bench.attn.cpu.tables import HEAD, gained, milliseconds, provenance, table
from bench.attn.gpu import report as gpu
from bench.documents import fill, markdown_table, wrapped
from bench.machine import ROOT
from fork.arguments import Parser, status
from fork.refusals import Refusal
from fork.tree import Kind

PAGES = ("README.md", "guide/bench/README.md")
DOCUMENTS = (*(ROOT / page for page in PAGES), *sorted(ROOT.glob("stack/*/*.md")))
REFUSALS = ROOT / "guide/changed_sources.md"
BRANCH = ROOT / "guide/your_branch.md"
# The rows of the table in descriptions: layers, one query of a cache and one of groups, one contiguous matrix.
ROWS = (
    Case("heads", "", "float32", 197, batch=8, heads=12),
    Case("heads", "", "float32", 512, batch=2, heads=8),
    Case("heads", "", "bfloat16", 512, batch=2, heads=8),
    Case("heads", "", "float32", 1024, m=1, batch=4, heads=8),
    Case("heads", "", "float32", 1024, m=1, batch=4, heads=32, shared=8),
    Case("grid", "", "float32", 4096),
)
UNMEASURED = "No processor has been measured with the present kernels."


def speed(records: Sequence[Record]) -> str:
    """A few cases of each processor, forward and backward in a row: what composition and SDPA take, and the gain."""
    texts = []
    for record in records:
        found = [[record.find(dataclasses.replace(case, kind=kind)) for kind in KINDS[:2]] for case in ROWS]
        rows = [
            [case.dtype, " x ".join(map(str, case.shape)), case.layout, *(cell for r in both for cell in _short(r))]
            for case, both in zip(ROWS, found)
            if any(both)
        ]
        head = [f"{kind}: {name}" for kind in KINDS[:2] for name in ("composition, ms", "SDPA, ms", "speed-up")]
        origin = f"{record.conditions}, {provenance([r for both in found for r in both if r])}."
        texts.append(f"{table(('dtype', 'attn', 'layout', *head), rows)}\n" + wrapped(origin, "* ", "  "))
    return "\n".join(texts) or UNMEASURED


def _short(result: Result | None) -> list[str]:
    if result is None:
        return ["", "", ""]
    # Without instructions for 16 bits, casts around float32 are the fair rival.
    rival = min((name for name in (HEAD[0], CAST) if name in result.seconds), key=result.seconds.__getitem__)
    time = milliseconds(result.seconds.get(rival)) + f", {CAST}" * (rival == CAST)
    gain = gained(result.speedup(rival)) + ", composed" * (result.fused is False)
    return [time, milliseconds(result.seconds.get("SDPA")), gain]


def chart(records: Sequence[Record]) -> str:
    """A link to one processor's chart, for a document at the root."""
    if not records:
        return UNMEASURED
    place = f"guide/bench/{records[0].folder_name}/speedup.svg"
    return f"![Speed-up over composition against N, {records[0].processor}]({place})"


def index(records: Sequence[Record], gpus: Iterable[tuple[Path, Mapping[str, Any]]]) -> str:
    """One row for every folder of results: the processor, of which kernels it has figures, tables and a chart."""
    rows = []
    for record in records:
        folder, shown = record.folder_name, record.present().results
        kernels_of = "present" if shown == record.results else "present and earlier" if shown else "earlier"
        place = f"{record.threads} threads, {record.capability}"
        rows.append(
            [f"[{record.processor}]({folder}/tables.md)", place, kernels_of, f"[speed-up]({folder}/speedup.svg)"]
        )
    for path, kept in gpus:
        kernels_of = "present" if kept["kernels"] == kernels("cuda") else f"of {kept['commit']}"
        rows.append([f"[{kept['device']}]({path.name}/tables.md)", f"torch {kept['torch']}", kernels_of, ""])
    return markdown_table(("processor, and its tables", "measured with", "kernels", "chart"), rows)


def refusals(text: str) -> str:
    """The guide to changed sources with each reason for a refusal, and whether a plan tells it already."""
    planned = [*Refusal][: [*Refusal].index(Refusal.TOO_MANY) + 1]  # by the texts, before anything is compiled
    rows = [["plan" if one in planned else "build", _in_italics(str(one.value))] for one in Refusal]
    return fill(text, {"refusals": markdown_table(("told by", "reason"), rows)}, REFUSALS.name)


def kinds(text: str) -> str:
    """The guide to a branch with each kind of path that PyTorch's tree has, and what becomes of a change there."""
    rows = [[kind.what, kind.fate.value, kind.says] for kind in Kind]
    table = markdown_table(("you change", "it is", "how, or why"), rows)
    return fill(text, {"kinds": table}, BRANCH.name)


def _in_italics(sentence: str) -> str:
    """A reason with its blanks as words in italics, or of a command in capitals."""
    sentence = re.sub(r"(?<=--many )\{(\w+)\}", lambda blank: blank[1].upper(), sentence)
    return re.sub(r"`?\{(\w+)\}`?", r"*\1*", sentence)


def values() -> dict[str, str]:
    """What documents can show, by the names of the markers."""
    records = [shown for record in everywhere() if (shown := record.present()).results]
    # A document at the root shows one processor: AVX512 before AVX2, and that with most figures.
    records = sorted(records, key=lambda record: (record.capability, len(record.results)), reverse=True)[:1]
    return {
        "speed": speed(records),
        "chart": chart(records),
        "processors": index(everywhere(), gpu.records()),
    }


def everywhere() -> list[Record]:
    """The records that the repository keeps, by the names of their folders."""
    return [Record.read(folder) for folder in folders()]


def folders() -> list[Path]:
    """Where results of processors lie; those of GPUs are bench.attn.gpu's."""
    return [path.parent for path in sorted(FOLDER.glob("*/results.json")) if '"threads"' in path.read_text()]


def filled(document: Path, figures: Mapping[str, str]) -> str:
    """The document with the figures of its markers."""
    return fill(document.read_text(), figures, document.name, whole=True)


def rewrite() -> None:
    """Makes every document's tables and charts again."""
    for folder in folders():
        record = Record.read(folder)
        tables.write(record, folder)
        if record.present().results:
            charts.draw(record, folder)
        print(f"{record.processor}: {tables.verdicts(record)}")
    figures = values()
    # All of them are made before one is written.
    for document, text in [(document, filled(document, figures)) for document in DOCUMENTS]:
        document.write_text(text)
    REFUSALS.write_text(refusals(REFUSALS.read_text()))
    BRANCH.write_text(kinds(BRANCH.read_text()))


def main() -> None:
    Parser(prog="python -m bench.report", description=__doc__).parse_args()
    rewrite()


if __name__ == "__main__":
    sys.exit(status("bench.report", main))
