// For which calls attn runs its fused kernels on CUDA.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace at::native::attn_fused {

// A call of attn or of its backward. `matrices` is the product of `dims`
// leading dimensions, and `capability` the device's major one.
struct AttnCall {
  bool backward;
  int capability;
  ScalarType dtype;
  int64_t dims, matrices, m, n, d, e;
};

// Whether the kernels compute it: 16 bits, and operands of 64 columns each,
// forward also of 128. Blocks and rows are counted in 31 bits, and so are the
// bytes from a row of a result to the next, between which may lie all matrices.
inline bool can_use_kernels(const AttnCall& x) {
  constexpr int64_t most = 1 << 30;
  return x.capability >= 8 && (x.dtype == kHalf || x.dtype == kBFloat16) &&
      x.d == x.e && (x.d == 64 || (x.d == 128 && !x.backward)) && x.dims <= 8 &&
      std::min<int64_t>({x.matrices, x.m, x.n}) > 0 &&
      std::max<int64_t>(x.m, x.n) < most &&
      x.matrices < most / std::max<int64_t>(std::max(x.m, x.n) / 64 + 1, x.d);
}

// Whether they are not slower than composition (0.97) where that was measured:
// on an H100 and an H200, for one matrix of M = N rows, with earlier kernels
// that had the same products and loads, rows of a constant stride and another
// tanh of float16. All else waits for a measurement.
inline bool are_kernels_faster(const AttnCall& x) {
  return x.capability == 9 && (x.dtype == kBFloat16 || x.backward) &&
      x.dims == 0 && x.m == x.n && x.n % 8 == 0 &&
      x.n >= (x.d == 64 ? 3000 : 4096);
}

} // namespace at::native::attn_fused
