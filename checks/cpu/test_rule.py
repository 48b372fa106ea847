"""For which sizes the CPU kernels run: the rule of AttnKernel.h itself, for processors that need not be at hand."""

from __future__ import annotations

from unittest import mock

import pytest

from bench.cpu import rule
from bench.cpu.cases import Case as BenchCase
from bench.cpu.record import Record
from bench.cpu.rule import answers

BOTH = (0, 1)
FAST = (("AVX2", "float32"), ("AVX2", "float64"), ("AVX512", "float32"), ("AVX512", "float64"))
INTEL = ("MKL", "AMX")
SLOW = (
    *((p, "bfloat16") for p in ("X86", "AVX2")),
    *((p, "float16") for p in ("X86", "AVX2", "AVX512", "MKL")),
)
# Which cases run the kernels: N, D and E at both sides of every number of the rule, and what each is there for.
Size = tuple[str, str, int, int, int, int]
FUSED: list[Size] = [
    # ATen has no fast products of 16 bits without instructions for them.
    *((p, t, 2000, 1024, e, b) for p, t in SLOW for e in (1, 1024) for b in BOTH),
    *((p, t, 2000, 0, 2, 1) for p, t in SLOW),
    *((p, t, 1, 8, 8, b) for p, t in (*SLOW, ("AMX", "bfloat16")) for b in BOTH if p != "AMX" or not b),
    # In the cache and beyond; a forward without another pass over attn wins further than a backward.
    *((p, "float32", n, 128, 128, b) for p in ("AVX2", "AVX512") for n in (512, 4000) for b in BOTH),
    *((p, "float64", n, 64, 64, b) for p in ("AVX2", "AVX512") for n in (256, 2000) for b in BOTH),
    *(("AVX512", t, n, 256, 256, 0) for t in ("float32", "bfloat16") for n in (208, 2000)),
    *((p, t, 64, 112, 112, 0) for p, t in FAST if t == "float32"),
    *(("AVX512", t, 2000, 128, w, b) for t, w, b in (("float64", 128, 0), ("bfloat16", 128, 1))),
    # AVX2 backward: few rows, rows that share sets of the cache, tensors that are always new, and little padding
    *(("AVX2", "float32", n, 64, 64, 1) for n in (256, 512, 1024, 1536, 2897)),
    *(("AVX2", t, 1000, d, e, 1) for t in ("float32", "float64") for d, e in ((32, 32), (33, 16))),
    *(("AVX2", "float64", 1000, d, d, 1) for d in (64, 54)),
    # MKL's products and tanh on Intel
    *((p, t, 16, 64, 64, 0) for p in INTEL for t in ("float32", "float64")),
    *((p, "float32", n, w, w, 1) for p in INTEL for n, w in ((16, 32), (256, 32), (1024, 128), (4096, 128))),
    *((p, "float32", 256, 32, 0, 1) for p in INTEL),
    *((p, "float64", n, w, w, 1) for p in INTEL for n, w in ((512, 16), (2048, 64), (4096, 64))),
    *((p, "bfloat16", n, w, w, b) for p in INTEL for w, b in ((256, 0), (128, 1)) for n in (300, 2000)),
    *(("AMX", "float16", n, w, w, b) for n, w, b in ((256, 128, 0), (2000, 128, 0), (64, 64, 1), (256, 16, 1))),
    # Few rows and few columns
    *((p, t, 1, 4, 4, 0) for p, t in FAST),
    *((p, t, 1, 32, 32, 1) for p, t in FAST),
    *((p, t, 256, 64, 64, 1) for p, t in FAST),
    *((p, t, 300, 1, 1, 0) for p, t in FAST),
    *((p, t, 300, d, e, 1) for p, t in FAST for d, e in ((2, 2), (2, 0))),
    *(("AVX512", "bfloat16", 300, d, e, 1) for d, e in ((16, 16), (16, 0))),
]
COMPOSED: list[Size] = [
    *(("X86", t, n, 20, 20, b) for t in ("float32", "float64") for n in (200, 2000) for b in BOTH),
    *((p, "float32", 2000, 256 * f, 1, b) for p, f, b in (("AVX2", 1, 0), ("AVX512", 2, 0))),
    *((p, "float64", 2000, 128 * f, 1, b) for p, f, b in (("AVX2", 1, 0), ("AVX512", 2, 0))),
    *(("AVX2", "float32", n, 64, 64, 1) for n in (257, 1000, 1280, 2896)),
    *(("AVX2", t, 1000, d, e, 1) for t, d, e in (("float32", 33, 17), ("float64", 53, 54))),
    *((p, "float32", 4096, 129, 128, 1) for p in ("AVX2", "AVX512", *INTEL)),
    *((p, "float64", 4096, 65, 64, 1) for p in ("AVX2", "AVX512", *INTEL)),
    *((p, "bfloat16", 300, 256, w, b) for p in ("AVX512", *INTEL) for w, b in ((257, 0), (16, 1))),
    *((p, t, n, 4, 4, 0) for p in INTEL for t in ("float32", "float64") for n in (17, 2000)),
    *((p, "float32", n, w, w, 1) for p in INTEL for n, w in ((17, 8), (252, 32), (1020, 128))),
    *((p, "float32", 256, d, e, 1) for p in INTEL for d, e in ((33, 0), (33, 2))),
    *((p, "float64", n, w, w, 1) for p in INTEL for n, w in ((512, 17), (2032, 64))),
    *(("AMX", "float16", n, w, w, b) for n, w, b in ((257, 16, 1), (65, 64, 1), (2000, 129, 0))),
    # Few rows, of which wide copies cost more than products, and few columns
    *((p, t, n, 8 * n, 8 * n + 1, b) for p, t in (*SLOW, ("AMX", "float16")) for n in (4, 8) for b in BOTH),
    *((p, t, n, 4 * n, 4 * n + 1, 0) for p, t in FAST for n in (2, 8)),
    *((p, "float32", n, n, n + 97, 0) for p in ("AVX2", "AVX512") for n in (32, 64)),
    *((p, "float32", 16, 16, 113, 0) for p in INTEL),
    *((p, t, n, w, w + 1, 1) for p, t in FAST for n, w in ((16, 32), (128, 32), (200, 50))),
    *((p, t, 300, d, e, 1) for p, t in FAST for d, e in ((1, 20), (20, 1), (0, 20), (1, 0))),
    *(("AVX512", "bfloat16", 300, d, e, 1) for d, e in ((15, 20), (20, 15), (0, 20), (15, 0))),
    *((p, t, 300, d, e, 1) for p, t in SLOW for d, e in ((0, 1), (1, 0))),
    # A processor that nobody has measured
    *(("ARM", t, 300, 20, 20, b) for t in ("float32", "float64", "bfloat16", "float16") for b in BOTH),
]


# The most of these threads for which the bound on scratch leaves room, at sizes for which two run the kernels.
THREADS = (2, 3, 4, 8, 16, 32, 64, 128)
ROOM: dict[Size, int] = {
    **{(p, "float32", 1024, 64, 64, 1): 3 for p in ("AVX2", "AVX512", *INTEL)},
    **{(p, "float32", 4096, 128, 128, 1): 16 for p in ("AVX2", "AVX512", *INTEL)},
    ("AVX2", "float32", 256, 64, 64, 0): 128,
    ("AVX2", "float32", 4096, 128, 128, 0): 128,
    ("AVX2", "float64", 4096, 64, 64, 1): 32,
    ("AVX2", "float32", 1024, 16, 128, 1): 4,
    ("AMX", "bfloat16", 2048, 128, 128, 1): 2,
    ("AMX", "bfloat16", 2048, 16, 100, 1): 8,
    ("AMX", "bfloat16", 1024, 256, 256, 0): 16,
    # One thread does the work of eight.
    ("AVX2", "bfloat16", 1024, 64, 64, 1): 16,
    ("AVX512", "float16", 4096, 64, 64, 1): 128,
}


def test_the_rule_at_both_sides_of_its_numbers() -> None:
    cases = FUSED + COMPOSED
    said = answers([(*case, 2) for case in cases])
    assert dict(zip(cases, said, strict=True)) == {case: case in FUSED for case in cases}


def test_threads_that_the_bound_on_scratch_would_leave_idle_compose() -> None:
    asked = [(*size, threads) for size in ROOM for threads in THREADS]
    expected = [threads <= most for most in ROOM.values() for threads in THREADS]
    assert dict(zip(asked, answers(asked), strict=True)) == dict(zip(asked, expected, strict=True))


@pytest.mark.parametrize(
    ("kind", "processor", "capability", "asked"),
    [
        ("forward", "AMD EPYC", "AVX2", ("AVX2", "float32", 1000, 64, 32, 0, 2)),
        ("backward", "Intel Xeon (AVX512)", "AVX512", ("MKL", "float32", 1000, 64, 32, 1, 2)),
        ("backward", "Intel Xeon (AVX512, AMX)", "AVX512", ("AMX", "float32", 1000, 64, 32, 1, 2)),
        ("grad_v", "AMD EPYC", "AVX512", ("AVX512", "float32", 1000, 0, 32, 1, 2)),
        ("grad_q", "AMD EPYC", "DEFAULT", ("X86", "float32", 1000, 64, 32, 1, 2)),
    ],
)
def test_what_the_benchmark_asks(kind: str, processor: str, capability: str, asked: rule.Asked) -> None:
    with mock.patch.object(rule, "answers", return_value=[True]) as answered:
        assert rule.fused(Record(processor, 2, capability), [BenchCase("grid", kind, "float32", 1000, 64, 32)]) == [
            True
        ]
    answered.assert_called_once_with([asked])
