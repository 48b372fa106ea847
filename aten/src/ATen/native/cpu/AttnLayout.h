// Scratch memory of attn's CPU kernels, and copies of their inputs in it.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/vec_half.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <type_traits>

namespace at::native::attn_tile {

inline namespace CPU_CAPABILITY {

// Sizes of products are multiples of 16, so that oneDNN compiles few shapes.
inline int64_t whole(int64_t size) {
  return round_up<int64_t>(std::max<int64_t>(size, 1), 16);
}

// Sizes in scratch are multiples of this, so that vectors are whole, and
// squares that are transposed.
template <typename scalar_t>
constexpr int64_t kWhole = std::max<int64_t>(16, Vectorized<scalar_t>::size());

template <typename scalar_t>
int64_t padded(int64_t size) {
  return round_up(std::max<int64_t>(size, 1), kWhole<scalar_t>);
}

// Cuts arrays from one piece of memory, each at a cache line. From address 0 it
// only counts their bytes.
struct Slices {
  uintptr_t begin = 0;
  int64_t bytes = 0;

  template <typename T>
  Matrix<T> take(int64_t rows, int64_t stride) {
    const uintptr_t data = begin + bytes;
    bytes += round_up<int64_t>(rows * stride * sizeof(T), 64);
    return {reinterpret_cast<T*>(data), stride};
  }
};

// Of an undefined tensor it is empty.
template <typename scalar_t>
Matrix<const scalar_t> matrix(const Tensor& t) {
  if (!t.defined()) {
    return {};
  }
  return {t.const_data_ptr<scalar_t>(), t.size(1)};
}

// to <- from (rows, columns) as an operand of products, with zeros up to whole
// rows and columns: `vnni` rows of it lie in turns.
template <int64_t vnni, typename scalar_t, typename operand_t>
void pack(
    Matrix<const scalar_t> from,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> to) {
  const int64_t width = padded<scalar_t>(columns);
  for (int64_t r = 0; r < padded<scalar_t>(rows); r += vnni) {
    operand_t* row = to[r / vnni];
    const int64_t filled = r < rows ? columns : 0;
    if constexpr (vnni == 2) {
      const int64_t count = std::clamp<int64_t>(rows - r, 0, 2);
      vec::pack_vnni2(from[r], row, from.stride, count, columns);
    } else {
      vec::convert(from[r], row, filled);
    }
    std::fill(row + filled * vnni, row + width * vnni, operand_t(0));
  }
}

// to <- from (rows, columns) transposed, of numbers or of pairs
template <typename operand_t>
void transpose(
    Matrix<const operand_t> from,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> to) {
  constexpr int64_t vnni = kVnni<operand_t>;
  using T = std::conditional_t<vnni == 2, float, operand_t>;
  for (int64_t r = 0; r < rows; r += 16) {
    for (int64_t c = 0; c < columns; c += 16) {
      vec::transpose_mxn<T, 16, 16>(
          reinterpret_cast<const T*>(from[r] + c * vnni),
          from.stride / vnni,
          reinterpret_cast<T*>(to[c] + r * vnni),
          to.stride / vnni);
    }
  }
}

// to <- from (rows, columns) transposed, with zeros up to whole rows and
// columns. Of bfloat16 it is operand B if `vnni` is 1, and operand A if it
// is 2. `copy` has room for whole rows.
template <int64_t vnni, typename scalar_t, typename operand_t>
void pack_transposed(
    Matrix<const scalar_t> from,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> copy,
    Matrix<operand_t> to) {
  constexpr int64_t whole = kWhole<scalar_t>, pair = kVnni<operand_t>;
  const int64_t width = padded<scalar_t>(columns) * vnni;
  copy.stride = width;
  for (int64_t r = 0; r < rows; r += whole) {
    pack<vnni>(from.from(r), std::min(whole, rows - r), columns, copy);
    transpose<operand_t>(
        copy, whole / vnni, width / pair, to.from(0, r / vnni * pair));
  }
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
