"""Makes a failing case simpler, as long as it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from checks.fuzz.case import BLOCKS, DTYPES, INCOMING, KINDS, Case

SECONDS = 20.0
SIZES = sorted({0, 1, 2, 3, *(block + off for block in BLOCKS for off in (-1, 0, 1))})


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The simplest case found that still fails."""
    end = time.monotonic() + SECONDS
    simpler = True
    while simpler and time.monotonic() < end:
        simpler = False
        for field in fields(Case):
            for value in _simpler(case, field.name):
                changed: dict[str, Any] = {field.name: value}
                one = replace(case, **changed)
                if fails(one):
                    case, simpler = one, True
                    break
    return case


def _simpler(case: Case, field: str) -> Iterator[Any]:
    """Values of a field that are simpler than the case's, the simplest first."""
    value = getattr(case, field)
    default = getattr(Case(0, 0, 0), field)
    if field in ("n", "d", "e"):
        yield from (size for size in SIZES if size < value)
        yield from (size for size in (value // 2, value - 8, value - 1) if size >= 0)
    elif field in ("layouts", "values"):
        yield from (value[:i] + (default[i],) + value[i + 1 :] for i in range(5) if value[i] != default[i])
    elif field in ("dtype", "kind", "incoming"):
        order: tuple[object, ...] = {"dtype": DTYPES, "kind": KINDS, "incoming": INCOMING}[field]
        yield from order[: order.index(value)]
    elif field == "threads":
        yield from (count for count in (1, 2, 4, 8, 16) if count < value)
    elif value != default:
        yield default
