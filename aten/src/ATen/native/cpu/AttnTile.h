// The parts of attn's CPU kernels: tanh, and the product of a tile.
#pragma once

#include <ATen/Context.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/native/cpu/AttnPairs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace at::native::attn_tile {

inline namespace CPU_CAPABILITY {

// coefficients[0] + x * (coefficients[1] + x * ...)
template <typename T, size_t terms>
inline Vectorized<T> horner(
    const Vectorized<T>& x,
    const std::array<T, terms>& coefficients) {
  Vectorized<T> sum(coefficients[terms - 1]);
#pragma GCC unroll 20
  for (int i = static_cast<int>(terms) - 2; i >= 0; i--) {
    sum = vec::fmadd(sum, x, Vectorized<T>(coefficients[i]));
  }
  return sum;
}

// 1 / 2!, 1 / 3!, ...: exp(r) = 1 + r + r^2 (1 / 2! + r / 3! + ...).
template <typename T, int terms>
constexpr std::array<T, terms> exp_series() {
  std::array<T, terms> result{};
  double factor = 1;
  for (int i = 0; i < terms; i++) {
    factor /= i + 2;
    result[i] = static_cast<T>(factor);
  }
  return result;
}

// tanh within two units in the last place, odd, and at most 1 in magnitude.
// Forward takes 1.4 to 2.6 times as long in float32 with Vectorized::tanh()
// (AMD EPYC Zen 4, D <= 128), and up to 1.3 times in float64.
//
// Where |x| >= 1: tanh(|x|) = 1 - 2z / (1 + z) with z = exp(-2|x|). The result
// is accurate near saturation, as the backward's 1 - attn^2 needs it.
// Where |x| < 1, with s = x^2: tanh(x) is Lambert's fraction
// x / (1 + s / (3 + s / (5 + ...))). With a / b = 3 + s / (5 + ...) that is
// x - x s b / (a + s b).
template <typename T>
inline Vectorized<T> tanh(const Vectorized<T>& x) {
  using Limits = std::numeric_limits<T>;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  using Vec = Vectorized<T>;
  // Beyond `saturation` tanh rounds to 1. The terms beyond `last` and `series`
  // add less than half a unit, for |x| < 1 and |r| <= ln(2) / 2.
  constexpr T saturation = T(0.4) * Limits::digits;
  constexpr int last = sizeof(T) == 4 ? 11 : 19;
  constexpr auto series = exp_series<T, sizeof(T) == 4 ? 6 : 12>();
  // ln(2) in two parts. The first has few bits: its multiples are exact.
  constexpr T high = T(0.693145751953125), low = T(1.428606820309417e-6);
  const Vec one(T(1));
  const Vec magnitude = x.abs();
  const Vec exponent = vec::clamp_max(magnitude, Vec(saturation)) * Vec(T(-2));
  const Vec n = (exponent * Vec(T(1.4426950408889634))).round();
  const Vec r = vec::fmadd(n, Vec(-low), vec::fmadd(n, Vec(-high), exponent));
  const Vec p = vec::fmadd(r * r, horner(r, series), r + one);
  const auto bits = (vec::convert_to_int_of_same_size(n) +
                     Vectorized<Int>(Limits::max_exponent - 1))
      << Vectorized<Int>(Limits::digits - 1);
  const Vec z = vec::cast<T>(bits) * p;
  const Vec s = magnitude * magnitude;
  Vec a = Vec(T(last)), b = one;
#pragma GCC unroll 10
  for (int odd = last - 2; odd >= 3; odd -= 2) {
    const Vec next = vec::fmadd(a, Vec(T(odd)), s * b);
    b = a;
    a = next;
  }
  const Vec small = magnitude < one, sb = s * b;
  const Vec top = Vec::blendv(z + z, magnitude * sb, small);
  const Vec bottom = Vec::blendv(one + z, a + sb, small);
  const Vec result = Vec::blendv(one, magnitude, small) - top / bottom;
  return result | (x & Vec(T(-0.0)));
}

// tanh for a result of 16 bits: x P(x^2) / Q(x^2), minimax in relative error up
// to |x| = 5, beyond which 16 bits have nothing between tanh and 1. The error
// is below 2^-13 of the result.
inline Vectorized<float> short_tanh(const Vectorized<float>& x) {
  using Vec = Vectorized<float>;
  constexpr std::array<float, 3> numerator{
      9.99997954e-1f, 1.16619779e-1f, 1.63725776e-3f};
  constexpr std::array<float, 4> denominator{
      1.f, 4.49936891e-1f, 1.83046251e-2f, 6.44719007e-5f};
  const Vec bounded = vec::clamp(x, Vec(-5), Vec(5));
  const Vec s = bounded * bounded;
  const Vec top = bounded * horner(s, numerator);
#if defined(CPU_CAPABILITY_AVX512)
  // A division of 14 bits is enough, and much faster.
  return top * Vec(_mm512_rcp14_ps(horner(s, denominator)));
#else
  return top / horner(s, denominator);
#endif
}

// A matrix whose rows, of numbers or of pairs, begin `stride` elements apart.
template <typename E>
struct Matrix {
  E* data;
  int64_t stride;
  Matrix from(int64_t i, int64_t j = 0) const {
    return {data + i * stride + j, stride};
  }
  E* operator[](int64_t i) const {
    return data + i * stride;
  }
  operator Matrix<const E>() const {
    return {data, stride};
  }
};

// The most terms of one sum: longer ones lose accuracy. Sums of a single vector
// of columns are shorter, since a BLAS sums few columns in many parts, too.
constexpr int64_t kDepth = 256, kNarrowDepth = 16;

// The most columns of one call of oneDNN: wider products compile for longer.
constexpr int64_t kWidth = 256;

// c = a @ b, or c += a @ b if `add`, where a is (m, depth) and b (depth, n).
// The depth of pairs is even.
template <typename E>
struct Gemm {
  int64_t m, n, depth;
  Matrix<const E> a, b;
  Matrix<SumOf<E>> c;
  bool add;

  // The part with this many rows, columns and terms from (i, j, p).
  Gemm part(
      int64_t i,
      int64_t rows,
      int64_t j,
      int64_t columns,
      int64_t p,
      int64_t terms) const {
    constexpr int64_t group = kGroup<E>;
    const auto right = b.from(p / group, j * group);
    const bool more = add || p > 0;
    return {rows, columns, terms, a.from(i, p), right, c.from(i, j), more};
  }
};

// The product of a tile, by oneDNN where it has one, else in vector registers:
// MKL, ATen's other product for a single thread, is slow on AMD's processors
// (at best 53 GFLOP/s in float64 on Zen 5, these loops 110). Tiles that begin
// at a cache line are up to four times as fast.
template <typename E>
class Product {
 public:
  Product() {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
    brgemm_ = kGroup<E> == 2 ||
        (std::is_same_v<E, float> && at::hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn());
#endif
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (kGroup<E> == 2) {
      // Other code in this thread configures AMX for itself.
      cpublas::brgemm_release();
    }
  }

  void operator()(const Gemm<E>& g) const {
    for (int64_t i = 0; i < g.m && g.depth == 0 && !g.add; i++) {
      // A product without terms is zero.
      std::fill_n(g.c[i], g.n, T(0));
    }
    for (int64_t p = 0, terms = 0; p < g.depth; p += terms) {
      terms = piece(g.depth - p, kDepth);
      for (int64_t j = 0, columns = 0; j < g.n; j += columns) {
        columns = piece(g.n - j, kWidth);
        for (int64_t i = 0, rows = 0; i < g.m; i += rows) {
          rows = piece(g.m - i, g.m);
          tile(g.part(i, rows, j, columns, p, terms));
        }
      }
    }
  }

 private:
  using T = SumOf<E>;
  using Vec = Vectorized<T>;

  // How many of `size` rows, columns or terms to take at once. In every thread
  // oneDNN compiles a kernel for each shape and keeps it. Many shapes would
  // fill the memory, so oneDNN gets multiples of kWhole. The rest of pairs, for
  // which there is no register tile, is taken in powers of two.
  int64_t piece(int64_t size, int64_t limit) const {
    if (!brgemm_ || size >= kWhole) {
      return std::min(brgemm_ ? size / kWhole * kWhole : size, limit);
    }
    int64_t power = kGroup<E> == 1 ? size : kWhole / 2;
    while (power > size) {
      power /= 2;
    }
    return power;
  }

  void tile(const Gemm<E>& g) const {
    constexpr bool pairs = kGroup<E> == 2;
    if constexpr (!std::is_same_v<E, double>) {
      const bool whole =
          g.m % kWhole == 0 && g.n % kWhole == 0 && g.depth % kWhole == 0;
      if (brgemm_ && (whole || pairs)) {
        return cpublas::brgemm(
            g.m,
            g.n,
            g.depth,
            g.a.stride,
            g.b.stride / kGroup<E>,
            g.c.stride,
            g.add,
            g.a.data,
            g.b.data,
            g.c.data,
            pairs);
      }
    }
    if constexpr (!pairs) {
      strips<kVectors>(g);
    }
  }

  // The vectors of columns in a strip. Six rows of sums, one row of b and one
  // broadcast element fill the registers of AVX2 and AVX-512.
#if defined(CPU_CAPABILITY_AVX2)
  static constexpr int kVectors = 2;
#else
  static constexpr int kVectors = 4;
#endif

  // Strips of this many vectors of columns, and narrower ones for the rest.
  template <int vectors>
  static void strips(const Gemm<E>& g) {
    constexpr int64_t width = vectors * Vec::size();
    int64_t j = 0;
    for (; vectors > 1 ? j + width <= g.n : j < g.n; j += width) {
      const int64_t columns = std::min(width, g.n - j);
      strip<vectors, 6>(g.part(0, g.m, j, columns, 0, g.depth));
    }
    if constexpr (vectors > 1) {
      strips<vectors / 2>(g.part(0, g.m, j, g.n - j, 0, g.depth));
    }
  }

  // Sums begin at zero and are added to c last: short sums err less than a long
  // one. A single vector may be filled in part. g is a copy, so that its
  // numbers stay in registers.
  template <int vectors, int rows>
  static void strip(const Gemm<E> g) {
    constexpr int64_t width = Vec::size();
    const int64_t count = vectors > 1 ? width : std::min(g.n, width);
    const auto load = [&](const T* from) {
      return count == width ? Vec::loadu(from) : Vec::loadu(from, count);
    };
    int64_t i = 0;
    for (; i + rows <= g.m; i += rows) {
      Vec sum[rows][vectors], total[rows][vectors], right[vectors];
      const auto each = [](const auto& f) {
#pragma GCC unroll 8
        for (int x = 0; x < rows; x++) {
#pragma GCC unroll 8
          for (int y = 0; y < vectors; y++) {
            f(x, y);
          }
        }
      };
      each([&](int x, int y) { sum[x][y] = total[x][y] = Vec(T(0)); });
#pragma GCC unroll 1
      for (int64_t p = 0; p < g.depth; p++) {
#pragma GCC unroll 8
        for (int y = 0; y < vectors; y++) {
          right[y] = load(g.b[p] + y * width);
        }
        each([&](int x, int y) {
          sum[x][y] = vec::fmadd(Vec(g.a[i + x][p]), right[y], sum[x][y]);
        });
        if (vectors == 1 && p % kNarrowDepth == kNarrowDepth - 1) {
          each([&](int x, int y) {
            total[x][y] = total[x][y] + sum[x][y];
            sum[x][y] = Vec(T(0));
          });
        }
      }
      each([&](int x, int y) {
        T* to = g.c[i + x] + y * width;
        const Vec all = vectors > 1 ? sum[x][y] : total[x][y] + sum[x][y];
        (g.add ? all + load(to) : all).store(to, count);
      });
    }
    if constexpr (rows > 1) {
      strip<vectors, rows / 2>(g.part(i, g.m - i, 0, g.n, 0, g.depth));
    }
  }

  bool brgemm_ = false;
};

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
