// The parts of attn's CPU kernels: tanh, and the product of a tile.
#pragma once

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/ceil_div.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#if defined(CPU_CAPABILITY_AVX512)
#include <cpuinfo.h>

#include <exception>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace at::native::attn_tile {

// For every CPU capability its own copy, as in at::vec.
inline namespace CPU_CAPABILITY {

using vec::Vectorized;
using vec::VectorizedN;

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

// tanh within two units in the last place, odd, and at most 1 in magnitude. It
// takes less time than Vectorized::tanh(), which is Sleef's, and on AMD's
// processors than MKL's, which torch.tanh calls.
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
  // NaN fails this comparison, so it is never converted to an integer.
  const Vec large = magnitude >= one;
  const Vec bounded =
      Vec::blendv(Vec(saturation), magnitude, magnitude < Vec(saturation));
  const Vec exponent = bounded * Vec(T(-2));
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
  const Vec sb = s * b;
  const Vec top = Vec::blendv(magnitude * sb, z + z, large);
  const Vec bottom = Vec::blendv(a + sb, one + z, large);
  const Vec result = Vec::blendv(magnitude, one, large) - top / bottom;
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

// A matrix whose rows begin `stride` elements apart.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride;
  Matrix from(int64_t i, int64_t j = 0) const {
    return {data + i * stride + j, stride};
  }
  T* operator[](int64_t i) const {
    return data + i * stride;
  }
  operator Matrix<const T>() const {
    return {data, stride};
  }
};

// How many rows of operand B are interleaved: two of bfloat16, which is in VNNI
// layout (a0 b0 a1 b1 ...), since one instruction adds two products.
template <typename operand_t>
constexpr int64_t kVnni = std::is_same_v<operand_t, BFloat16> ? 2 : 1;

#if defined(CPU_CAPABILITY_AVX512) && defined(CPUBLAS_BRGEMM_BF16BF16F32)
constexpr bool kHasVnni = true;

// Whether oneDNN multiplies bfloat16 here, and fast. No function of ATen says
// what ONEDNN_MAX_CPU_ISA allows, so one product is tried, once.
inline bool has_vnni_products() {
  if (!at::globalContext().userEnabledMkldnn()) {
    return false;
  }
  static const bool works = [] {
    if (!cpuinfo_initialize() || !cpuinfo_has_x86_avx512bf16()) {
      return false;
    }
    const std::array<BFloat16, 256> zeros{};
    std::array<float, 256> sums;
    try {
      cpublas::brgemm(
          16, 16, 16, 16, 16, 16, false, zeros.data(), zeros.data(), &sums[0]);
      cpublas::brgemm_release();
      return true;
    } catch (const std::exception&) { // ATen's, or oneDNN's own
      return false;
    }
  }();
  return works;
}
#else
constexpr bool kHasVnni = false;
inline bool has_vnni_products() {
  return false;
}
#endif

// The most rows of operand B in one sum, since longer ones lose accuracy. A
// BLAS sums one column in as many parts as a vector has numbers, so for few
// columns there are fewer: as many as keep its error, by measurement.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int64_t kTerms = 128, kNarrowTerms = 16;
#else
constexpr int64_t kTerms = 128, kNarrowTerms = 32;
#endif

// The most columns of one call: oneDNN compiles wider products for longer.
constexpr int64_t kWidth = 256;

// Of a product: a is (m, terms), b (terms, n) and c (m, n). All are product
// sizes.
struct Sizes {
  int64_t m, n, terms;
};

// c = a @ b, or c += a @ b if `add`.
//
// In vector registers, for float64: MKL, ATen's other product for a single
// thread, takes a slower path on AMD's processors.
static void register_product(
    Sizes s,
    Matrix<const double> a,
    Matrix<const double> b,
    Matrix<double> c,
    bool add) {
  using Vec = Vectorized<double>;
  // Eight vectors of sums fit into the registers of AVX2 and AVX-512.
  constexpr int64_t width = 16, vectors = width / Vec::size();
  constexpr int64_t rows = 8 / vectors;
  for (int64_t j = 0; j < s.n; j += width) {
    for (int64_t i = 0; i < s.m; i += rows) {
      Vec sum[rows][vectors], b_row[vectors];
      const auto each = [](const auto& f) {
#pragma GCC unroll 8
        for (int x = 0; x < rows; x++) {
#pragma GCC unroll 8
          for (int y = 0; y < vectors; y++) {
            f(x, y);
          }
        }
      };
      each([&](int x, int y) { sum[x][y] = Vec(0.); });
#pragma GCC unroll 1
      for (int64_t p = 0; p < s.terms; p++) {
#pragma GCC unroll 8
        for (int y = 0; y < vectors; y++) {
          b_row[y] = Vec::loadu(b[p] + j + y * Vec::size());
        }
        each([&](int x, int y) {
          sum[x][y] = vec::fmadd(Vec(a[i + x][p]), b_row[y], sum[x][y]);
        });
      }
      // Added last: short sums err less than a long one.
      each([&](int x, int y) {
        double* to = c[i + x] + j + y * Vec::size();
        (add ? sum[x][y] + Vec::loadu(to) : sum[x][y]).store(to);
      });
    }
  }
}

// The same by oneDNN, which in every thread compiles a kernel for each shape
// and keeps it. Where it is absent or off, brgemm() of float calls the BLAS.
template <typename operand_t>
void product(
    Sizes s,
    Matrix<const operand_t> a,
    Matrix<const operand_t> b,
    Matrix<at::opmath_type<operand_t>> c,
    bool add) {
  constexpr int64_t vnni = kVnni<operand_t>;
  const bool narrow = std::min(s.m, s.n) <= 16;
  const int64_t most = (narrow ? kNarrowTerms : kTerms) * vnni;
  for (int64_t p = 0; p < s.terms; p += most, add = true) {
    const int64_t terms = std::min(most, s.terms - p);
    const auto a_p = a.from(0, p), b_p = b.from(p / vnni);
    if constexpr (std::is_same_v<operand_t, double>) {
      register_product({s.m, s.n, terms}, a_p, b_p, c, add);
    } else {
      for (int64_t j = 0; j < s.n; j += kWidth) {
        const int64_t n = std::min(kWidth, s.n - j), ld = b_p.stride / vnni;
        // clang-format off
        cpublas::brgemm(s.m, n, terms, a_p.stride, ld, c.stride, add,
                        a_p.data, b_p.data + j * vnni, c.data + j, vnni == 2);
        // clang-format on
      }
    }
  }
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
