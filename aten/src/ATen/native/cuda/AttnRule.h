// Which sizes attn's fused kernels take on CUDA; all others are composed.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace at::native::attn_fused {

// By what an H100 showed, on the device and in calls in a row: one launch in
// the place of several pays at small N, and so do fewer passes over attn at
// large N. q and k have d columns, and v has e.
inline bool takes(
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward) {
  if ((dtype != kHalf && dtype != kBFloat16) || (d != 64 && d != 128) ||
      d != e || n == 0) {
    return false;
  }
  // The kernels take one element at a time where rows are not whole 16 bytes.
  if (n % 8 != 0 && n > 1024) {
    return false;
  }
  // In between, cuBLAS multiplies 128 columns faster than mma.sync can.
  const bool products = d == 128 && n > 2048 && n < 8192;
  return !(backward && products);
}

} // namespace at::native::attn_fused
