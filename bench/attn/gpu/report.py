"""Tables of the GPUs' results: `python -m bench.attn.gpu.report` writes tables.md and the figures in AttnRule.h, and
`bench.report` the short table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.documents import wrapped
from bench.machine import ROOT
from fork.arguments import Parser, status
from fork.errors import ForkError

FOLDERS = ROOT / "guide/bench"
RULE = ROOT / "aten/src/ATen/native/cuda/AttnRule.h"
RULE_SIZES = (256, 512, 1000, 1024, 2048, 3000, 4096, 6000, 8192)
RULE_CASES = ((64, "forward"), (64, "backward"), (128, "forward"))
RULE_HEAD = "//      N   64: forward      backward   128: forward\n"
KINDS = ("forward", "backward")
SHORT = (4096, 8192, 16384, 32768)
HEADING = "bfloat16, speed-up"
HOW = (
    "`device` is the speed-up on the device, by replays of a CUDA graph, and `calls` that of calls in a row in Python: "
    "forward, backward, and both as a training step. Times are medians in microseconds, on the device or, of both, of "
    "calls. Where it says composed, the rule leaves the size to cuBLAS, and the last column has the kernels' speed-ups "
    "there, on the device and in calls, in a run with TORCH_ATTN_KERNELS=1."
)

Result = dict[str, Any]


def records() -> list[tuple[Path, dict[str, Any]]]:
    """The results of every GPU with their folders."""
    found = [(path.parent, json.loads(path.read_text())) for path in sorted(FOLDERS.glob("*/results.json"))]
    return [(folder, record) for folder, record in found if "device" in record]


def speedup(result: Result) -> float | None:
    """Over composition, on the device."""
    times = result["device"]
    return times["composition"] / times["torch.attn"] if "torch.attn" in times else None


def size_of(result: Result) -> str:
    """N, or BxN of a batch."""
    return f"{result['batch']}x{result['n']}" if "batch" in result else str(result["n"])


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def short(found: list[dict[str, Any]]) -> str:
    """Speed-ups in bfloat16 by N, on the device: GPU by GPU."""
    text = row([HEADING, *(f"N = {n}" for n in SHORT)]) + row(["---"] * (len(SHORT) + 1))
    for d, kind in RULE_CASES:
        cells = []
        for n in SHORT:
            these = [r for record in found for r in record["results"] if case(r) == ("bfloat16", str(n), str(d), kind)]
            cells.append(", ".join(factor(speedup(r)) for r in these))
        text += row([f"{kind}, D = E = {d}", *cells])
    return text


def document(record: dict[str, Any]) -> str:
    """tables.md of one GPU."""
    states = sorted({f"torch {r['torch']}, commit {r['commit']}" for r in record["results"]})
    text = f"# {record['device']}\n\n{'; '.join(states)}.\n\n{wrapped(HOW)}"
    names = ["N", "D = E", "kind", "by", "composition", "torch.attn", "compiled", "device", "calls", "kernels there"]
    for dtype in dict.fromkeys(r["dtype"] for r in record["results"]):
        text += f"\n## {dtype}\n\n" + row(names) + row(["---"] * len(names))
        for r in (r for r in record["results"] if r["dtype"] == dtype):
            times = r["device"] or r["calls"]
            shown = [f"{times[x]:.4g}" if x in times else "" for x in names[4:7]]
            forced = r.get("fused", {})
            there = " / ".join(factor(forced[x]) for x in ("device", "calls") if forced.get(x))
            by = "kernels" if r["kernels"] else "composed"
            cells = [size_of(r), str(r["d"]), r["kind"], by, *shown]
            text += row([*cells, factor(speedup(r)), factor(r["calls_speedup"]), there])
    return text


def kernels_speedups(result: Result) -> tuple[float, float]:
    """On the device and in calls: by the rule, or where it composes, in the run with kernels everywhere."""
    found = result.get("fused") or {"device": speedup(result), "calls": result["calls_speedup"]}
    return found["device"], found["calls"]


def rule(found: list[dict[str, Any]]) -> str:
    """The figures beside the rule: on the device / in calls in a row, the least of both dtypes on all GPUs."""
    results = [r for record in found for r in record["results"] if r["dtype"] in ("bfloat16", "float16")]
    text = RULE_HEAD
    for n in RULE_SIZES:
        text += f"// {n:6}"
        for d, kind in RULE_CASES:
            these = [r for r in results if case(r)[1:] == (str(n), str(d), kind)]
            device, calls = map(min, zip(*map(kernels_speedups, these)))
            text += f"   {device:.2f} / {calls:.2f}"
        text += "\n"
    return text


def with_rule(header: str, found: list[dict[str, Any]]) -> str:
    """AttnRule.h with the figures of these records in the place of its own."""
    return re.sub(re.escape(RULE_HEAD) + r"(//  .*\n)*", rule(found), header)


def taken(folder: Path) -> None:
    """Keeps what gpu.sh measured in a folder of the device, each composed size with the kernels' speed-ups there."""
    files = [folder / name / "results.json" for name in ("results", "everywhere")]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ForkError(f"{missing[0]} is missing: `bash bench/attn/gpu.sh bench` makes it on a machine with a GPU")
    record, forced = (json.loads(file.read_text()) for file in files)
    by_case = {case(r): r for r in forced["results"] if r["kernels"]}
    for result in record["results"]:
        if not result["kernels"] and (there := by_case.get(case(result))):
            result["fused"] = {"device": speedup(there), "calls": there["calls_speedup"]}
    place = FOLDERS / "-".join(re.findall(r"[a-z0-9]+", record["device"].lower())[:2])
    place.mkdir(exist_ok=True)
    (place / "results.json").write_text(json.dumps(record, indent=1) + "\n")


def case(result: Result) -> tuple[str, ...]:
    return result["dtype"], size_of(result), str(result["d"]), result["kind"]


def main() -> None:
    parser = Parser(prog="python -m bench.attn.gpu.report", description=__doc__)
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="first keep what gpu.sh left in this folder")
    options = parser.parse_args()
    if options.take:
        taken(options.take)
    found = records()
    for folder, record in found:
        (folder / "tables.md").write_text(document(record))
    RULE.write_text(with_rule(RULE.read_text(), [record for _, record in found]))


if __name__ == "__main__":
    sys.exit(status("bench.attn.gpu.report", main))
