"""For which sizes the CPU kernels run: the rule of AttnKernel.h itself, for processors that need not be at hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from checks import ROOT

PROGRAM = """
#include <ATen/native/cpu/AttnKernel.h>
#include <iostream>
#include <string>
using namespace at;
int main() {
  std::string processor, dtype;
  int64_t n, columns;
  bool backward;
  while (std::cin >> processor >> dtype >> n >> columns >> backward) {
    using P = native::AttnProcessor;
    const P p = processor == "X86" ? P::X86 : processor == "AVX2" ? P::AVX2
        : processor == "AVX512" ? P::AVX512 : processor == "MKL" ? P::AVX512_MKL : P::Unmeasured;
    const ScalarType t = dtype == "float32" ? kFloat : dtype == "float64" ? kDouble
        : dtype == "bfloat16" ? kBFloat16 : kHalf;
    std::cout << native::attn_is_fused(p, t, n, columns, backward);
  }
}
"""
Case = tuple[str, str, int, int, int]
BOTH = (0, 1)
# Which cases run the kernels: sizes at both sides of every number of the rule, and what each is there for.
FUSED: list[Case] = [
    # ATen has no fast products of 16 bits without instructions for them.
    *((p, t, 2000, 2048, b) for p in ("X86", "AVX2") for t in ("bfloat16", "float16") for b in BOTH),
    *(("AVX512", "float16", 2000, 2048, b) for b in BOTH),
    # In the cache and beyond; a forward without another pass over attn wins further than a backward
    *((p, "float32", n, 256, b) for p in ("AVX2", "AVX512") for n in (16, 300, 2000) for b in BOTH),
    *((p, "float64", n, 128, b) for p in ("AVX2", "AVX512") for n in (8, 300, 2000) for b in BOTH),
    *(("AVX512", t, n, 512, 0) for t in ("float32", "bfloat16") for n in (32, 2000)),
    *(("AVX512", t, 2000, w, b) for t, w, b in (("float64", 256, 0), ("bfloat16", 256, 1))),
    # MKL's products and tanh on Intel
    *(("MKL", "float32", n, 256, b) for n, b in ((16, 0), (64, 0), (1025, 0), (65, 1), (1024, 1))),
    *(("MKL", "float64", n, 128, b) for n, b in ((64, 0), (1025, 0), (300, 1))),
    *(("MKL", t, n, 512, b) for t in ("bfloat16", "float16") for n in (300, 2000) for b in BOTH),
    # Few rows and few columns
    *(("AVX512", t, 1, 16, b) for t in ("float32", "float16") for b in BOTH),
    *(("AVX512", t, 300, 2, 0) for t in ("float32", "float64", "bfloat16", "float16")),
]
COMPOSED: list[Case] = [
    *(("X86", t, n, 2, b) for t in ("float32", "float64") for n in (2, 2000) for b in BOTH),
    *((p, "float32", 2000, 257 * f, b) for p, f, b in (("AVX2", 1, 0), ("AVX2", 1, 1), ("AVX512", 2, 0))),
    *((p, "float64", 2000, 129 * f, b) for p, f, b in (("AVX2", 1, 0), ("AVX2", 1, 1), ("AVX512", 2, 0))),
    *(("AVX512", t, 300, w, b) for t, w, b in (("float32", 257, 1), ("bfloat16", 513, 0), ("bfloat16", 257, 1))),
    *(("MKL", t, n, 2, 0) for t in ("float32", "float64") for n in (65, 1024)),
    *(("MKL", "float32", n, 257, b) for n, b in ((64, 0), (2000, 0), (300, 1))),
    *(("MKL", "float64", n, 129, b) for n, b in ((64, 0), (2000, 0), (300, 1))),
    *(("MKL", t, 2000, 513, b) for t in ("bfloat16", "float16") for b in BOTH),
    # Few rows, of which wide copies cost more than products, and few columns
    *(
        (p, t, n, 16 * n + 1, b)
        for p in ("X86", "AVX2", "AVX512", "MKL")
        for t in ("bfloat16", "float16")
        for n in (1, 8)
        for b in BOTH
    ),
    *(("AVX512", t, 300, 15, 1) for t in ("float32", "float64", "bfloat16", "float16")),
    # A processor that nobody has measured
    *(("ARM", t, 300, 32, b) for t in ("float32", "float64", "bfloat16", "float16") for b in BOTH),
]


@pytest.fixture(scope="session")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rule")
    (folder / "rule.cpp").write_text(PROGRAM)
    includes = [f"-I{ROOT / 'aten/src'}", "-isystem", str(Path(torch.__file__).parent / "include")]
    command = [os.environ.get("CXX", "c++"), "-std=c++20", *includes, "rule.cpp", "-o", "rule"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "rule"


def test_the_rule_at_both_sides_of_its_numbers(rule: Path) -> None:
    cases = FUSED + COMPOSED
    lines = "\n".join(f"{p} {t} {n} {columns} {int(backward)}" for p, t, n, columns, backward in cases)
    said = subprocess.run([rule], input=lines, capture_output=True, text=True, check=True).stdout
    found = {case: answer == "1" for case, answer in zip(cases, said, strict=True)}
    assert found == {case: case in FUSED for case in cases}
