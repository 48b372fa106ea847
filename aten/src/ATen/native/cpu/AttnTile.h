// What the CPU kernels of attn are made of: tanh and small matrix products, in
// vector registers.
#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>
#include <c10/util/bit_cast.h>

#include <algorithm>
#include <array>

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

// Vectors in a row of the register tile, and its rows: six rows of them, one
// row of B and one broadcast element fill the registers of AVX2 and AVX-512.
#if defined(CPU_CAPABILITY_AVX2)
constexpr int kPanelVectors = 2;
#else
constexpr int kPanelVectors = 4;
#endif
constexpr int kTileRows = 6;

// Units that one sum takes at most: a chain of many more errs more than the
// sums of its parts.
constexpr int64_t kDepth = 256;

template <typename T>
constexpr int64_t kPanel = kPanelVectors * Vectorized<T>::size();

template <typename T>
inline int64_t padded(int64_t columns) {
  constexpr int64_t width = Vectorized<T>::size();
  return (columns + width - 1) / width * width;
}

// What the products read: a number, or for bfloat16 two that are neighbours in
// the summed dimension, which one instruction multiplies and adds in float.
struct Pair {
  BFloat16 first, second;
};

template <typename U>
struct Unit {
  using Sum = U;
  static constexpr int64_t group = 1;
};

template <>
struct Unit<Pair> {
  using Sum = float;
  static constexpr int64_t group = 2;
};

#if defined(CPU_CAPABILITY_AVX512) && defined(__GNUC__)
// AVX512 kernels are compiled without avx512bf16, so no intrinsic.
inline bool has_pair_products() {
  static const bool supported = __builtin_cpu_supports("avx512bf16");
  return supported;
}

inline Vectorized<float> multiply_add(
    Pair left,
    const Vectorized<float>& right,
    const Vectorized<float>& sum) {
  const Vectorized<float> pairs(c10::bit_cast<float>(left));
  __m512 result = sum;
  __asm__("vdpbf16ps %2, %1, %0"
          : "+v"(result)
          : "v"(__m512(pairs)), "v"(__m512(right)));
  return result;
}

// Pairs of two rows, of which bfloat16 holds every number.
inline void store_pairs(
    const Vectorized<float>& first,
    const Vectorized<float>& second,
    Pair* pairs) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
  const __m512i high = _mm512_castps_si512(second);
  _mm512_storeu_si512(pairs, _mm512_or_si512(low, high));
}

// Two rows rounded to bfloat16, `row` apart, and pairs of them. Denormals
// become zero, as which the product of pairs takes them.
inline void store_rounded(
    const Vectorized<float>& first,
    const Vectorized<float>& second,
    BFloat16* rows,
    int64_t row,
    Pair* pairs) {
  __m512i rounded;
  __asm__("vcvtne2ps2bf16 %2, %1, %0"
          : "=v"(rounded)
          : "v"(__m512(second)), "v"(__m512(first)));
  const __m512i order = _mm512_setr_epi32(
      0x100000,
      0x110001,
      0x120002,
      0x130003,
      0x140004,
      0x150005,
      0x160006,
      0x170007,
      0x180008,
      0x190009,
      0x1a000a,
      0x1b000b,
      0x1c000c,
      0x1d000d,
      0x1e000e,
      0x1f000f);
  const auto store_row = [](__m256i half, BFloat16* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
  };
  store_row(_mm512_castsi512_si256(rounded), rows);
  store_row(_mm512_extracti64x4_epi64(rounded, 1), rows + row);
  _mm512_storeu_si512(pairs, _mm512_permutexvar_epi16(order, rounded));
}
#else
inline bool has_pair_products() {
  return false;
}
#endif

template <typename T>
inline Vectorized<T>
multiply_add(T left, const Vectorized<T>& right, const Vectorized<T>& sum) {
  return vec::fmadd(Vectorized<T>(left), right, sum);
}

// Any strides, so that a transpose costs nothing.
template <typename U>
struct Left {
  const U* data;
  int64_t row, column;
};

// Panels of kPanel columns, `panel` units apart: a row-major matrix has
// panel = kPanel, one packed by panels has row = kPanel. Rows are padded.
template <typename U>
struct Right {
  const U* data;
  int64_t row, panel = kPanel<typename Unit<U>::Sum>;
};

// The sum begins at zero and meets c last: two short sums err less than a long
// one.
template <int rows, int vectors, typename U, typename T>
inline void
tile(int64_t depth, Left<U> a, Right<U> b, T* c, int64_t c_row, bool add) {
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
      right[j] = Vec::loadu(b.data + p * b.row + j * width);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
      const U left = a.data[i * a.row + p * a.column];
#pragma GCC unroll 8
      for (int j = 0; j < vectors; j++) {
        sum[i][j] = multiply_add(left, right[j], sum[i][j]);
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

template <int vectors, typename U, typename T>
inline void panel(
    int64_t m,
    int64_t depth,
    Left<U> a,
    Right<U> b,
    T* c,
    int64_t c_row,
    bool add) {
  for (; m >= kTileRows; m -= kTileRows) {
    tile<kTileRows, vectors>(depth, a, b, c, c_row, add);
    a.data += kTileRows * a.row;
    c += kTileRows * c_row;
  }
  switch (m) {
    case 5:
      return tile<5, vectors>(depth, a, b, c, c_row, add);
    case 4:
      return tile<4, vectors>(depth, a, b, c, c_row, add);
    case 3:
      return tile<3, vectors>(depth, a, b, c, c_row, add);
    case 2:
      return tile<2, vectors>(depth, a, b, c, c_row, add);
    case 1:
      return tile<1, vectors>(depth, a, b, c, c_row, add);
    default:
      return;
  }
}

// c (m, n) = a (m, depth) @ b (depth, n), added to c or replacing it; depth
// counts units. Reads and writes padded(n) columns of b and c.
template <typename U, typename T>
inline void product(
    int64_t m,
    int64_t n,
    int64_t depth,
    Left<U> a,
    Right<U> b,
    T* c,
    int64_t c_row,
    bool add) {
  for (; depth > kDepth; depth -= kDepth, add = true) {
    product(m, n, kDepth, a, b, c, c_row, add);
    a.data += kDepth * a.column;
    b.data += kDepth * b.row;
  }
  constexpr int64_t width = Vectorized<T>::size();
  for (int64_t j = 0; j < n; j += kPanel<T>, b.data += b.panel) {
    switch (std::min<int64_t>(kPanelVectors, padded<T>(n - j) / width)) {
      case 1:
        panel<1>(m, depth, a, b, c + j, c_row, add);
        break;
      case 2:
        panel<2>(m, depth, a, b, c + j, c_row, add);
        break;
#if !defined(CPU_CAPABILITY_AVX2)
      case 3:
        panel<3>(m, depth, a, b, c + j, c_row, add);
        break;
      default:
        panel<4>(m, depth, a, b, c + j, c_row, add);
#endif
    }
  }
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
