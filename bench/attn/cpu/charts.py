"""The chart of one processor's results, by Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib import pyplot, ticker

from bench.attn.cpu.cases import DTYPES, Case
from bench.attn.cpu.kinds import KINDS
from bench.attn.cpu.record import Record

Points = list[tuple[int, float]]

# The same results give the same bytes, and text stays text.
matplotlib.use("Agg")
STYLE = {"svg.hashsalt": "attn", "svg.fonttype": "none", "axes.grid": True, "grid.color": "#eeeeee"}


def draw(record: Record, folder: Path) -> None:
    """speedup.svg: contiguous matrices at D = E = 64, forward and backward of every dtype."""
    lines = {}
    for dtype in DTYPES:
        for kind in KINDS[:2]:
            found = (r for r in record.results if r.case == Case("grid", kind, dtype, r.case.n))
            lines[f"{dtype}, {kind}"] = sorted((r.case.n, gain) for r in found if (gain := r.speedup()))
    with matplotlib.rc_context(STYLE):
        _chart(folder / "speedup.svg", "Speed-up over composition, D = E = 64", lines)


def _chart(path: Path, title: str, lines: Mapping[str, Points]) -> None:
    """Two lines of a colour for each pair of names, the second dashed, on logarithmic axes."""
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for i, (name, points) in enumerate(lines.items()):
        if points:
            axes.plot(*zip(*points), ("-", "--")[i % 2], color=f"C{i // 2}", label=name)
    axes.axhline(1.0, color="#888888", linestyle=":")
    axes.set(title=title, xlabel="N", ylabel="times", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(base=2, numticks=12))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())
    if any(lines.values()):
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
