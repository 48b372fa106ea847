// For which sizes the CPU kernels of attn and of its backward run.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace at::native {

// x86-64 without AVX2, with it, with AVX-512, with its products of bfloat16,
// and with those of AMX and of float16. Others were not measured.
enum class AttnProcessor { X86, AVX2, AVX512, AVX512_BF16, AMX, Unmeasured };

struct AttnSizes {
  double matrices, m, n;
  double d; // 0 where grad_v alone is wanted
  double e; // 0 without grad_output
  // Whether ATen's products would copy an operand
  bool is_strided;
};

// Whether the kernels are faster than ATen's products. They save passes over
// attn, which dominate unless D + E is large, and copies of operands.
inline bool attn_is_fused(
    AttnProcessor processor,
    ScalarType dtype,
    const AttnSizes& s,
    bool backward,
    double threads) {
  const double columns = s.d + s.e;
  const AttnProcessor fast = dtype == kHalf ? AttnProcessor::AMX
      : dtype == kBFloat16                  ? AttnProcessor::AVX512_BF16
                                            : AttnProcessor::AVX2;
  if (processor == AttnProcessor::Unmeasured || processor < fast) {
    // Without instructions for 16 bits ATen's products are slow at every size.
    return processor != AttnProcessor::Unmeasured &&
        fast != AttnProcessor::AVX2 && (!backward || columns > 1);
  }
  const double widest = !backward        ? 512
      : processor == AttnProcessor::AVX2 ? 128
                                         : 256;
  // Threads share a matrix in parts of 64 keys or D, each with 2 MFLOP or more.
  const double parts = s.matrices * std::max(1., s.n / std::max(64., s.d));
  const double work = s.matrices * s.m * s.n * columns / (1 << 19);
  if (s.n < 8 || columns > widest ||
      (backward && (s.d < 2 || parts < std::min(threads, work)))) {
    return false;
  }
  // One call of ATen's makes many narrow products as fast. So does MKL a single
  // one on Intel's processors.
  const bool is_narrow = s.matrices > 1 ? columns < 32
                                        : processor == AttnProcessor::AMX &&
          dtype == kFloat && !backward && std::min(s.d, s.e) < 16;
  return s.is_strided || !is_narrow;
}

} // namespace at::native
