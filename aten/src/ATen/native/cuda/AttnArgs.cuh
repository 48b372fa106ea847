// The arguments and block sizes of attn's fused kernels. This is all that the
// host and the kernels share. The sources of the kernels include none of ATen's
// headers, which take longer to compile than the kernels.
#pragma once

#include <ATen/native/cuda/AttnFragments.cuh>

namespace at::native::attn_fused {

constexpr int kThreads = 128;

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

// How many rows of its result a block owns, in units of 64: as many as the
// registers allow. Each of its four warps owns 16 of each 64.
constexpr int rows_of(Kernel kernel, int width) {
  return kernel == Kernel::backward_cols && width == 128 ? 1 : 2;
}

// Bytes of shared memory: one operand as long as the block and two that are
// walked over, with two stages each; for backward_cols also attn's tiles.
constexpr int shared_bytes(Kernel kernel, int width) {
  const int block = 64 * rows_of(kernel, width);
  const int attn = kernel == Kernel::backward_cols ? block : 0;
  return 2 * (block * width + 2 * kWalk * (2 * width + attn));
}

// A kernel for operands of 64 or 128 columns, as the CUDA runtime's functions
// take it. Each dtype has a source of its own, so that they compile in
// parallel.
template <typename T>
const void* kernel_of(Kernel kernel, int width);

} // namespace at::native::attn_fused
