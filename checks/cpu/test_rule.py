"""For which sizes the CPU kernels run: the rule of AttnRule.h itself, for processors that need not be at hand."""

from __future__ import annotations

import itertools

from checks.cpu.rule import answers

BOTH = (0, 1)
PROCESSORS = ("AVX2", "AVX512", "AVX512_BF16", "AMX")
DTYPES = ("float32", "float64", "bfloat16", "float16")
# Processors whose products of a dtype are no faster than those of single numbers
SLOW = (
    *((p, "bfloat16") for p in ("X86", "AVX2", "AVX512")),
    *((p, "float16") for p in ("X86", "AVX2", "AVX512", "AVX512_BF16")),
)
FAST = tuple(pair for pair in itertools.product(PROCESSORS, DTYPES) if pair not in SLOW)
WIDEST = {"AVX2": 128}
# Matrices, M, N, D, E, strided operands, backward, threads: at both sides of every number of the rule
Sizes = tuple[int, int, int, int, int, int, int, int]


def check(pairs: tuple[tuple[str, str], ...], runs: list[Sizes], composed: list[Sizes]) -> None:
    cases = [(*pair, *sizes) for pair in pairs for sizes in runs + composed]
    expected = [sizes in runs for _ in pairs for sizes in runs + composed]
    assert dict(zip(cases, answers(cases), strict=True)) == dict(zip(cases, expected, strict=True))


def test_slow_products_of_16_bits_at_every_size() -> None:
    runs = [(1, 2000, n, 1024, 1024, 0, b, 2) for n in (1, 2000) for b in BOTH]
    check(SLOW, [*runs, (1, 2000, 2000, 0, 2, 0, 1, 2)], [(1, 300, 300, 0, 1, 0, 1, 2)])


def test_wide_operands() -> None:
    for pair in FAST:
        widest = WIDEST.get(pair[0], 256)
        runs = [(1, 300, 300, d, 512 - d, 0, 0, 2) for d in (16, 256)]
        runs += [(1, 300, 300, d, widest - d, 0, 1, 2) for d in (2, 64)]
        composed = [(1, 300, 300, 256, 257, s, 0, 2) for s in BOTH]
        composed += [(1, 300, 300, 64, widest - 63, s, 1, 2) for s in BOTH]
        check((pair,), runs, composed)


def test_few_keys_and_grad_v_alone() -> None:
    check(FAST, [(1, 300, 8, 32, 32, 0, 0, 2)], [(1, 300, 7, 32, 32, s, b, 2) for s in BOTH for b in BOTH])
    check(FAST, [(1, 300, 300, 2, 20, 0, 1, 2)], [(1, 300, 300, d, 20, 0, 1, 2) for d in (0, 1)])


def test_threads_share_keys_backward() -> None:
    """In parts of 64 or D, where there is work for them."""
    long = [(1, 4096, 127, 32, 32, s, 1, 2) for s in BOTH] + [(2, 4096, 127, 32, 32, 0, 1, 4)]
    long += [(1, 4096, 199, 100, 28, 0, 1, 2)]
    runs = [(1, 4096, 128, 32, 32, 0, 1, 2), (2, 4096, 127, 32, 32, 0, 1, 3), (1, 4096, 127, 32, 32, 0, 1, 1)]
    runs += [(1, 4096, 200, 100, 28, 0, 1, 2)]
    runs += [(1, 64, 64, 32, 32, 0, 1, 64), (1, 4096, 64, 32, 32, 0, 0, 64)]
    check(FAST, runs, long)


def test_narrow_matrices() -> None:
    """ATen's products of many are one call, unless strided operands would be copies first."""
    many = [(100, 300, 16, 16, 15, 0, b, 2) for b in BOTH]
    strided = [(*case[:5], 1, *case[6:]) for case in many]
    runs = [(100, 1, 300, 16, 16, 0, b, 2) for b in BOTH] + [(1, 300, 300, 16, 15, 0, 1, 2)]
    check(FAST, runs + strided, many)
    one = [(1, 300, 300, *columns, 0, 0, 2) for columns in ((1, 64), (64, 15))]
    mkl = (("AMX", "float32"),)
    check(mkl, [(*case[:5], 1, 0, 2) for case in one], one)
    check(tuple(pair for pair in FAST if pair not in mkl), one, [])


def test_other_processors() -> None:
    """Nobody measured them; without AVX2 the kernels of float32 and float64 are slow."""
    sizes = [(1, 300, 300, 20, 20, s, b, 2) for s in BOTH for b in BOTH]
    check(tuple(("ARM", dtype) for dtype in DTYPES) + (("X86", "float32"), ("X86", "float64")), [], sizes)
