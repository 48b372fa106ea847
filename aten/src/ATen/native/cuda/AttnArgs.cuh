// The arguments and block sizes of attn's fused kernels. This is all that the
// host and the kernels share. The sources of the kernels include none of ATen's
// headers, which take longer to compile than the kernels.
#pragma once

#include <ATen/native/cuda/AttnFragments.cuh>

namespace at::native::attn_fused {

constexpr int kThreads = 128;

template <typename A>
constexpr int kLine = 128 / sizeof(typename A::scalar_t);

// An N x columns matrix; it is absent if lines is 0.
template <typename A>
struct Operand {
  const typename A::scalar_t* data = nullptr;
  int lines = 0; // the length of a row and its stride, in 128 bytes
};

// An N x N matrix. It is chunked if every row is a whole number of aligned
// chunks of 16 bytes.
template <typename A>
struct Square {
  const typename A::scalar_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  bool chunked = false;
};

// An N x columns result. Kernels write it to `data`, or to `parts` if the walk
// has several parts.
template <typename A>
struct Result {
  typename A::scalar_t* data = nullptr;
  typename A::acc_t* parts = nullptr;
  int columns = 0;
};

template <typename A>
struct ForwardArgs {
  Operand<A> q, k, v;
  typename A::scalar_t* attn;
  bool chunked;
  Result<A> output;
  int n; // no memory holds an attn of 2^31 rows
  int part; // rows of the walk in one part, a multiple of kWalk
};

template <typename A>
struct BackwardArgs {
  Operand<A> grad_output, q, k, v;
  Square<A> attn, grad_attn;
  Result<A> grad_q, grad_k, grad_v;
  int n;
  int part;
};

// The sizes of the kernels' blocks, as large as the registers allow. Each of
// the four warps of a block owns 16 * rows rows and `width` columns of the
// result.
template <typename A>
struct Shape {
  static constexpr int kItem = sizeof(typename A::scalar_t);
  static constexpr bool kDouble = sizeof(typename A::acc_t) == 8;
  static constexpr int kRows = kDouble ? 1 : 2;
  static constexpr int kMaxColsWidth = kDouble ? 64 : 128;

  static constexpr int cols_rows(int width) {
    return width == 64 && !kDouble ? 2 : 1;
  }
  // Shared memory in bytes. `lines` is the width that the first product sums
  // over.
  static constexpr int64_t rows_bytes(int lines, int width) {
    return (64 * kRows + 2 * A::kWalk) * int64_t(128) * lines +
        2 * A::kWalk * width * kItem;
  }
  static constexpr int64_t cols_bytes(int lines, int width, bool grad_attn) {
    const int block = 64 * cols_rows(width);
    const int slice = width * kItem;
    const int64_t whole = (int64_t(128) * lines + slice - 1) / slice * slice;
    return (block + 2 * A::kWalk) * whole +
        2 * A::kWalk * (width + block * (1 + grad_attn)) * kItem;
  }
};

enum class Kernel { forward, backward_rows, backward_cols, sum_parts };

// Whether both operands are exactly as wide as a slice, so that the kernel
// compiled for whole operands of that width can be used.
template <typename A>
bool are_whole(int width, const Operand<A>& a, const Operand<A>& b) {
  return width <= A::kWidestWhole && a.lines * kLine<A> == width &&
      b.lines * kLine<A> == width;
}

// A kernel for slices of this width, as the CUDA runtime's functions take it.
// Each arithmetic has a source Attn<Arithmetic>.cu, so that they compile in
// parallel.
template <typename A>
const void* kernel_of(Kernel kernel, int width, bool whole);

} // namespace at::native::attn_fused
