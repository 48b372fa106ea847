// The CPU kernels of attn and of its backward, and for which sizes they run.
#pragma once

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

// Whether the bound on scratch leaves room for as many threads as have work.
// Where it does not, the kernels leave some idle, which ATen's products use.
inline bool attn_scratch_fits(
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward,
    int64_t threads) {
  const double flop = (backward ? 4. : 2.) * n * n * (d + e);
  threads =
      std::min({threads, n / 16 + 1, static_cast<int64_t>(flop / 2e6) + 1});
  // Rows of attn forward, or columns backward, that a thread takes at once
  const int64_t own = std::max<int64_t>(n / threads, 16);
  const int64_t few = std::min<int64_t>(own, backward ? 256 : 64);
  // About: copies of the inputs, and tiles and sums of each thread
  const int64_t numbers = backward
      ? n * (3 * d + 4 * e) + threads * (n * d + 288 * (few + 16))
      : n * (d + e) + threads * few * (d + e + 408);
  const int64_t most = std::max<int64_t>(n * n * elementSize(dtype), 4 << 20);
  return threads <= 2 || numbers * (dtype == kDouble ? 8 : 4) <= most;
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
  const int64_t needed = slow ? (threads + 7) / 8 : threads;
  if (!attn_scratch_fits(dtype, n, d, e, backward, needed)) {
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
    void (*)(const AttnGradients& grads, const AttnBackward& args);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
