// For which inputs attn's fused kernels run on CUDA; all others are composed.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace at::native::attn_fused {

// What the kernels can compute: 16 bits, operands of 64 columns each, forward
// also of 128, and rows of attn that are whole 16 bytes.
inline bool serves(
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward) {
  return (dtype == kHalf || dtype == kBFloat16) && d == e &&
      (d == 64 || (d == 128 && !backward)) && n > 0 && n % 8 == 0;
}

// Whether they pay: on the device they are not slower than composition (0.97).
// Between the sizes of the table nothing was measured. Below, calls in a row
// gain, since they take one operator for three, but a CUDA graph takes that
// away. A backward of 128 columns had kernels too: from N = 8192 on faster than
// composition on an H100, and slower on an H200, whose memory is faster.
//
//      N   64: forward      backward   128: forward
//    256   0.93 / 1.98   0.66 / 1.51   0.72 / 2.03
//    512   0.98 / 1.93   0.68 / 1.20   0.70 / 2.05
//   1000   1.08 / 2.04   0.79 / 1.51   0.75 / 2.06
//   1024   1.04 / 1.98   0.71 / 1.45   0.72 / 1.96
//   2048   0.94 / 2.08   0.73 / 1.56   0.81 / 2.01
//   3000   1.31 / 1.88   1.06 / 1.55   0.96 / 1.46
//   4096   1.66 / 1.71   1.22 / 1.51   1.05 / 1.10
//   6000   1.92 / 1.95   1.31 / 1.47   1.20 / 1.23
//   8192   2.22 / 2.23   1.45 / 1.45   1.32 / 1.32
inline bool pays(int64_t n, int64_t d) {
  return n >= (d == 64 ? 3000 : 4096);
}

} // namespace at::native::attn_fused
