// The arguments and block sizes of attn's fused kernels. This is all that the
// host and the kernels share. The sources of the kernels include none of ATen's
// headers, which take longer to compile than the kernels.
#pragma once

#include <ATen/native/cuda/AttnFragments.cuh>

namespace at::native::attn_fused {

constexpr int kThreads = 128;
// Rows of its result that a block owns. Each of its four warps owns kRows times
// 16 of them: as many as the registers allow.
constexpr int kRows = 2;
constexpr int kBlock = 64 * kRows;

// An N x width result. Kernels write it to `data`, or to `parts` if the walk
// has several parts.
template <typename T>
struct Result {
  T* data;
  float* parts;
};

// Every matrix is contiguous and aligned to 16 bytes. attn is N x N, where N is
// a multiple of kChunk; all others are N x width.
template <typename T>
struct ForwardArgs {
  const T *q, *k, *v;
  T* attn;
  Result<T> output;
  int n; // no memory holds an attn of 2^31 rows
  int part; // rows of the walk in one part, a multiple of kWalk
};

template <typename T>
struct BackwardArgs {
  const T *grad_output, *q, *k, *v, *attn;
  Result<T> grad_q, grad_k, grad_v;
  int n;
  int part;
};

enum class Kernel { forward, backward_rows, backward_cols, sum_parts };

// Bytes of shared memory: one operand as long as the block and two that are
// walked over, with two stages each; for backward_cols also attn's tiles.
constexpr int shared_bytes(Kernel kernel, int width) {
  const int attn = kernel == Kernel::backward_cols ? kBlock : 0;
  return 2 * (kBlock * width + 2 * kWalk * (2 * width + attn));
}

// A kernel for operands of this many columns, as the CUDA runtime's functions
// take it: 64, forward also 128. Each dtype has a source of its own, so that
// they compile in parallel.
template <typename T>
const void* kernel_of(Kernel kernel, int width);

} // namespace at::native::attn_fused
