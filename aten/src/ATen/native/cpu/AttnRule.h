// For which sizes the CPU kernels of attn and of its backward run.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace at::native {

// Processors with limits of their own: x86-64 without AVX2, with AVX2, with
// AVX-512, with AVX-512 that MKL uses too, and with AMX beside that. All were
// fitted on single processors of two cores: AVX2's and AVX512's on AMD's, AMX's
// on Intel's; AVX512_MKL has AMX's but for float16. The limits of batches are
// Zen 5's, those of AVX2 as it emulates it, and AMX's up to 128 x 128 a guess.
enum class AttnProcessor { X86, AVX2, AVX512, AVX512_MKL, AMX, Unmeasured };

// Whether the kernels are faster than ATen's products, for matrices of these
// sizes; d is 0 where grad_v alone is wanted, and e is 0 without grad_output.
// They save passes over attn, which dominate unless D + E is large. But they
// copy the operands and pad their sizes, which costs most where there are few
// rows of q or of k.
inline bool attn_is_fused(
    AttnProcessor processor,
    ScalarType dtype,
    double matrices,
    double m,
    double n,
    double d,
    double e,
    bool backward,
    double threads) {
  const double rows = std::min(m, n), columns = d + e;
  const double width = dtype == kDouble ? 128 : 256;
  const bool half = dtype == kHalf || dtype == kBFloat16;
  if (processor == AttnProcessor::Unmeasured || (half && columns > 16 * rows)) {
    return false;
  }
  // Without instructions for 16 bits ATen's products are slow at every width.
  const bool avx512 = processor == AttnProcessor::AVX512 ||
      processor == AttnProcessor::AVX512_MKL;
  if (half && processor != AttnProcessor::AMX && !(avx512 && dtype != kHalf)) {
    return !backward || columns > 1;
  }
  // grad_v alone saves no pass, and a BLAS reads attn for few columns as fast
  // as memory allows.
  const double narrow = half ? 16 : 2;
  if (backward && (d < narrow || (e != 0 && e < narrow))) {
    return false;
  }
  // Where there are few rows, ATen's batched products are as fast. With 16 bits
  // small matrices win in any shape, since oneDNN's calls cost much for them.
  const double wide = 2 * rows + (backward ? 0 : 96);
  const bool few = half ? columns > 8 * rows ||
          (backward && columns > rows && std::max(m, n) > 2 * rows)
                        : rows < (backward ? 32 : 16) || columns > wide;
  // Threads share one long matrix better in ATen's products.
  const double length = std::max(m, n) / rows;
  const bool shared =
      matrices < threads && (backward ? length > 8 : rows < 32 && length > 32);
  // A call of ATen's costs as much for one matrix as for a batch. Without that
  // small matrices win later, and bfloat16's backward last, unless AMX helps.
  const double size = m * n;
  double least = backward ? 1 << 14 : 1 << 11;
  if (processor == AttnProcessor::AVX512 && half) {
    least = backward ? 1 << 18 : 1 << 11;
  } else if (processor == AttnProcessor::AVX512) {
    least = backward ? 1 << 12 : 1 << 10;
  }
  const bool batch =
      matrices > 1 && matrices * size * columns > (half ? 1 << 20 : 1 << 17);
  const bool small =
      size < least || (half && !backward && columns > 2 * std::max(m, n));
  if (few || shared || (batch && small)) {
    return false;
  }
  switch (processor) {
    case AttnProcessor::AVX2:
      return columns <= (backward ? 128 : 2 * width) ||
          (backward && rows <= 512 && columns <= width);
    case AttnProcessor::AVX512:
      return columns <= (backward ? width : 2 * width);
    case AttnProcessor::AVX512_MKL:
    case AttnProcessor::AMX:
      // There ATen's tanh and products are fast. The kernels win backward where
      // attn is large beside its operands: less so without grad_output, or
      // where v is narrower than q. With 16 bits they win by bfloat16's
      // products, which float16 has in ATen alone.
      if (dtype == kBFloat16) {
        return columns <= (backward ? width : 2 * width);
      }
      if (half) {
        return backward ? rows * columns <= 8192 : columns <= width;
      }
      return backward &&
          d + std::max(d, e) <=
          std::min(width, rows / (dtype == kDouble ? 16 : 4));
    default:
      return false;
  }
}

} // namespace at::native
