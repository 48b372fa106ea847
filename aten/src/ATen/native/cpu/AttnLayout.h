// Scratch memory of attn's CPU kernels, and the copies and transposes in it.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/vec_half.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace at::native::attn_tile {

inline namespace CPU_CAPABILITY {

// Columns of a block of attn, which stays in the L2 cache.
constexpr int64_t kColumns = 256;

// How far apart the rows of a block lie. A power of two would make them share a
// few sets of the cache.
inline int64_t stride_of(int64_t columns) {
  return round_up<int64_t>(std::min(columns, kColumns), 16) + 16;
}

// An array in scratch: where it begins, and how far apart its rows lie.
template <typename E>
struct Rows {
  int64_t begin, stride;
};

// Uninitialised memory for several arrays, each at a cache line. A single
// allocation serves all threads, so that malloc keeps it for the next call.
class Scratch {
 public:
  template <typename E>
  Rows<E> reserve(int64_t rows, int64_t stride) {
    const Rows<E> result{bytes_, stride};
    bytes_ += round_up<int64_t>(rows * stride * sizeof(E), 64);
    return result;
  }
  // From here on, every thread gets an array of its own.
  void begin_threads() {
    shared_ = bytes_;
  }
  void allocate(int64_t threads) {
    const int64_t bytes = shared_ + threads * (bytes_ - shared_);
    memory_ = c10::GetCPUAllocator()->allocate(bytes);
  }
  template <typename E>
  Matrix<E> operator[](const Rows<E>& rows) const {
    char* data = static_cast<char*>(memory_.get()) + rows.begin;
    if (rows.begin >= shared_) {
      data += at::get_thread_num() * (bytes_ - shared_);
    }
    return {reinterpret_cast<E*>(data), rows.stride};
  }

 private:
  int64_t bytes_ = 0, shared_ = 0;
  at::DataPtr memory_;
};

// to (n) <- from (n), in another type
template <typename From, typename To>
void convert(const From* from, To* to, int64_t n) {
  if constexpr (sizeof(From) < sizeof(To)) {
    constexpr int64_t width = Vectorized<From>::size();
    for (; n >= width; n -= width, from += width, to += width) {
      converted<To>(VectorizedN<From, 1>::loadu(from)).store(to);
    }
  }
  vec::convert(from, to, n);
}

// to <- from transposed, both a vector wide and high. A round rotates the bits
// of each number's index, row * width + column, by one: after log2(width)
// rounds row and column have changed places.
template <typename T>
void transpose_square(Matrix<const T> from, Matrix<T> to) {
  using Vec = Vectorized<T>;
  constexpr int width = Vec::size();
  std::array<Vec, width> x, y;
#pragma GCC unroll 16
  for (int i = 0; i < width; i++) {
    x[i] = Vec::loadu(from[i]);
  }
#pragma GCC unroll 4
  for (int round = 1; round < width; round *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width / 2; i++) {
      std::tie(y[2 * i], y[2 * i + 1]) =
          vec::interleave2(x[i], x[i + width / 2]);
    }
    x = y;
  }
#pragma GCC unroll 16
  for (int i = 0; i < width; i++) {
    x[i].store(to[i]);
  }
}

// to (columns, rows) <- from (rows, columns), of numbers or of pairs
template <typename E>
void transpose(
    Matrix<const E> from,
    int64_t rows,
    int64_t columns,
    Matrix<E> to) {
  using T = std::conditional_t<kGroup<E> == 2, float, E>;
  constexpr int64_t width = Vectorized<T>::size();
  const Matrix<const T> x{
      reinterpret_cast<const T*>(from.data), from.stride / kGroup<E>};
  const Matrix<T> y{reinterpret_cast<T*>(to.data), to.stride / kGroup<E>};
  for (int64_t r = 0; r < rows; r += width) {
    for (int64_t c = 0; c < columns; c += width) {
      if (r + width <= rows && c + width <= columns) {
        transpose_square(x.from(r, c), y.from(c, r));
        continue;
      }
      for (int64_t i = r; i < std::min(r + width, rows); i++) {
        for (int64_t j = c; j < std::min(c + width, columns); j++) {
          // A pair is not a float, so its bytes are copied.
          std::memcpy(
              to[j] + i * kGroup<E>, from[i] + j * kGroup<E>, sizeof(T));
        }
      }
    }
  }
}

template <typename scalar_t>
Matrix<const scalar_t> matrix(const Tensor& t) {
  return {t.const_data_ptr<scalar_t>(), t.size(1)};
}

// Whether all inputs are read in place.
template <typename scalar_t, typename E>
constexpr bool kInPlace = std::is_same_v<scalar_t, E> && kGroup<E> == 1;

// Rows i.. of t as a left factor: in place where possible, else a copy.
template <typename scalar_t, typename E>
Matrix<const E> left_factor(
    const Tensor& t,
    int64_t i,
    int64_t rows,
    Matrix<E> copy) {
  const auto from = matrix<scalar_t>(t).from(i);
  const int64_t columns = t.size(1);
  if constexpr (std::is_same_v<scalar_t, E>) {
    if (columns % kGroup<E> == 0) {
      return from;
    }
  }
  for (const auto r : c10::irange(rows)) {
    convert(from[r], copy[r], columns);
    fill_pair(copy[r], columns);
  }
  return copy;
}

// The same as a right factor. Pairs are always copied.
template <typename scalar_t, typename E>
Matrix<const E> right_factor(
    const Tensor& t,
    int64_t i,
    int64_t rows,
    Matrix<E> copy) {
  if constexpr (kGroup<E> == 2) {
    const auto from = matrix<scalar_t>(t).from(i);
    for (int64_t r = 0; r < rows; r += 2) {
      const int64_t count = std::min<int64_t>(2, rows - r);
      vec::pack_vnni2(from[r], copy[r / 2], from.stride, count, t.size(1));
    }
    return copy;
  } else {
    return left_factor<scalar_t>(t, i, rows, copy);
  }
}

// How far apart the rows of a right factor's copy lie: whole cache lines.
template <typename E>
int64_t right_row(int64_t columns) {
  return kGroup<E> * round_up<int64_t>(columns, 16);
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
