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
      9.99997952e-1f, 1.16617726e-1f, 1.63710909e-3f};
  constexpr std::array<float, 4> denominator{
      1.f, 4.49934814e-1f, 1.83038130e-2f, 6.44614905e-5f};
  const Vec bounded = vec::clamp(x, Vec(-5), Vec(5));
  const Vec s = bounded * bounded;
  return bounded * horner(s, numerator) *
      short_reciprocal(horner(s, denominator));
}

// The tile that one call of a product makes: what is done to it next finds it
// in the first cache.
constexpr int64_t kTileRows = 32, kPanel = 64;

// Numbers that one sum takes at most: a chain of many more errs more than the
// sums of its parts. A BLAS sums few columns in many parts at once.
constexpr int64_t kDepth = 256, kNarrow = 4, kNarrowDepth = 16;

// E is what a product reads: double, float, or bfloat16 in pairs that are
// neighbours in the summed dimension.
template <typename E>
constexpr int64_t kGroup = std::is_same_v<E, BFloat16> ? 2 : 1;

template <typename E>
using SumOf = at::opmath_type<E>;

// Columns of a tile, or terms of a sum, with the zeros that follow them.
template <typename E>
inline int64_t padded(int64_t size) {
  constexpr int64_t width = kGroup<E> * Vectorized<SumOf<E>>::size();
  return (size + width - 1) / width * width;
}

// Rows lie `row` elements apart.
template <typename E>
struct Left {
  const E* data;
  int64_t row;
};

// Panels of kPanel columns lie `panel` elements apart, and their rows, or pairs
// of rows with the two elements of each column together, `row`.
template <typename E>
struct Right {
  const E* data;
  int64_t row, panel;
};

// Whether oneDNN multiplies pairs of bfloat16, and the processor has
// instructions for it. ATen has no function that says so for processors without
// AMX, so one product is tried.
inline bool has_pair_products() {
#if defined(CPU_CAPABILITY_AVX512) && defined(CPUBLAS_BRGEMM_BF16BF16F32)
  if (cpublas::could_pack(kBFloat16)) {
    return true;
  }
  static const auto tried = [] {
    const std::array<BFloat16, 256> zeros{};
    std::array<float, 256> sums;
    try {
      cpublas::brgemm(
          16, 16, 16, 16, 16, 16, false, zeros.data(), zeros.data(), &sums[0]);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (at::globalContext().userEnabledMkldnn() && at::hasMKLDNN() &&
      cpuinfo_initialize() && cpuinfo_has_x86_avx512bf16()) {
    static const bool works = tried();
    return works;
  }
#endif
  return false;
}

// The product of a tile: by oneDNN where it has one, else in vector registers.
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

  // c (m, n) = a (m, depth) @ b (depth, n), added to c or replacing it. Reads
  // and writes whole vectors of b's and c's columns.
  void operator()(
      int64_t m,
      int64_t n,
      int64_t depth,
      Left<E> a,
      Right<E> b,
      T* c,
      int64_t c_row,
      bool add) const {
    // A product without terms is zero.
    for (int64_t i = 0; i < m && depth == 0 && !add; i++) {
      std::fill_n(c + i * c_row, padded<T>(n), T(0));
    }
    for (int64_t j = 0; j < n; j += kPanel, b.data += b.panel) {
      const int64_t columns = padded<T>(std::min(kPanel, n - j));
      for (int64_t i = 0; i < m; i += kTileRows) {
        const Left<E> rows{a.data + i * a.row, a.row};
        T* to = c + i * c_row + j;
        const int64_t count = std::min(kTileRows, m - i);
        if (n <= kNarrow && kGroup<E> == 1 && depth > kNarrowDepth) {
          narrow(count, columns, depth, rows, b, to, c_row, add);
        } else {
          in_parts(kDepth, count, columns, depth, rows, b, to, c_row, add);
        }
      }
    }
  }

 private:
  void in_parts(
      int64_t most,
      int64_t m,
      int64_t n,
      int64_t depth,
      Left<E> a,
      Right<E> b,
      T* c,
      int64_t c_row,
      bool add) const {
    for (int64_t p = 0; p < depth; p += most, add = true) {
      const E* right = b.data + p / kGroup<E> * b.row;
      tile(
          m,
          n,
          std::min(most, depth - p),
          {a.data + p, a.row},
          {right, b.row, 0},
          c,
          c_row,
          add);
    }
  }

  // Short sums, which meet each other before they meet c.
  void narrow(
      int64_t m,
      int64_t n,
      int64_t depth,
      Left<E> a,
      Right<E> b,
      T* c,
      int64_t c_row,
      bool add) const {
    std::array<T, kTileRows * kPanel> sums;
    in_parts(kNarrowDepth, m, n, depth, a, b, sums.data(), kPanel, false);
    for (int64_t i = 0; i < m; i++, c += c_row) {
      for (int64_t j = 0; j < n; j++) {
        c[j] = sums[i * kPanel + j] + (add ? c[j] : T(0));
      }
    }
  }

  void tile(
      int64_t m,
      int64_t n,
      int64_t depth,
      Left<E> a,
      Right<E> b,
      T* c,
      int64_t c_row,
      bool add) const {
    if constexpr (!std::is_same_v<E, double>) {
      if (brgemm_) {
        constexpr int64_t group = kGroup<E>;
        return cpublas::brgemm(
            m,
            n,
            depth,
            a.row,
            b.row / group,
            c_row,
            add,
            a.data,
            b.data,
            c,
            group == 2);
      }
    }
    if constexpr (kGroup<E> == 1) {
      constexpr int64_t width = Vectorized<T>::size();
      int64_t j = 0;
      for (; j + kVectors * width <= n; j += kVectors * width) {
        columns<kVectors>(m, depth, a, b.data + j, b.row, c + j, c_row, add);
      }
      for (; j < n; j += width) {
        columns<1>(m, depth, a, b.data + j, b.row, c + j, c_row, add);
      }
    }
  }

  // Six rows of these vectors of sums, one row of b and one broadcast element
  // fill the registers of AVX2 and AVX-512.
#if defined(CPU_CAPABILITY_AVX2)
  static constexpr int kVectors = 2;
#else
  static constexpr int kVectors = 4;
#endif

  template <int vectors>
  static void columns(
      int64_t m,
      int64_t depth,
      Left<E> a,
      const E* b,
      int64_t b_row,
      T* c,
      int64_t c_row,
      bool add) {
    const auto sweep = [&](auto rows) {
      for (; m >= rows; m -= rows, a.data += rows * a.row, c += rows * c_row) {
        registers<rows, vectors>(depth, a, b, b_row, c, c_row, add);
      }
    };
    sweep(std::integral_constant<int, 6>());
    sweep(std::integral_constant<int, 2>());
    sweep(std::integral_constant<int, 1>());
  }

  // The sum begins at zero and meets c last: two short sums err less than a
  // long one.
  template <int rows, int vectors>
  static void registers(
      int64_t depth,
      Left<E> a,
      const E* b,
      int64_t b_row,
      T* c,
      int64_t c_row,
      bool add) {
    using Vec = Vectorized<T>;
    constexpr int width = Vec::size();
    Vec sum[rows][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++) {
        sum[i][j] = Vec(T(0));
      }
    }
#pragma GCC unroll 1
    for (int64_t p = 0; p < depth; p++) {
      Vec right[vectors];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++) {
        right[j] = Vec::loadu(b + p * b_row + j * width);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; i++) {
        const Vec left(a.data[i * a.row + p]);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
          sum[i][j] = vec::fmadd(left, right[j], sum[i][j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++) {
        T* to = c + i * c_row + j * width;
        (add ? sum[i][j] + Vec::loadu(to) : sum[i][j]).store(to);
      }
    }
  }

  bool brgemm_ = false;
};

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
