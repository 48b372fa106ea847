// The CPU kernels of attn and of its backward, and for which sizes they run.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/attn.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace at::native {

// Processors with limits of their own: x86-64 without AVX2, with AVX2, with
// AVX-512, with AVX-512 that MKL uses too, and with AMX beside that. AVX2's and
// AMX's were measured with these kernels, each on one processor of two cores;
// AVX512_MKL has AMX's but for float16, the others those of earlier kernels.
enum class AttnProcessor { X86, AVX2, AVX512, AVX512_MKL, AMX, Unmeasured };

// Bytes of scratch, about, with which as many of these threads as have work can
// work at once: copies of the inputs, which bfloat16's products in VNNI layout
// take in two bytes each, sums, and tiles of attn.
inline int64_t attn_scratch(
    AttnProcessor processor,
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward,
    int64_t threads) {
  // AMD's processors with AVX-512 and all with AMX have such products.
  const bool vnni = dtype == kBFloat16 &&
      (processor == AttnProcessor::AVX512 || processor == AttnProcessor::AMX);
  const bool avx512 =
      processor != AttnProcessor::X86 && processor != AttnProcessor::AVX2;
  const int64_t unit = avx512 && elementSize(dtype) == 2 ? 32 : 16;
  const double columns = static_cast<double>(d + e) + (backward ? 4 : 16);
  const double flop = (backward ? 4. : 2.) * n * n * columns;
  threads = std::min(threads, static_cast<int64_t>(flop / 2e6) + 1);
  d = round_up(std::max<int64_t>(d, 1), unit);
  e = round_up(std::max<int64_t>(e, 1), unit);
  // The rows of attn forward, or the columns backward, of one thread
  const int64_t own = round_up(ceil_div(n, threads), unit);
  threads = std::min(threads, ceil_div(n, own));
  const int64_t block = 16 * std::max(d, e); // that is transposed
  int64_t copies = 0, sums = 0;
  if (backward) {
    n = round_up(n, std::min<int64_t>(round_up(n, unit), 128));
    const int64_t stride = std::min<int64_t>(own, 256) + 16;
    const int64_t panel = (std::min<int64_t>(own, 1024) + 16) * (d + e);
    const int64_t tiles = (vnni ? 3 : 2) * std::min<int64_t>(n, 128) * stride;
    copies = n * (d + 2 * e) + threads * (block + panel + tiles);
    sums = threads * (block + n * d + panel + 32 * stride);
  } else {
    const int64_t rows = std::min<int64_t>(own, 64);
    const int64_t stride = std::min<int64_t>(round_up(n, unit), 256) + 16;
    copies = n * (d + e + 32) + threads * (block + rows * (d + stride));
    sums = threads * (std::min<int64_t>(rows, 32) * stride + rows * e);
  }
  const int64_t size = dtype == kDouble ? 8 : 4;
  return (vnni ? 2 : size) * copies + size * sums;
}

// Whether the kernels are faster than ATen's products, by N, D, E and threads;
// d is 0 where grad_v alone is wanted, and e is 0 without grad_output. They
// save passes over attn, which dominate unless D + E is large. But they copy
// the inputs and pad their sizes, which costs most where there are few rows.
inline bool attn_is_fused(
    AttnProcessor processor,
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward,
    int64_t threads) {
  const int64_t columns = d + e, width = dtype == kDouble ? 128 : 256;
  const bool half = dtype == kHalf || dtype == kBFloat16;
  if (processor == AttnProcessor::Unmeasured || (half && columns > 16 * n)) {
    return false;
  }
  // Without instructions for 16 bits ATen's products are slow at every width,
  // so that one thread of the kernels does the work of eight.
  const bool avx512 = processor == AttnProcessor::AVX512 ||
      processor == AttnProcessor::AVX512_MKL;
  const bool slow =
      half && processor != AttnProcessor::AMX && !(avx512 && dtype != kHalf);
  // The bound on scratch may leave room for fewer threads than have work.
  // ATen's products use them all.
  const int64_t most = std::max<int64_t>(n * n * elementSize(dtype), 4 << 20);
  threads = slow ? (threads + 7) / 8 : threads;
  if (threads > 2 &&
      attn_scratch(processor, dtype, n, d, e, backward, threads) > most) {
    return false;
  }
  if (slow) {
    return !backward || columns > 1;
  }
  // grad_v alone saves no pass, and a BLAS reads attn for few columns as fast
  // as memory allows.
  const int64_t narrow = half ? 16 : 2;
  if (backward && (d < narrow || (e != 0 && e < narrow))) {
    return false;
  }
  const int64_t wide =
      backward ? std::max<int64_t>(64, n / 2) : std::min(8 * n, 2 * n + 96);
  if (!half && columns > wide) {
    return false;
  }
  switch (processor) {
    case AttnProcessor::AVX2: {
      // Backward, passes over attn are costly where its rows share sets of the
      // cache, and where it is small, or so large that malloc returns new
      // memory. Elsewhere kernels win if they are narrow and little is padded.
      const int64_t bytes = n * elementSize(dtype);
      const bool costly = n <= 256 || bytes % 2048 == 0 || n * bytes > 1 << 25;
      const int64_t padded = (d + 15) / 16 * 16 + (e + 15) / 16 * 16;
      const int64_t most = dtype == kDouble ? columns / 2 + 74 : 64;
      return columns <= width && (!backward || costly || padded <= most);
    }
    case AttnProcessor::AVX512:
      return columns <= (backward ? width : 2 * width);
    case AttnProcessor::AVX512_MKL:
    case AttnProcessor::AMX: {
      // There ATen's tanh and products are fast. The kernels win where the call
      // costs most, and backward where attn is large beside its operands: less
      // so without grad_output, or where v is narrower than q. With 16 bits
      // they win by bfloat16's products, which float16 has in ATen alone.
      if (dtype == kBFloat16) {
        return columns <= (backward ? width : 2 * width);
      }
      if (half) {
        return backward ? n * columns <= 8192 : columns <= width;
      }
      const int64_t most = std::min(width, n / (dtype == kDouble ? 16 : 4));
      return n <= 16 || (backward && d + std::max(d, e) <= most);
    }
    default:
      return false;
  }
}

// Fills output (N, E) and attn (N, N). All are contiguous.
using attn_fn = void (*)(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

struct AttnGradients {
  Tensor grad_q, grad_k, grad_v;
};

// Fills the gradients that are defined. All operands but grad_attn are
// contiguous.
using attn_backward_fn =
    void (*)(const AttnGradients& grads, const AttnBackwardArgs& args);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
