"""The processors and settings on which `make processors` runs the numerics of PR 4, and the tests that run there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

# Under qemu MKL takes the path of the processor that qemu names, which is what MKL says of it. qemu has no AVX-512.
EMULATED = {"EPYC-Milan": "MKL any processor", "Haswell": "MKL AVX2"}
ISA = "ONEDNN_MAX_CPU_ISA"
EXPLICIT, KERNELS = "test/test_attn_explicit.py", "test/test_attn_kernels.py"
# The tests of each file by patterns of `Class.test_name`: those of the first pattern run first, and those of the last
# one are left out first when the time is up.
Tests = Mapping[str, tuple[str, ...]]
# What was red on processors that nobody had: complex derivatives in modes and subclasses. The rule of errors was too;
# its test takes longer than `make test-all` has, and asks no library any more.
FOUND: Tests = {
    EXPLICIT: (
        r"\.test_derivatives_are_those_outside_(first|second)_order\w*_complex128",
        r"\.test_derivatives_are_those_outside\w*_complex128",
        r"\.test_derivatives_are_those_outside\w*_complex64",
    ),
}
NUMERICS: Tests = {
    EXPLICIT: (*FOUND[EXPLICIT], r"^TestContexts", r"^Test(Gradients|Transforms)\b"),
    KERNELS: (
        r"\.test_errors\w*_float(32|64)",
        r"\.test_(saturation|denormals|infinity|strides)",
        r"\.test_(errors|long_sums|deterministic|many_threads)",
        r"\.test_(?!tanh)",
        r"\.test_",  # No library takes part in the rest.
    ),
}
# The first takes gigabytes, and the others start Python again, which qemu would not emulate.
NEVER = r"\.test_(more_than_int32|onednn_(switched_off|without))"


@dataclass(frozen=True)
class Row:
    """One processor or setting; `seconds` are those that the tests of each file may take.

    `reaches` is what torch, MKL or oneDNN must say of it: a setting that they ignore shows nothing.
    """

    name: str
    reaches: str
    variables: Mapping[str, str] = field(default_factory=dict)
    emulated: str = ""  # a processor of qemu
    tests: Tests = field(default_factory=lambda: NUMERICS)
    seconds: int = 110


def rows() -> list[Row]:
    """All of `make processors`: two at a time they take less than an hour."""
    native = (
        ("ATEN_CPU_CAPABILITY", "default", "ATen DEFAULT"),
        ("ATEN_CPU_CAPABILITY", "avx2", "ATen AVX2"),
        *(("OMP_NUM_THREADS", value, f"{value} threads") for value in ("1", "5")),
        (ISA, "SSE41", "oneDNN Intel SSE4.1"),
        (ISA, "AVX2", "oneDNN Intel AVX2"),
        # MKL heeds these on Intel's processors alone.
        *(("MKL_ENABLE_INSTRUCTIONS", value, "MKL") for value in ("SSE4_2", "AVX2")),
    )
    levels = ("AVX512_CORE", "AVX512_CORE_BF16") if torch.backends.cpu.get_cpu_capability() == "AVX512" else ()
    return [
        *(replace(emulated(name), seconds=320) for name in EMULATED),
        *(
            Row(f"{ISA}={level}", "oneDNN Intel AVX-512", {ISA: level}, tests={KERNELS: NUMERICS[KERNELS]})
            for level in levels
        ),
        *(Row(f"{name}={value}", reaches, {name: value}) for name, value, reaches in native),
    ]


def quick() -> list[Row]:
    """The part that `make test-all` runs."""
    return [replace(emulated("EPYC-Milan"), tests=FOUND, seconds=150)]


def emulated(name: str) -> Row:
    # NumPy makes references only, and its tanh with these instructions reads beside its table under qemu 7.2.
    numpy = {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    return Row(f"qemu -cpu {name}", EMULATED[name], numpy, emulated=name)
