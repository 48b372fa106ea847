"""For which sizes the CPU kernels run: the rule of AttnRule.h itself, for processors that need not be at hand."""

from __future__ import annotations

import pytest

from checks.cpu.rule import Asked, answers

BOTH = (0, 1)
FAST = (("AVX2", "float32"), ("AVX2", "float64"), ("AVX512", "float32"), ("AVX512", "float64"))
INTEL = ("MKL", "AMX")
SLOW = (
    *((p, "bfloat16") for p in ("X86", "AVX2")),
    *((p, "float16") for p in ("X86", "AVX2", "AVX512", "MKL")),
)
# Which cases run the kernels: M, N, D and E at both sides of every number of the rule, and what each is there for.
Size = tuple[str, str, int, int, int, int, int]


def square(processor: str, dtype: str, n: int, d: int, e: int, backward: int) -> Size:
    return processor, dtype, n, n, d, e, backward


FUSED: list[Size] = [
    # ATen has no fast products of 16 bits without instructions for them.
    *(square(p, t, 2000, 1024, e, b) for p, t in SLOW for e in (1, 1024) for b in BOTH),
    *(square(p, t, 2000, 0, 2, 1) for p, t in SLOW),
    *(square(p, t, 1, 8, 8, b) for p, t in SLOW for b in BOTH),
    # A forward without another pass over attn wins further than a backward.
    *(square(p, "float32", n, 256, 256, 0) for p in ("AVX2", "AVX512") for n in (208, 4000)),
    *(square(p, "float64", n, 128, 128, 0) for p in ("AVX2", "AVX512") for n in (256, 2000)),
    *(square("AVX512", t, 2000, 256, 256, 0) for t in ("float32", "bfloat16")),
    *(square("AVX512", t, 2000, w, w, 1) for t, w in (("float32", 128), ("float64", 64), ("bfloat16", 128))),
    # AVX2 backward: narrow, or of few rows
    *(square("AVX2", t, 4000, 64, 64, 1) for t in ("float32", "float64")),
    square("AVX2", "float32", 512, 128, 128, 1),
    # MKL's products and tanh on Intel
    *(square(p, "float32", n, w, w, 1) for p in INTEL for n, w in ((256, 32), (1024, 128), (4096, 128))),
    *(square(p, "float32", 256, 32, 0, 1) for p in INTEL),
    *(square(p, "float64", n, w, w, 1) for p in INTEL for n, w in ((512, 16), (2048, 64), (4096, 64))),
    *(square(p, "bfloat16", n, w, w, b) for p in INTEL for w, b in ((256, 0), (128, 1)) for n in (300, 2000)),
    *(square("AMX", "float16", n, w, w, b) for n, w, b in ((256, 128, 0), (2000, 128, 0), (64, 64, 1), (256, 16, 1))),
    # Few rows and few columns
    *(square(p, t, 16, 64, 64, 0) for p, t in FAST),
    *((p, t, m, n, 40, 24, 0) for p, t in FAST for m, n in ((16, 4096), (4096, 16))),
    *(square(p, t, n, 16, n * 2 - 16, 1) for p, t in FAST for n in (32, 64)),
    *((p, t, m, n, 40, 24, 1) for p, t in FAST for m, n in ((32, 4096), (4096, 32))),
    *(square(p, t, 300, 1, 1, 0) for p, t in FAST),
    *(square(p, t, 300, d, e, 1) for p, t in FAST for d, e in ((2, 2), (2, 0))),
    *(square("AVX512", "bfloat16", 300, d, e, 1) for d, e in ((16, 16), (16, 0))),
    # 16 bits: few rows of many columns, and backward few of either beside many
    *(square(p, "bfloat16", n, 4 * n, 4 * n, 0) for p in ("AVX512", *INTEL) for n in (4, 16)),
    *((p, "bfloat16", m, n, d, d, 1) for p in ("AVX512", *INTEL) for m, n, d in ((64, 128, 64), (4096, 64, 32))),
]
COMPOSED: list[Size] = [
    *(square("X86", t, n, 20, 20, b) for t in ("float32", "float64") for n in (200, 2000) for b in BOTH),
    *(square(p, "float32", 2000, 512, 1, 0) for p in ("AVX2", "AVX512")),
    *(square(p, "float64", 2000, 256, 1, 0) for p in ("AVX2", "AVX512")),
    square("AVX2", "float32", 513, 65, 64, 1),
    square("AVX2", "float32", 512, 129, 128, 1),
    square("AVX2", "float64", 512, 65, 64, 1),
    *(square(p, "float32", 4096, 129, 128, 1) for p in ("AVX2", "AVX512", *INTEL)),
    *(square(p, "float64", 4096, 65, 64, 1) for p in ("AVX2", "AVX512", *INTEL)),
    *(square(p, "bfloat16", 300, 256, w, b) for p in ("AVX512", *INTEL) for w, b in ((257, 0), (16, 1))),
    *(square(p, t, n, 4, 4, 0) for p in INTEL for t in ("float32", "float64") for n in (17, 2000)),
    *(square(p, "float32", n, w, w, 1) for p in INTEL for n, w in ((40, 8), (252, 32), (1020, 128))),
    *(square(p, "float32", 256, d, e, 1) for p in INTEL for d, e in ((33, 0), (33, 2))),
    *(square(p, "float64", n, w, w, 1) for p in INTEL for n, w in ((512, 17), (2032, 64))),
    *(square("AMX", "float16", n, w, w, b) for n, w, b in ((257, 16, 1), (65, 64, 1), (2000, 129, 0))),
    # Few rows, of which wide copies cost more than products, and few columns
    *(square(p, t, n, 8 * n, 8 * n + 1, b) for p, t in (*SLOW, ("AMX", "float16")) for n in (4, 8) for b in BOTH),
    *((p, t, m, n, 4, 4, 0) for p, t in FAST for m, n in ((15, 15), (1, 4096), (15, 4096), (4096, 15))),
    *((p, t, m, n, 4, 4, 1) for p, t in FAST for m, n in ((31, 31), (31, 4096), (4096, 31))),
    *(square(p, t, 16, 64, 65, 0) for p, t in FAST),
    *(square(p, "float32", n, n, n + 97, 0) for p in ("AVX2", "AVX512") for n in (32, 64)),
    *(square(p, t, n, n, n + 1, 1) for p, t in FAST for n in (32, 40)),
    *(square(p, t, 300, d, e, 1) for p, t in FAST for d, e in ((1, 20), (20, 1), (0, 20), (1, 0))),
    *(square("AVX512", "bfloat16", 300, d, e, 1) for d, e in ((15, 20), (20, 15), (0, 20), (15, 0))),
    *(square(p, t, 300, d, e, 1) for p, t in SLOW for d, e in ((0, 1), (1, 0))),
    *(square(p, "bfloat16", n, 4 * n, 4 * n + 1, 0) for p in ("AVX512", *INTEL) for n in (4, 16)),
    *((p, "bfloat16", m, n, 32, e, 1) for p in ("AVX512", *INTEL) for m, n, e in ((64, 129, 33), (4096, 64, 33))),
    # A processor that nobody has measured
    *(square("ARM", t, 300, 20, 20, b) for t in ("float32", "float64", "bfloat16", "float16") for b in BOTH),
]


def test_the_rule_at_both_sides_of_its_numbers() -> None:
    cases = FUSED + COMPOSED
    said = answers([(*case[:2], 1, *case[2:], 1) for case in cases])
    assert dict(zip(cases, said, strict=True)) == {case: case in FUSED for case in cases}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_threads_do_not_share_one_long_matrix(dtype: str) -> None:
    long = [(31, 1024, 0), (1024, 31, 0), (64, 520, 1), (520, 64, 1)]
    less = [(31, 992, 0), (32, 4096, 0), (64, 512, 1)]
    for cases, threads, runs in ((long, 2, False), (long, 1, True), (less, 2, True)):
        asked: list[Asked] = [("AVX512", dtype, 1, m, n, 16, 16, backward, threads) for m, n, backward in cases]
        assert answers(asked) == [runs] * len(cases)


# Dtype, matrices, M, N, D = E and whether it is the backward, at both sides of every number
Batch = tuple[str, int, int, int, int, int]
IN_BATCHES: list[Batch] = [
    *((t, 1000, 32, 32, 16, 0) for t in ("float32", "float64")),
    *((t, 1000, m, n, 16, 1) for t in ("float32", "float64") for m, n in ((64, 64), (32, 128))),
    *(("bfloat16", 1000, m, n, d, 0) for m, n, d in ((46, 46, 46), (16, 4096, 32), (64, 64, 64))),
    ("bfloat16", 1000, 512, 512, 64, 1),
    # So few that the call counts
    ("float32", 8, 16, 16, 32, 0),
    *(("bfloat16", 64, 16, 16, 32, b) for b in BOTH),
    # One matrix is no batch, however large it is.
    ("bfloat16", 1, 300, 300, 64, 1),
]
COMPOSED_IN_BATCHES: list[Batch] = [
    *((t, 1000, 31, 33, 16, 0) for t in ("float32", "float64")),
    *((t, 1000, 63, 65, 16, 1) for t in ("float32", "float64")),
    *(("bfloat16", 1000, m, n, d, 0) for m, n, d in ((45, 45, 32), (64, 64, 65), (16, 16, 16))),
    *(("bfloat16", 1000, m, n, 32, 1) for m, n in ((511, 513), (128, 128), (16, 16))),
    ("float32", 17, 16, 16, 16, 0),
    *(("bfloat16", 129, 16, 16, 16, b) for b in BOTH),
]


def test_small_matrices_in_batches() -> None:
    cases = IN_BATCHES + COMPOSED_IN_BATCHES
    asked: list[Asked] = [("AVX512", t, b, m, n, d, d, backward, 2) for t, b, m, n, d, backward in cases]
    assert dict(zip(cases, answers(asked), strict=True)) == {case: case in IN_BATCHES for case in cases}


def test_small_matrices_in_batches_of_other_processors() -> None:
    kinds = (*FAST[:2], *((p, "bfloat16") for p in INTEL))
    sizes = ((45, 0), (46, 0), (127, 1), (128, 1))
    asked: list[Asked] = [(*kind, 96, n, n, 16, 16, backward, 2) for kind in kinds for n, backward in sizes]
    assert answers(asked) == [False, True, False, True] * len(kinds)
    assert all(answers([(*kind, 2048, 16, 16, 64, 64, backward, 2) for kind in SLOW for backward in BOTH]))
