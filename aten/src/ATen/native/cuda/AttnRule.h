// For which inputs attn's fused kernels run on CUDA; all others are composed.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace at::native::attn_fused {

// What the kernels can compute: 16 bits, all operands 64 or all 128 columns
// wide, and rows of attn that are whole 16 bytes.
inline bool serves(ScalarType dtype, int64_t n, int64_t d, int64_t e) {
  return (dtype == kHalf || dtype == kBFloat16) && (d == 64 || d == 128) &&
      d == e && n > 0 && n % 8 == 0;
}

// Whether they pay: on the device they are not slower than composition (0.97).
// Between 2048 and 3000 nothing was measured. Below, calls in a row gain, since
// they take one operator for three, but a CUDA graph takes that away.
//
// Speed-ups of float16 or bfloat16, whichever is less, on an H100 with 64 and
// 128 columns: on the device / in calls in a row.
//
//      N   64: forward      backward   128: forward      backward
//    256   0.93 / 2.06   0.67 / 1.54   0.72 / 2.09   0.56 / 1.48
//    512   1.00 / 2.05   0.68 / 1.20   0.71 / 2.15   0.59 / 1.43
//   1000   1.08 / 2.06   0.79 / 1.76   0.75 / 2.10   0.61 / 1.57
//   1024   1.04 / 2.13   0.71 / 1.49   0.72 / 1.96   0.55 / 1.61
//   2048   0.94 / 2.13   0.75 / 1.56   0.84 / 2.08   0.67 / 1.46
//   3000   1.31 / 1.88   1.22 / 1.55   1.05 / 1.61   0.73 / 1.71
//   4096   1.99 / 1.97   1.42 / 1.59   1.28 / 1.70   0.85 / 1.49
//   6000   2.25 / 2.24   1.62 / 1.47   1.54 / 1.55   0.88 / 0.92
//   8192   2.74 / 2.68   1.84 / 1.82   1.76 / 1.75   1.11 / 1.12
inline bool pays(int64_t n, int64_t d, bool backward) {
  return n >= (backward && d == 128 ? 8192 : 3000);
}

} // namespace at::native::attn_fused
