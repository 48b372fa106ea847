// The CPU kernels of attn and of its backward, and for which sizes they run.
#pragma once

#include <ATen/native/DispatchStub.h>
#include <ATen/native/attn.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>

namespace at::native {

// Processors that were measured: x86-64 without AVX2, with AVX2, with AVX-512,
// and with AVX-512 that MKL uses too.
enum class AttnProcessor { X86, AVX2, AVX512, AVX512_MKL, Unmeasured };

// Whether the kernels are faster than ATen's products for N = n and
// D + E = columns. They save passes over attn, which dominate unless D + E is
// large.
inline bool attn_is_fused(
    AttnProcessor processor,
    ScalarType dtype,
    int64_t n,
    int64_t columns,
    bool backward) {
  // Without instructions for 16 bits ATen's products are slow at every size.
  constexpr int64_t all = std::numeric_limits<int64_t>::max();
  // The largest D + E forward and backward, by processor and by dtype
  constexpr int64_t widest[][2][4] = {
      // float32, float64, bfloat16, float16
      {{0, 0, all, all}, {0, 0, all, all}},
      {{256, 256, all, all}, {256, 256, all, all}},
      {{1024, 512, 512, all}, {512, 512, 256, all}},
      {{256, 128, 512, 512}, {256, 128, 512, 512}},
  };
  const bool half = dtype == kHalf || dtype == kBFloat16;
  // At these N attn stays in the cache between MKL's products and tanh.
  if (processor == AttnProcessor::Unmeasured ||
      (processor == AttnProcessor::AVX512_MKL && !half && !backward && n > 64 &&
       n <= 1024)) {
    return false;
  }
  const int column = dtype == kFloat ? 0
      : dtype == kDouble             ? 1
      : dtype == kBFloat16           ? 2
                                     : 3;
  return columns <= widest[static_cast<int>(processor)][backward][column];
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
    void (*)(const AttnGradients& grads, const AttnBackward& x);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
