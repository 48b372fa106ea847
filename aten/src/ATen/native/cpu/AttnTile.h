// What the CPU kernels of attn are made of: tanh, and the product of a tile.
#pragma once

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#include <cpuinfo.h>

#include <algorithm>
#include <array>
#include <exception>

namespace at::native::attn_tile {

// For every CPU capability its own copy, as in at::vec.
inline namespace CPU_CAPABILITY {

using vec::Vectorized;

// Minimax polynomials in relative error, by Remez's algorithm, lowest power
// first:
// exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2, and, with s = x^2,
// tanh(x) = x + x s Q(s) for |x| <= 1.
template <typename T>
struct TanhConstants;

template <>
struct TanhConstants<float> {
  using Int = int32_t;
  static constexpr Int mantissa_bits = 23, exponent_bias = 127;
  static constexpr float saturation = 10, ln2_high = 0.693145752f,
                         ln2_low = 1.42860677e-6f;
  static constexpr std::array<float, 5> exp{
      4.99999934e-1f,
      1.66665201e-1f,
      4.16683942e-2f,
      8.36878038e-3f,
      1.38144664e-3f};
  static constexpr std::array<float, 8> tanh{
      -3.33333309e-1f,
      1.33332299e-1f,
      -5.39548195e-2f,
      2.17890995e-2f,
      -8.5999108e-3f,
      3.0796017e-3f,
      -8.39259279e-4f,
      1.20455137e-4f};
};

template <>
struct TanhConstants<double> {
  using Int = int64_t;
  static constexpr Int mantissa_bits = 52, exponent_bias = 1023;
  static constexpr double saturation = 20, ln2_high = 0.69314718036912382,
                          ln2_low = 1.9082149292705877e-10;
  static constexpr std::array<double, 11> exp{
      0.5,
      1.6666666666666684e-1,
      4.1666666666666089e-2,
      8.3333333333169171e-3,
      1.3888888889117262e-3,
      1.984126989668091e-4,
      2.480158692460648e-5,
      2.7557234558836864e-6,
      2.7557582795284779e-7,
      2.5112144470948974e-8,
      2.0826536152603364e-9};
  static constexpr std::array<double, 17> tanh{
      -3.3333333333333332e-1,
      1.333333333333311e-1,
      -5.3968253968124398e-2,
      2.186948853260433e-2,
      -8.8632354739504907e-3,
      3.5921274718049162e-3,
      -1.455830482325028e-3,
      5.9000811406533605e-4,
      -2.3905854716629743e-4,
      9.6721408118932843e-5,
      -3.8871558689315564e-5,
      1.5262933806250688e-5,
      -5.6348508023326191e-6,
      1.8277190921847689e-6,
      -4.7073394189462804e-7,
      8.2593757576623761e-8,
      -7.2024826597240886e-9};
};

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

// tanh(|x|) = 1 - 2z / (1 + z) with z = exp(-2|x|): near saturation only the
// subtraction rounds, which the backward's 1 - attn^2 needs. Small x take the
// odd polynomial, which is exact for +-0 and denormals.
template <typename T>
inline Vectorized<T> tanh(const Vectorized<T>& x) {
  using C = TanhConstants<T>;
  using Vec = Vectorized<T>;
  const Vec one(T(1));
  const Vec magnitude = x.abs();
  const Vec exponent =
      vec::clamp_max(magnitude, Vec(C::saturation)) * Vec(T(-2));
  const Vec n = (exponent * Vec(T(1.4426950408889634))).round();
  Vec r = vec::fmadd(n, Vec(-C::ln2_high), exponent);
  r = vec::fmadd(n, Vec(-C::ln2_low), r);
  const Vec p = vec::fmadd(r * r, horner(r, C::exp), r + one);
  const auto bits = (vec::convert_to_int_of_same_size(n) +
                     Vectorized<typename C::Int>(C::exponent_bias))
      << Vectorized<typename C::Int>(C::mantissa_bits);
  const Vec z = vec::cast<T>(bits) * p;
  const Vec large = one - (z + z) / (one + z);
  const Vec s = magnitude * magnitude;
  const Vec small = vec::fmadd(magnitude * s, horner(s, C::tanh), magnitude);
  const Vec result = Vec::blendv(large, small, magnitude < one);
  return result | (x & Vec(T(-0.0)));
}

// 1 / x to about 14 bits or better.
inline Vectorized<float> short_reciprocal(const Vectorized<float>& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_rcp14_ps(x);
#else
  return Vectorized<float>(1) / x;
#endif
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
  return bounded * horner(s, numerator) *
      short_reciprocal(horner(s, denominator));
}

// tanh for a result of this type.
template <typename scalar_t, typename T>
inline Vectorized<T> tanh_of(const Vectorized<T>& x) {
  if constexpr (sizeof(scalar_t) == 2) {
    return short_tanh(x);
  } else {
    return tanh(x);
  }
}

// Numbers that one sum takes at most: a chain of many more errs more than the
// sums of its parts. A BLAS sums few columns in many parts at once.
constexpr int64_t kDepth = 256, kNarrow = 4, kNarrowDepth = 16;

// Columns of one call of oneDNN, which compiles wider products for longer, and
// what its shapes are multiples of.
constexpr int64_t kWidth = 256, kWhole = 16;

// E is what a product reads: double, float, or bfloat16. The right factor of
// bfloat16 lies in pairs that are neighbours in the summed dimension.
template <typename E>
constexpr int64_t kGroup = std::is_same_v<E, BFloat16> ? 2 : 1;

template <typename E>
using SumOf = at::opmath_type<E>;

// Rows of numbers, or of pairs, that lie `row` elements apart.
template <typename E>
struct Matrix {
  E* data;
  int64_t row;
  Matrix from(int64_t i, int64_t j = 0) const {
    return {data + i * row + j, row};
  }
  E* operator[](int64_t i) const {
    return data + i * row;
  }
  operator Matrix<const E>() const {
    return {data, row};
  }
};

// Whether oneDNN multiplies pairs of bfloat16 by instructions for it. No
// function of ATen says what it may use, so one product is tried.
inline bool has_pair_products() {
#if defined(CPU_CAPABILITY_AVX512) && defined(CPUBLAS_BRGEMM_BF16BF16F32)
  static const bool works = [] {
    const std::array<BFloat16, 256> zeros{};
    std::array<float, 256> sums;
    try {
      cpublas::brgemm(
          16, 16, 16, 16, 16, 16, false, zeros.data(), zeros.data(), &sums[0]);
      cpublas::brgemm_release();
      return cpuinfo_initialize() && cpuinfo_has_x86_avx512bf16();
    } catch (const std::exception&) {
      return false;
    }
  }();
  return works && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// The product of a tile, by oneDNN where it has one, else in vector registers.
// Tiles that begin at a line of the cache are up to four times as fast.
template <typename E>
class Product {
 public:
  using T = SumOf<E>;

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
      // AMX: what else runs in this thread configures its own tiles.
      cpublas::brgemm_release();
    }
  }

  // c (m, n) = a (m, depth) @ b (depth, n), added to c or replacing it. The
  // depth of pairs is even.
  void operator()(
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) const {
    for (int64_t i = 0; i < m && depth == 0 && !add; i++) {
      // A product without terms is zero.
      std::fill_n(c[i], n, T(0));
    }
    if (n > kNarrow || kGroup<E> == 2 || depth <= kNarrowDepth) {
      return in_parts(kDepth, m, n, depth, a, b, c, add);
    }
    // Short sums meet each other before they meet c.
    constexpr int64_t most = 64;
    std::array<T, most * kNarrow> data;
    const Matrix<T> sums{data.data(), n};
    for (int64_t i = 0; i < m; i += most) {
      const int64_t rows = std::min(most, m - i);
      in_parts(kNarrowDepth, rows, n, depth, a.from(i), b, sums, false);
      for (int64_t x = 0; x < rows * n; x++) {
        T& to = c[i + x / n][x % n];
        to = data[x] + (add ? to : T(0));
      }
    }
  }

 private:
  void in_parts(
      int64_t most,
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) const {
    for (int64_t p = 0; p < depth && m > 0; p += most, add = true) {
      const int64_t terms = std::min(most, depth - p);
      for (int64_t j = 0; j < n; j += kWidth) {
        const auto right = b.from(p / kGroup<E>, j * kGroup<E>);
        const int64_t columns = std::min(kWidth, n - j);
        part(m, columns, terms, a.from(0, p), right, c.from(0, j), add);
      }
    }
  }

  // oneDNN compiles every shape that it meets and keeps it, in every thread. So
  // few are left for it: else a program whose sizes change would fill the
  // memory with kernels.
  void part(
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) const {
    if (!brgemm_) {
      return tile(m, n, depth, a, b, c, add);
    }
    for (int64_t i = 0, rows = 0; i < m; i += rows) {
      rows = piece(m - i);
      for (int64_t j = 0, columns = 0; j < n; j += columns) {
        columns = piece(n - j);
        for (int64_t p = 0, terms = 0; p < depth; p += terms) {
          terms = piece(depth - p);
          const auto right = b.from(p / kGroup<E>, j * kGroup<E>);
          const bool more = add || p > 0;
          tile(rows, columns, terms, a.from(i, p), right, c.from(i, j), more);
        }
      }
    }
  }

  // The whole multiple in so many rows, columns or terms, or a part of the
  // rest.
  static int64_t piece(int64_t size) {
    if (size >= kWhole || kGroup<E> == 1) {
      return size >= kWhole ? size / kWhole * kWhole : size;
    }
    int64_t power = kWhole / 2;
    while (power > size) {
      power /= 2;
    }
    return power;
  }

  void tile(
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) const {
    constexpr int64_t group = kGroup<E>;
    if constexpr (!std::is_same_v<E, double>) {
      const bool whole =
          m % kWhole == 0 && n % kWhole == 0 && depth % kWhole == 0;
      if (brgemm_ && (whole || group == 2)) {
        return cpublas::brgemm(
            m,
            n,
            depth,
            a.row,
            b.row / group,
            c.row,
            add,
            a.data,
            b.data,
            c.data,
            group == 2);
      }
    }
    if constexpr (group == 1) {
      strips<kVectors>(m, n, depth, a, b, c, add);
    }
  }

  using Vec = Vectorized<T>;

  // Six rows of these vectors of sums, one row of b and one broadcast element
  // fill the registers of AVX2 and AVX-512.
#if defined(CPU_CAPABILITY_AVX2)
  static constexpr int kVectors = 2;
#else
  static constexpr int kVectors = 4;
#endif

  // Whole strips of some vectors of columns, and narrower ones for the rest.
  template <int vectors>
  static void strips(
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) {
    constexpr int64_t width = vectors * Vec::size();
    int64_t j = 0;
    for (; vectors > 1 ? j + width <= n : j < n; j += width) {
      strip_of<vectors, 6>(m, n - j, depth, a, b.from(0, j), c.from(0, j), add);
    }
    if constexpr (vectors > 1) {
      strips<vectors / 2>(m, n - j, depth, a, b.from(0, j), c.from(0, j), add);
    }
  }

  // The sum begins at zero and meets c last: two short sums err less than a
  // long one. A single vector may have less than its size of columns.
  template <int vectors, int rows>
  static void strip_of(
      int64_t m,
      int64_t n,
      int64_t depth,
      Matrix<const E> a,
      Matrix<const E> b,
      Matrix<T> c,
      bool add) {
    constexpr int64_t width = Vec::size();
    const int64_t count = vectors > 1 ? width : std::min(n, width);
    const auto load = [&](const T* from) {
      return count == width ? Vec::loadu(from) : Vec::loadu(from, count);
    };
    int64_t i = 0;
    for (; i + rows <= m; i += rows) {
      Vec sum[rows][vectors], right[vectors];
      const auto each = [&](const auto& f) {
#pragma GCC unroll 8
        for (int x = 0; x < rows; x++) {
#pragma GCC unroll 8
          for (int y = 0; y < vectors; y++) {
            f(sum[x][y], x, y);
          }
        }
      };
      each([](Vec& to, int, int) { to = Vec(T(0)); });
#pragma GCC unroll 1
      for (int64_t p = 0; p < depth; p++) {
#pragma GCC unroll 8
        for (int y = 0; y < vectors; y++) {
          right[y] = load(b[p] + y * width);
        }
        each([&](Vec& to, int x, int y) {
          to = vec::fmadd(Vec(a[i + x][p]), right[y], to);
        });
      }
      each([&](Vec& from, int x, int y) {
        T* to = c[i + x] + y * width;
        (add ? from + load(to) : from).store(to, count);
      });
    }
    if constexpr (rows > 1) {
      strip_of<vectors, rows / 2>(
          m - i, n, depth, a.from(i), b, c.from(i), add);
    }
  }

  bool brgemm_ = false;
};

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
