// bfloat16 in pairs. A right factor has the numbers of two rows in turns, since
// one instruction multiplies and adds neighbours:
//
//   a0 a1 a2 ...
//   b0 b1 b2 ...    ->    a0 b0 a1 b1 a2 b2 ...
//   c0 c1 c2 ...          c0 d0 c1 d1 c2 d2 ...
//   d0 d1 d2 ...
//
// A left factor stays in rows. Where their length is odd, a zero follows.
#pragma once

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>
#if defined(CPU_CAPABILITY_AVX512)
#include <cpuinfo.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <type_traits>

namespace at::native::attn_tile {

// For every CPU capability its own copy, as in at::vec.
inline namespace CPU_CAPABILITY {

using vec::Vectorized;
using vec::VectorizedN;

// E is what a product reads: double, float, or bfloat16, which lies in pairs.
template <typename E>
constexpr int64_t kGroup = std::is_same_v<E, BFloat16> ? 2 : 1;

template <typename E>
using SumOf = at::opmath_type<E>;

#if defined(CPU_CAPABILITY_AVX512) && defined(CPUBLAS_BRGEMM_BF16BF16F32)
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

// Whether oneDNN multiplies pairs here, and fast. No function of ATen says what
// ONEDNN_MAX_CPU_ISA allows it, so one product is tried.
inline bool has_pair_products() {
#if defined(CPU_CAPABILITY_AVX512)
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

// oneDNN gets multiples of this many rows, columns and terms.
constexpr int64_t kWhole = 16;

// Rounds a number of terms up to whole pairs.
template <typename E>
int64_t even(int64_t size) {
  return round_up<int64_t>(size, kGroup<E>);
}

template <typename E>
void fill_pair(E* row, int64_t size) {
  std::fill(row + size, row + even<E>(size), E(0));
}

// Rounds the columns of a product in scratch up where only oneDNN multiplies:
// scratch has room for them.
template <typename E>
int64_t padded(int64_t columns) {
  return kGroup<E> == 2 ? round_up(columns, kWhole) : columns;
}

// The same numbers in another type.
template <typename To, typename From, int n>
auto converted(const VectorizedN<From, n>& x) {
  constexpr int count = n * Vectorized<From>::size() / Vectorized<To>::size();
  return vec::convert<To, count, From, n>(x);
}

// to <- the numbers of two rows, x and y, in turns
template <typename E>
void store_pairs(
    const VectorizedN<E, 1>& x,
    const VectorizedN<E, 1>& y,
    E* to) {
  const auto low = converted<float>(x), high = converted<float>(y);
  for (int i = 0; i < 2; i++) {
    // A bfloat16 is the upper half of the float of the same value.
    const Vectorized<int32_t> half(0xffff), shift(16);
    const auto lower = (vec::cast<int32_t>(low[i]) >> shift) & half;
    const auto pairs = lower | vec::cast<int32_t>(high[i]);
    pairs.store(to + i * Vectorized<E>::size());
  }
}

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
