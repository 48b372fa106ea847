// The CPU kernels of attn and of its backward, and for which sizes they run.
#pragma once

#include <ATen/native/DispatchStub.h>
#include <ATen/native/attn.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

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
  // Copies of wide inputs cost more than products of few rows, and what little
  // the backward multiplies for few columns, a BLAS does at memory's speed.
  if (columns > 16 * n || (backward && columns < 16)) {
    return false;
  }
  // Without instructions for 16 bits ATen's products are slow at every width.
  const bool half = dtype == kHalf || dtype == kBFloat16;
  const int64_t width = dtype == kDouble ? 128 : 256;
  switch (processor) {
    case AttnProcessor::X86:
      return half;
    case AttnProcessor::AVX2:
      return half || columns <= width;
    case AttnProcessor::AVX512:
      return dtype == kHalf || columns <= (backward ? width : 2 * width);
    case AttnProcessor::AVX512_MKL: {
      // There attn stays in the cache between MKL's products and tanh.
      const bool cached = !backward && n > 64 && n <= 1024;
      return half ? columns <= 2 * width : columns <= width && !cached;
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
    void (*)(const AttnGradients& grads, const AttnBackward& x);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
