"""Tables of what GPUs measured: `python -m bench.attn.gpu.report` writes each folder's tables.md again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.documents import lines, markdown_table, wrapped
from bench.machine import ROOT
from fork.arguments import Parser, status
from fork.errors import ForkError

FOLDERS = ROOT / "guide/bench"
HOW = (
    "Heads are (B, rows, H, D).transpose(1, 2), D = E, and their number is B * H. Times are medians in microseconds, "
    "and factors are composition's time over torch.attn's and over Triton's: on the device, by replays of a CUDA "
    "graph, and in rows of calls. Backward makes three gradients that are contiguous in (B, rows, H, D). SDPA keeps "
    "no attn. Where it says composed, torch.attn has no kernel."
)
TIMED = ("composition", "compiled", "SDPA", "Triton", "torch.attn")
SIZE = ("heads", "M", "N", "D")
KINDS = ("forward", "backward")
COLUMNS = ("by", *TIMED, "device", "Triton's", "in calls", "Triton's in calls")

Result = dict[str, Any]


def records() -> list[tuple[Path, Result]]:
    """The results of every GPU with their folders."""
    found = [(path.parent, json.loads(path.read_text())) for path in sorted(FOLDERS.glob("*/results.json"))]
    return [(folder, record) for folder, record in found if "device" in record]


def gain(result: Result, where: str, of: str = "torch.attn") -> str:
    """Composition's time over another's."""
    times = result[where]
    return f"{times['composition'] / times[of]:.2f}x" if {"composition", of} <= times.keys() else ""


def cells(result: Result) -> list[str]:
    times = [f"{result['device'][x]:.4g}" if x in result["device"] else "" for x in TIMED]
    gains = [gain(result, where, of) for where in ("device", "calls") for of in ("torch.attn", "Triton")]
    by = "kernels" if result["kernels"] else "composed"
    return [by, *times, *gains]


def size(result: Result) -> tuple[str, ...]:
    return tuple(str(result[name.lower()]) for name in SIZE)


def line(result: Result) -> str:
    """One result as a run prints it."""
    pairs = zip((*SIZE, *COLUMNS), (*size(result), *cells(result)), strict=True)
    return f"{result['dtype']} {result['kind']}: " + ", ".join(f"{name} {cell}" for name, cell in pairs if cell)


def document(record: Result) -> str:
    """tables.md of one GPU, forward and backward side by side."""
    text = f"# {record['device']}\n\ntorch {record['torch']}, commit {record['commit']}.\n\n{wrapped(HOW)}"
    for dtype in dict.fromkeys(r["dtype"] for r in record["results"]):
        rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for r in record["results"]:
            if r["dtype"] == dtype:
                rows.setdefault(size(r), {})[r["kind"]] = cells(r)
        none = [""] * len(COLUMNS)
        body = [[*sizes, *(cell for kind in KINDS for cell in found.get(kind, none))] for sizes, found in rows.items()]
        head = [*SIZE, *(f"{kind}: {name}" for kind in KINDS for name in COLUMNS)]
        text += f"\n## {dtype}\n\n{markdown_table(head, body)}"
    return text


def taken(folder: Path) -> Path:
    """Keeps what gpu.sh measured in a folder of the device."""
    file = folder / "results/results.json"
    if not file.is_file():
        raise ForkError(f"{file} is missing: `bash bench/attn/gpu.sh bench` makes it on a machine with a GPU")
    record = json.loads(file.read_text())
    place = FOLDERS / "-".join(re.findall(r"[a-z0-9]+", record["device"].lower())[:2])
    place.mkdir(exist_ok=True)
    (place / "results.json").write_text(lines(record))
    return place


def main() -> None:
    parser = Parser(prog="python -m bench.attn.gpu.report", description=__doc__)
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="first keep what gpu.sh left in this folder")
    options = parser.parse_args()
    if options.take:
        taken(options.take)
    for folder, record in records():
        (folder / "tables.md").write_text(document(record))


if __name__ == "__main__":
    sys.exit(status("bench.attn.gpu.report", main))
