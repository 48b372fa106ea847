// The arguments and block sizes of attn's fused kernels. This is all that the
// host and the kernels block. The sources of the kernels include none of ATen's
// headers, which take longer to compile than the kernels.
#pragma once

#include <ATen/native/cuda/AttnFragments.cuh>

namespace at::native::attn_fused {

constexpr int kThreads = 128;
// Rows of its result that a block owns. Each of its four warps owns kRows times
// 16 of them: as many as the registers allow.
constexpr int kRows = 2;
constexpr int kBlock = 64 * kRows;
constexpr int kLeading = 8; // leading dimensions

// An operand: matrices whose last stride is 1.
template <typename T>
struct Matrices {
  T* data;
  int row; // bytes from a row to the next
  int64_t leading[kLeading]; // strides in elements, 0 where it is expanded
};

// Kernels write a result to `matrices`, if it is wanted, or to `parts` if the
// loop has several.
template <typename T>
struct Result {
  Matrices<T> matrices;
  float* parts; // parts x matrices x rows x width
};

// A kernel owns the rows of one side, of q or of k, and loops over the others.
struct Sizes {
  int dims; // leading ones
  int leading[kLeading];
  int matrices; // the product of these
  int own, other;
  int part; // rows of the loop in one part, a multiple of kStep
  bool aligned; // whether attn's rows begin at multiples of 16 bytes
};

// One operand has the rows that are owned, and two those that are looped over.
// All of their rows begin at multiples of 16 bytes.
template <typename T>
struct Args {
  Sizes sizes;
  Matrices<const T> own, first, second;
  Matrices<T> attn;
  Result<T> results[2];
};

template <typename T>
struct SumArgs {
  Sizes sizes;
  Result<T> result;
  int width, parts;
};

enum class Kernel { forward, backward_q, backward_kv, sum_parts };

// Bytes of shared memory: one operand as long as the block and two that are
// looped over, with two stages each; for backward_kv also attn's tiles.
constexpr int shared_bytes(Kernel kernel, int width) {
  const int attn = kernel == Kernel::backward_kv ? kBlock : 0;
  return 2 * (kBlock * width + 2 * kStep * (2 * width + attn));
}

// A kernel for operands of this many columns, as the CUDA runtime's functions
// take it: 64, forward also 128. Each dtype has a source of its own, so that
// they compile in parallel.
template <typename T>
const void* kernel_of(Kernel kernel, int width);

} // namespace at::native::attn_fused
