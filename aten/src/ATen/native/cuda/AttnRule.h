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
// 128 columns: on the device / in calls in a row. They are of kernels that also
// served gradients of attn and other N. At 256 and 512, where a product takes
// some 12 us, the run's own ratios differ from these by up to 0.4.
//
//      N   64: forward      backward   128: forward      backward
//    256   0.86 / 2.10   0.65 / 1.91   0.84 / 2.14   0.57 / 2.00
//    512   0.49 / 2.03   0.65 / 1.97   0.75 / 2.09   0.56 / 1.77
//   1000   0.96 / 2.12   0.74 / 1.88   0.84 / 2.00   0.58 / 1.72
//   1024   0.95 / 1.98   0.74 / 1.91   0.73 / 2.02   0.57 / 1.61
//   2048   0.93 / 1.75   0.72 / 1.50   0.78 / 2.17   0.66 / 1.48
//   3000   1.32 / 1.57   1.12 / 1.25   1.03 / 1.15   0.67 / 1.03
//   4096   1.85 / 1.65   1.27 / 1.25   1.24 / 1.42   0.79 / 0.87
//   6000   2.19 / 2.14   1.49 / 1.44   1.48 / 1.54   0.87 / 0.88
//   8192   2.65 / 2.52   1.76 / 1.68   1.69 / 1.72   1.09 / 1.09
inline bool pays(int64_t n, int64_t d, bool backward) {
  return n >= (backward && d == 128 ? 8192 : 3000);
}

} // namespace at::native::attn_fused
