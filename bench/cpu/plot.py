"""Line charts as SVG text, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#7d3c98", "#b9770e", "#566573")
Series = Mapping[str, Sequence[tuple[float, float]]]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 170, 40, 48


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two from low to high."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    step = max(1, (last - first) // 8)
    return [2.0**p for p in range(first, last + 1, step)]


def chart(title: str, x_label: str, y_label: str, series: Series, line: float | None = None) -> str:
    """Points (x, y) of each series on logarithmic axes; `line` marks one y. All values are positive."""
    points = [p for s in series.values() for p in s]
    xs = _ticks(min(x for x, _ in points), max(x for x, _ in points))
    marked = [y for _, y in points] + ([line] if line is not None else [])
    ys = _ticks(min(marked), max(marked))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - math.log2(xs[0])) / max(1e-9, math.log2(xs[-1]) - math.log2(xs[0]))
        up = (math.log2(y) - math.log2(ys[0])) / max(1e-9, math.log2(ys[-1]) - math.log2(ys[0]))
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{x_label}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{y_label}</text>',
    ]
    for x in xs:
        at, _ = place(x, ys[0])
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for y in ys:
        _, at = place(xs[0], y)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    if line is not None:
        _, at = place(xs[0], line)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#888" stroke-dasharray="5 4"/>')
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        places = [place(x, y) for x, y in sorted(values)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 14 + 18 * i}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
