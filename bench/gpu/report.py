"""Tables of the GPUs' results: `python -m bench.gpu.report` writes tables.md and the figures in AttnRule.h, and
`bench.report` the short table."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.documents import wrapped
from fork.arguments import Parser, status

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ROOT / "guide/bench"
RULE = ROOT / "aten/src/ATen/native/cuda/AttnRule.h"
RULE_SIZES = (256, 512, 1000, 1024, 2048, 3000, 4096, 6000, 8192)
RULE_HEAD = "//      N   64: forward      backward   128: forward      backward\n"
KINDS = ("forward", "backward")
SHORT = (4096, 8192, 16384, 32768)
HEADING = "bfloat16, speed-up"
HOW = (
    "`device` is the speed-up on the device, by replays of a CUDA graph, and `calls` that of calls in a row in Python: "
    "forward, backward, and both as a training step. Times are medians in microseconds, on the device or, of both, of "
    "calls. Where it says composed, the operator leaves this size to cuBLAS now, and the kernels had these figures."
)
COMPOSED_CALLS = (
    "Over composition: what fewer calls of the dispatcher gain. The steps from N = 1024 on are left out, because the "
    "backward took eighths of the rows then."
)

Result = dict[str, Any]


def records() -> list[tuple[Path, dict[str, Any]]]:
    """The results of every GPU with their folders."""
    found = [(path.parent, json.loads(path.read_text())) for path in sorted(FOLDERS.glob("*/results.json"))]
    return [(folder, record) for folder, record in found if "device" in record]


def speedup(result: Result, other: str = "torch.attn") -> float | None:
    """Over composition, on the device."""
    times = result["device"]
    return times["composition"] / times[other] if other in times else None


def size_of(result: Result) -> str:
    """N, or BxN of a batch."""
    return f"{result['batch']}x{result['n']}" if "batch" in result else str(result["n"])


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def factor(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def short(record: dict[str, Any]) -> str:
    """Speed-ups in bfloat16 by N, on the device."""
    text = row([HEADING, *(f"N = {n}" for n in SHORT)]) + row(["---"] * (len(SHORT) + 1))
    found = {(r["d"], r["kind"], r["n"]): r for r in record["results"] if r["dtype"] == "bfloat16"}
    for d in (64, 128):
        for kind in KINDS:
            cells = []
            for n in SHORT:
                result = found.get((d, kind, n))
                cells.append("" if not result else factor(speedup(result)) if result["kernels"] else "composed")
            text += row([f"{kind}, D = E = {d}", *cells])
    return text


def document(record: dict[str, Any]) -> str:
    """tables.md of one GPU."""
    states = sorted({f"torch {r['torch']}, commit {r['commit']}" for r in record["results"]})
    origin = f"{'; '.join(states)}. {record['remark']}"
    text = f"# {record['device']}\n\n{wrapped(origin)}\n{wrapped(HOW)}"
    for dtype in sorted({r["dtype"] for r in record["results"]}):
        text += f"\n## {dtype}\n\n"
        names = ["N", "D = E", "kind", "by", "composition", "torch.attn", "device", "calls", "Triton prototype"]
        text += row(names) + row(["---"] * len(names))
        for r in record["results"]:
            if r["dtype"] != dtype:
                continue
            times = r["device"] or r["calls"]
            both = [f"{times[x]:g}" if x in times else "" for x in ("composition", "torch.attn")]
            by = {True: "kernels", False: "composed", None: ""}[r.get("kernels")]
            prototype = factor(speedup(r, "Triton prototype"))
            ratios = [factor(speedup(r)), factor(r["calls_speedup"]), prototype]
            text += row([size_of(r), str(r["d"]), r["kind"], by, *both, *ratios])
    if record.get("composed"):
        text += (
            "\n## The backward composed in place\n\nOn the device, over composition, which takes two N x N tensors.\n\n"
        )
        text += row(["dtype", "N", "D = E", "composition, us", "speed-up"]) + row(["---"] * 5)
        for r in record["composed"]:
            text += row([r["dtype"], str(r["n"]), str(r["d"]), f"{r['composition']:g}", factor(r["speedup"])])
    if record.get("composed_calls"):
        text += "\n## Composed in one operator, in calls in a row\n\n" + wrapped(COMPOSED_CALLS) + "\n"
        text += row(["dtype", "N", "D = E", "forward", "both"]) + row(["---"] * 5)
        for r in record["composed_calls"]:
            text += row([r["dtype"], str(r["n"]), str(r["d"]), factor(r["forward"]), factor(r["both"])])
    return text


def rule(record: dict[str, Any]) -> str:
    """The figures beside the rule: on the device / in calls in a row, the lesser of both dtypes."""
    text = RULE_HEAD
    for n in RULE_SIZES:
        text += f"// {n:6}"
        for d in (64, 128):
            for kind in KINDS:
                found = [r for r in record["results"] if (size_of(r), r["d"], r["kind"]) == (str(n), d, kind)]
                device = min(value for r in found if (value := speedup(r)) is not None)
                text += f"   {device:.2f} / {min(r['calls_speedup'] for r in found):.2f}"
        text += "\n"
    return text


def with_rule(header: str, record: dict[str, Any]) -> str:
    """AttnRule.h with the figures of a record in the place of its own."""
    return re.sub(re.escape(RULE_HEAD) + r"(//  .*\n)*", rule(record), header)


def main() -> None:
    Parser(prog="python -m bench.gpu.report", description=__doc__).parse_args()
    for folder, record in records():
        (folder / "tables.md").write_text(document(record))
        if folder.name == "nvidia-h100":
            RULE.write_text(with_rule(RULE.read_text(), record))


if __name__ == "__main__":
    sys.exit(status("bench.gpu.report", main))
