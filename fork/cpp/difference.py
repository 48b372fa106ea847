"""What differs between two lists of lines: by the lines that each has once, as patience diff does."""

from __future__ import annotations

import difflib
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
    """The lines that both ranges have exactly once, where they stand in both, as far as they keep their order."""
    counts = Counter(old[a:b]), Counter(new[c:d])
    once = {line for line, count in counts[0].items() if count == counts[1][line] == 1}
    ones, others = [n for n in range(a, b) if old[n] in once], [n for n in range(c, d) if new[n] in once]
    same = difflib.SequenceMatcher(None, [new[n] for n in others], [old[n] for n in ones], autojunk=False)
    return [(ones[j + k], others[i + k]) for i, j, size in same.get_matching_blocks() for k in range(size)]
