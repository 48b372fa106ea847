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
  double matrices, m, n, d, e, threads;
  bool backward;
  while (std::cin >> processor >> dtype >> matrices >> m >> n >> d >> e >> backward >> threads) {
    using P = native::AttnProcessor;
    const P p = processor == "X86" ? P::X86 : processor == "AVX2" ? P::AVX2
        : processor == "AVX512" ? P::AVX512 : processor == "MKL" ? P::AVX512_MKL
        : processor == "AMX" ? P::AMX : P::Unmeasured;
    const ScalarType t = dtype == "float32" ? kFloat : dtype == "float64" ? kDouble
        : dtype == "bfloat16" ? kBFloat16 : kHalf;
    std::cout << native::attn_is_fused(p, t, matrices, m, n, d, e, backward, threads) << '\\n';
  }
}
"""
# Processor, dtype, matrices, M, N, D, E, whether it is the backward, and threads, as attn_is_fused takes.
Asked = tuple[str, str, int, int, int, int, int, int, int]


def answers(asked: Sequence[Asked]) -> list[bool]:
    """What the rule says."""
    return [words == ["1"] for words in ask(PROGRAM, "AttnRule.h", asked)]
