// What attn's tile kernels take, and how they are cut: all that the host needs
// to launch them, so that their sources need none of ATen's headers, which take
// longer to compile than the kernels.
#pragma once

#include <ATen/native/cuda/AttnFragments.cuh>

namespace at::native::attn_tile {

constexpr int kThreads = 128;

template <typename A>
constexpr int kLine = 128 / sizeof(typename A::scalar_t);

// An N x columns matrix, or none of it when lines is 0.
template <typename A>
struct Operand {
  const typename A::scalar_t* data = nullptr;
  int lines = 0; // of 128 bytes, in a row and from one row to the next
};

// An N x N matrix; chunked says that every 16 bytes of a row can be read at
// once, and that N is a whole number of them.
template <typename A>
struct Square {
  const typename A::scalar_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  bool chunked = false;
};

// An N x columns result, written to data, or part by part to parts.
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
  int n; // an attn of 2^31 rows is larger than any memory
  int part; // rows of the walk that one part takes, a multiple of kWalk
};

template <typename A>
struct BackwardArgs {
  Operand<A> grad_output, q, k, v;
  Square<A> attn, grad_attn;
  Result<A> grad_q, grad_k, grad_v;
  int n;
  int part;
};

// How the kernels are cut: 64 * rows of the result to a block and width of its
// columns to a slice, as many as the registers hold.
template <typename A>
struct Shape {
  static constexpr int kItem = sizeof(typename A::scalar_t);
  static constexpr bool kDouble = sizeof(typename A::acc_t) == 8;
  static constexpr int kRows = kDouble ? 1 : 2;
  static constexpr int kMaxColsWidth = kDouble ? 64 : 128;

  static constexpr int cols_rows(int width) {
    return width == 64 && !kDouble ? 2 : 1;
  }
  // Shared memory in bytes, the lines being those of the first product.
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

// Whether operands of these two widths are whole: as wide as a slice, so that a
// kernel made for that width serves.
template <typename A>
bool are_whole(int width, const Operand<A>& a, const Operand<A>& b) {
  return width <= A::kWidestWhole && a.lines * kLine<A> == width &&
      b.lines * kLine<A> == width;
}

// A kernel for slices of this width as the runtime's functions take it. The
// sources Attn<Arithmetic>.cu hold one arithmetic each, and so compile side by
// side.
template <typename A>
const void* kernel_of(Kernel kernel, int width, bool whole);

} // namespace at::native::attn_tile
