// Scratch memory of attn's CPU kernels, and copies of their inputs in it.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/vec_half.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <type_traits>

namespace at::native::attn_tile {

inline namespace CPU_CAPABILITY {

// Sizes of products are multiples of a vector, or of 16, so that oneDNN
// compiles few shapes without tails.
template <typename operand_t>
int64_t product_size(int64_t size) {
  constexpr int64_t unit =
      std::is_same_v<operand_t, float> ? Vectorized<float>::size() : 16;
  return round_up(std::max<int64_t>(size, 1), unit);
}

// Rows and columns of attn in a product. Whole vectors are read behind them, of
// zeros.
inline int64_t tile_size(int64_t size) {
  return round_up<int64_t>(size, 16);
}

// Sizes in scratch are multiples of this, so that no vector and no 16 x 16
// transpose is partial.
template <typename scalar_t>
constexpr int64_t kUnit = std::max<int64_t>(16, Vectorized<scalar_t>::size());

template <typename scalar_t>
constexpr int64_t scratch_size(int64_t size) {
  return round_up(std::max<int64_t>(size, 1), kUnit<scalar_t>);
}

// Added to rows of scratch: a power of two apart, they would share a few sets
// of the cache.
constexpr int64_t kGap = 16;

// How far apart rows of `size` numbers lie in scratch: one of a few strides,
// because oneDNN keeps a kernel for each.
template <typename scalar_t>
int64_t scratch_stride(int64_t size) {
  const int64_t unit = size <= 64 ? kUnit<scalar_t> : size <= 256 ? 64 : 256;
  return round_up(std::max<int64_t>(size, 1), unit) + kGap;
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

// Memory for `count` structs of arrays, which their constructor takes from
// Slices.
template <typename Arrays, typename Kernel>
class Scratch {
 public:
  Scratch(const Kernel& kernel, int64_t count) : kernel_(kernel) {
    Slices slices;
    Arrays(kernel, slices);
    bytes_ = slices.bytes;
    memory_ = c10::GetCPUAllocator()->allocate(count * bytes_);
  }
  Arrays operator[](int64_t i) const {
    Slices slices{reinterpret_cast<uintptr_t>(memory_.get()) + i * bytes_};
    return Arrays(kernel_, slices);
  }

 private:
  const Kernel& kernel_;
  int64_t bytes_;
  DataPtr memory_;
};

// Other code in a thread configures AMX for itself.
template <typename operand_t>
struct ReleaseProducts {
  ~ReleaseProducts() {
    if (kVnni<operand_t> == 2) {
      cpublas::brgemm_release();
    }
  }
};

// The matrices of t below each other; empty if t is undefined.
template <typename scalar_t>
Matrix<const scalar_t> matrix(const Tensor& t) {
  if (!t.defined()) {
    return {};
  }
  return {t.const_data_ptr<scalar_t>(), t.size(-1)};
}

// to <- from (rows, columns) as an operand of products, with zeros up to whole
// rows and columns: `vnni` consecutive rows are interleaved.
template <int64_t vnni, typename scalar_t, typename operand_t>
void pack(
    Matrix<const scalar_t> from,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> to) {
  const int64_t width = scratch_size<scalar_t>(columns);
  for (int64_t r = 0; r < scratch_size<scalar_t>(rows); r += vnni) {
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

// to <- from (rows, columns) transposed; in bfloat16 each is a VNNI pair
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
  constexpr int64_t unit = kUnit<scalar_t>, pair = kVnni<operand_t>;
  const int64_t width = scratch_size<scalar_t>(columns) * vnni;
  copy.stride = width;
  for (int64_t r = 0; r < rows; r += unit) {
    pack<vnni>(from.from(r), std::min(unit, rows - r), columns, copy);
    transpose<operand_t>(
        copy, unit / vnni, width / pair, to.from(0, r / vnni * pair));
  }
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
