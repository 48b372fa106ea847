"""What differs between two lists of lines: by the lines that each has once, as patience diff does."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

Hunk = tuple[int, int, int, int]


def hunks(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """(a, b, c, d) for each place where old[a:b] became new[c:d]."""
    return _between(old, new, 0, len(old), 0, len(new))


def _between(old: Sequence[str], new: Sequence[str], a: int, b: int, c: int, d: int) -> list[Hunk]:
    while a < b and c < d and old[a] == new[c]:
        a, c = a + 1, c + 1
    while a < b and c < d and old[b - 1] == new[d - 1]:
        b, d = b - 1, d - 1
    if a == b or c == d:
        return [(a, b, c, d)] if a < b or c < d else []
    pairs = _common(old, new, a, b, c, d)
    if not pairs:
        codes = difflib.SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_opcodes()
        return [(a + i, a + j, c + k, c + m) for tag, i, j, k, m in codes if tag != "equal"]
    found: list[Hunk] = []
    for one, other in [*pairs, (b, d)]:
        found += _between(old, new, a, one, c, other)
        a, c = one, other
    return found


def _common(old: Sequence[str], new: Sequence[str], a: int, b: int, c: int, d: int) -> list[tuple[int, int]]:
    """The lines that both ranges have exactly once, as many as keep their order in both."""
    counts = Counter(old[a:b]), Counter(new[c:d])
    there = {line: n for n, line in enumerate(new[c:d], c) if counts[1][line] == 1}
    pairs = [(n, there[line]) for n, line in enumerate(old[a:b], a) if counts[0][line] == 1 and line in there]
    tails: list[int] = []
    best: list[tuple[int, int, int]] = []  # old, new, the pair before it in its chain
    ends: list[int] = []
    for one, other in pairs:
        k = bisect_left(tails, other)
        best.append((one, other, ends[k - 1] if k else -1))
        tails[k : k + 1] = [other]
        ends[k : k + 1] = [len(best) - 1]
    chain: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(best[at][:2])
        at = best[at][2]
    return chain[::-1]
