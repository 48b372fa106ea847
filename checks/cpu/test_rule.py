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
# Which cases run the kernels: sizes at both sides of every number of the rule, and what each is there for.
FUSED: list[Case] = [
    # ATen has no fast products of 16 bits without instructions for them.
    *((p, t, 2000, 2048, True) for p in ("X86", "AVX2") for t in ("bfloat16", "float16")),
    ("AVX512", "float16", 2000, 2048, True),
    # float32 and float64 on AMD, forward and backward, in the cache and beyond
    *(
        (p, t, n, 256, b)
        for p in ("AVX2", "AVX512")
        for t in ("float32", "float64")
        for n in (2, 300, 2000)
        for b in (0, 1)
    ),
    # A forward without another pass over attn wins further than a backward.
    *(("AVX512", t, 300, n, b) for t, n, b in (("float32", 1024, 0), ("float32", 512, 1), ("bfloat16", 512, 0))),
    *(("AVX512", t, 2000, n, b) for t, n, b in (("float64", 512, 0), ("float64", 512, 1), ("bfloat16", 256, 1))),
    # MKL's products and tanh on Intel
    *(("MKL", "float32", n, 256, b) for n, b in ((2, 0), (64, 0), (1025, 0), (65, 1), (1024, 1))),
    *(("MKL", "float64", n, 128, b) for n, b in ((64, 0), (1025, 0), (300, 1))),
    *(("MKL", t, n, 512, b) for t in ("bfloat16", "float16") for n in (300, 2000) for b in (0, 1)),
]
COMPOSED: list[Case] = [
    *(("X86", t, n, 2, b) for t in ("float32", "float64") for n in (2, 2000) for b in (0, 1)),
    *(("AVX2", t, n, 257, b) for t in ("float32", "float64") for n in (2, 2000) for b in (0, 1)),
    *(("AVX512", t, 300, n, b) for t, n, b in (("float32", 1025, 0), ("float32", 513, 1), ("bfloat16", 513, 0))),
    *(("AVX512", t, 2000, n, b) for t, n, b in (("float64", 513, 0), ("float64", 513, 1), ("bfloat16", 257, 1))),
    *(("MKL", t, n, 2, False) for t in ("float32", "float64") for n in (65, 1024)),
    *(("MKL", "float32", n, 257, b) for n, b in ((2, 0), (2000, 0), (300, 1))),
    *(("MKL", "float64", n, 129, b) for n, b in ((2, 0), (2000, 0), (300, 1))),
    *(("MKL", t, n, 513, b) for t in ("bfloat16", "float16") for n in (2, 2000) for b in (0, 1)),
    # A processor that nobody has measured
    *(("ARM", t, 2, 2, b) for t in ("float32", "float64", "bfloat16", "float16") for b in (0, 1)),
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
