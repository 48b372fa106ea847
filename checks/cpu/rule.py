"""For which cases the CPU kernels run: the rule of AttnRule.h itself, also for processors that are not at hand."""

from __future__ import annotations

from collections.abc import Sequence

from checks.cpu.program import ask

PROGRAM = """
#include <ATen/native/cpu/AttnRule.h>
#include <iostream>
#include <string>
using namespace at;
using namespace c10;
int main() {
  std::string processor, dtype;
  native::AttnSizes sizes;
  double threads;
  bool backward;
  while (std::cin >> processor >> dtype >> sizes.matrices >> sizes.m >> sizes.n >> sizes.d >> sizes.e
             >> sizes.is_strided >> backward >> threads) {
    using P = native::AttnProcessor;
    const P p = processor == "X86" ? P::X86 : processor == "AVX2" ? P::AVX2
        : processor == "AVX512" ? P::AVX512 : processor == "AVX512_BF16" ? P::AVX512_BF16
        : processor == "AMX" ? P::AMX : P::Unmeasured;
    const ScalarType t = dtype == "float32" ? kFloat : dtype == "float64" ? kDouble
        : dtype == "bfloat16" ? kBFloat16 : kHalf;
    std::cout << native::attn_is_fused(p, t, sizes, backward, threads) << '\\n';
  }
}
"""
# Processor, dtype, matrices, M, N, D, E, whether operands are strided, whether it is the backward, and threads
Asked = tuple[str, str, int, int, int, int, int, int, int, int]


def answers(asked: Sequence[Asked]) -> list[bool]:
    """What the rule says."""
    return [words == ["1"] for words in ask(PROGRAM, "AttnRule.h", asked)]
