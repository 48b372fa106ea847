"""Charts of one processor's results, by Matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib import pyplot, ticker

from bench.attn.cpu.cases import DTYPES, Case
from bench.attn.cpu.record import Record, Result
from bench.attn.cpu.routes import KINDS

Value = Callable[[Result], float | None]
Points = list[tuple[int, float]]

# The same results give the same bytes, and text stays text.
matplotlib.use("Agg")
STYLE = {"svg.hashsalt": "attn", "svg.fonttype": "none", "axes.grid": True, "grid.color": "#eeeeee"}


def draw(record: Record, folder: Path) -> None:
    """speedup.svg for every dtype; roofline.svg and memory.svg for float32; all at D = E = 64."""
    square = [r for r in record.results if r.case == Case("grid", r.case.kind, r.case.dtype, r.case.n)]
    single = [r for r in square if r.case.dtype == "float32"]
    routes = ("torch.attn", "composition")
    speedups = {
        f"{dtype}, {kind}": _points(square, kind, lambda r: r.speedup() if r.case.dtype == dtype else None)  # noqa: B023
        for dtype in DTYPES
        for kind in KINDS[:2]
    }
    shares = {f"{name}, {kind}": _points(single, kind, _share_of(name)) for name in routes for kind in KINDS[:2]}
    peaks = {f"{name}, {kind}": _points(single, kind, _memory_of(name)) for name in routes for kind in KINDS[:2]}
    with matplotlib.rc_context(STYLE):
        _chart(folder / "speedup.svg", "Speed-up over composition, D = E = 64", "times", speedups, line=1.0)
        _chart(folder / "roofline.svg", "Share of the floor, float32, D = E = 64", "floor / time", shares, line=1.0)
        _chart(folder / "memory.svg", "Peak memory over the inputs, float32, D = E = 64", "MiB", peaks)


def _points(results: Iterable[Result], kind: str, value: Value) -> Points:
    """(N, value) of each result of a kind that has the value."""
    pairs = ((r.case.n, value(r)) for r in results if r.case.kind == kind)
    return sorted((n, y) for n, y in pairs if y is not None)


def _share_of(route: str) -> Value:
    return lambda r: r.floor / r.seconds[route] if r.floor else None


def _memory_of(route: str) -> Value:
    return lambda r: max(r.memory[route], 4096) / 2**20 if r.memory else None


def _chart(path: Path, title: str, label: str, lines: Mapping[str, Points], line: float | None = None) -> None:
    """Two lines of a colour for each pair of names, the second dashed, on logarithmic axes."""
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for i, (name, points) in enumerate(lines.items()):
        if points:
            axes.plot(*zip(*points), ("-", "--")[i % 2], color=f"C{i // 2}", marker="o", markersize=3, label=name)
    if line is not None:
        axes.axhline(line, color="#888888", linestyle=":")
    axes.set(title=title, xlabel="N", ylabel=label, xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(base=2, numticks=12))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(ticker.NullLocator())
    if any(lines.values()):
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
