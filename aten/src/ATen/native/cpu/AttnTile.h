// The parts of attn's CPU kernels: tanh, operands where they lie or in tiles,
// and the products of tiles.
#pragma once

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/cpu/vec/vec_half.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Unroll.h>
#if defined(CPU_CAPABILITY_AVX512)
#include <cpuinfo.h>

#include <exception>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

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

// tanh within 2.5 units in the last place, odd, and at most 1 in magnitude. It
// takes less time than Vectorized::tanh(), which is Sleef's, and on AMD's
// processors than MKL's, which torch.tanh calls.
//
// tanh(|x|) = m / (m + 2) with m = exp(2|x|) - 1. That is 2^n p + (2^n - 1)
// with 2|x| = n ln(2) + r and p = exp(r) - 1, which loses nothing where x is
// small.
template <typename T>
inline Vectorized<T> tanh(const Vectorized<T>& x) {
  using Limits = std::numeric_limits<T>;
  using Int = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  using Vec = Vectorized<T>;
  // Beyond `saturation` tanh rounds to 1. The terms beyond `series` add less
  // than half a unit, for |r| <= ln(2) / 2.
  constexpr T saturation = T(0.4) * Limits::digits;
  constexpr auto series = exp_series<T, sizeof(T) == 4 ? 6 : 12>();
  // Added to a number, `shift` rounds it: the integer is in the last bits.
  constexpr T shift = T(1.5) / Limits::epsilon();
  // ln(2) in two parts. The first has few bits: its multiples are exact.
  constexpr T high = T(0.693145751953125), low = T(1.428606820309417e-6);
  const Vec bounded = vec::clamp_max(x.abs(), Vec(saturation)); // or NaN
  const Vec exponent = bounded + bounded;
  const Vec shifted =
      vec::fmadd(exponent, Vec(T(1.4426950408889634)), Vec(shift));
  const Vec n = shifted - Vec(shift);
  const Vec r = vec::fmadd(n, Vec(-low), vec::fmadd(n, Vec(-high), exponent));
  const Vec p = vec::fmadd(r * r, horner(r, series), r);
  const auto bits =
      (vec::cast<Int>(shifted) + Vectorized<Int>(Limits::max_exponent - 1))
      << Vectorized<Int>(Limits::digits - 1);
  const Vec scale = vec::cast<T>(bits);
  const Vec m = vec::fmadd(scale, p, scale - Vec(T(1)));
  return m / (m + Vec(T(2))) | (x & Vec(T(-0.0)));
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

// Number (i, j) lies at data[i * row + j * column]. Most functions want columns
// side by side, or panels of them.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t row = 0, column = 1;
  Matrix from(int64_t i, int64_t j = 0) const {
    return {data + i * row + j * column, row, column};
  }
  Matrix transposed() const {
    return {data, column, row};
  }
  T* operator[](int64_t i) const {
    return data + i * row;
  }
  operator Matrix<const T>() const {
    return {data, row, column};
  }
};

// The matrices of a tensor (*, rows, columns) where they lie
template <typename T>
struct Operand {
  explicit Operand(const Tensor& t) {
    if (t.defined()) {
      using number = std::remove_const_t<T>;
      if constexpr (std::is_const_v<T>) {
        matrix = {t.const_data_ptr<number>(), t.stride(-2), t.stride(-1)};
      } else {
        matrix = {t.mutable_data_ptr<number>(), t.stride(-2), t.stride(-1)};
      }
      sizes = t.sizes().slice(0, t.dim() - 2);
      strides = t.strides();
    }
  }
  // Matrix b, from (i, j)
  Matrix<T> at(int64_t b, int64_t i, int64_t j = 0) const {
    Matrix<T> result = matrix.from(i, j);
    for (int64_t x = static_cast<int64_t>(sizes.size()) - 1; x >= 0; x--) {
      result.data += b % sizes[x] * strides[x];
      b /= sizes[x];
    }
    return result;
  }
  explicit operator bool() const {
    return matrix.data != nullptr;
  }
  Matrix<T> matrix;
  IntArrayRef sizes, strides;
};

// Brings x (rows, columns) closer: rows of heads lie apart, and processors
// foresee what lies side by side.
template <typename T>
void prefetch(Matrix<const T> x, int64_t rows, int64_t columns) {
#if defined(__GNUC__)
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += line) {
      __builtin_prefetch(x[r] + c, /*write*/ 0, /*beyond the first cache*/ 2);
    }
  }
#endif
}

// How many rows of a B operand are interleaved: vnni == 2 packs bfloat16 as
// oneDNN's products take it (a0 b0 a1 b1 ...).
template <typename operand_t>
constexpr int64_t kVnni = std::is_same_v<operand_t, BFloat16> ? 2 : 1;

// How many terms a product adds up: packed operands have zeros behind `count`.
template <typename operand_t>
int64_t padded(int64_t count) {
  return kVnni<operand_t> == 2 ? round_up<int64_t>(count, 32) : count;
}

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

// Rows and vectors of c that a product keeps in registers. Longer sums are
// added up in parts of kTerms, since they lose accuracy.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kRows = 6, kVectors = 4;
constexpr int64_t kTerms = 128;
#else
constexpr int kRows = 6, kVectors = 2;
constexpr int64_t kTerms = 64;
#endif

// Of a product: a is (m, terms), b (terms, n) and c (m, n).
struct Sizes {
  int64_t m, n, terms;
};

// A vector of numbers in the type of sums
template <typename T, typename From>
Vectorized<T> load_vector(const From* x) {
  if constexpr (std::is_same_v<T, From>) {
    return Vectorized<T>::loadu(x);
  } else {
    Vectorized<T> result;
    vec::load_to_float(x, result);
    return result;
  }
}

// c (rows, n) <- a @ b, or c + a @ b if `add`, where n fits into `vectors`. Few
// sums would wait for each other, so then every chain has terms of its own.
template <typename T, typename B, int rows, int vectors>
void block_product(
    int64_t n,
    int64_t terms,
    Matrix<const T> a,
    Matrix<const B> b,
    Matrix<T> c,
    bool add) {
  using Vec = Vectorized<T>;
  constexpr int size = Vec::size(), sums = rows * vectors;
  constexpr int chains = std::clamp(kRows * kVectors / sums, 1, 4);
  Vec sum[chains][sums];
  c10::ForcedUnroll<chains * sums>{}(
      [&](auto i) { sum[i / sums][i % sums] = Vec(T(0)); });
  const auto add_term = [&](auto chain, int64_t p) C10_ALWAYS_INLINE_ATTRIBUTE {
    Vec b_row[vectors];
    c10::ForcedUnroll<vectors>{}(
        [&](auto y) { b_row[y] = load_vector<T>(b[p] + y * size); });
    c10::ForcedUnroll<sums>{}([&](auto i) C10_ALWAYS_INLINE_ATTRIBUTE {
      const Vec number(a.data[i / vectors * a.row + p * a.column]);
      sum[chain][i] = vec::fmadd(number, b_row[i % vectors], sum[chain][i]);
    });
  };
  int64_t p = 0;
  for (; p + chains <= terms; p += chains) {
    c10::ForcedUnroll<chains>{}([&](auto i) { add_term(i, p + i); });
  }
  for (; p < terms; p++) {
    add_term(std::integral_constant<int, 0>(), p);
  }
  c10::ForcedUnroll<sums>{}([&](auto i) C10_ALWAYS_INLINE_ATTRIBUTE {
    Vec total = sum[0][i];
    if constexpr (chains > 1) {
      c10::ForcedUnroll<chains - 1>{}(
          [&](auto chain) { total = total + sum[chain + 1][i]; });
    }
    T* to = c[i / vectors] + i % vectors * size;
    const int64_t left = n - i % vectors * size;
    if (left >= size) {
      (add ? total + Vec::loadu(to) : total).store(to);
    } else {
      (add ? total + Vec::loadu(to, left) : total).store(to, left);
    }
  });
}

template <typename T, typename B, size_t... i>
constexpr auto block_products(std::index_sequence<i...> /*sizes*/) {
  return std::array{
      &block_product<T, B, i / kVectors + 1, i % kVectors + 1>...};
}

// c <- a @ b, or c + a @ b if `add`, for any strides of a. Whole vectors of b
// are read, behind n too.
template <typename T, typename B>
void product(
    Sizes s,
    Matrix<const T> a,
    Matrix<const B> b,
    Matrix<T> c,
    bool add) {
  static constexpr auto blocks =
      block_products<T, B>(std::make_index_sequence<kRows * kVectors>());
  constexpr int64_t size = Vectorized<T>::size();
  int64_t p = 0;
  do {
    const int64_t terms = std::min(kTerms, s.terms - p);
    for (int64_t j = 0; j < s.n; j += kVectors * size) {
      const int64_t n = std::min(kVectors * size, s.n - j);
      for (int64_t i = 0, rows = 0; i < s.m; i += rows) {
        // blocks of about the same number of rows
        rows = ceil_div<int64_t>(s.m - i, ceil_div<int64_t>(s.m - i, kRows));
        blocks[(rows - 1) * kVectors + (n - 1) / size](
            n, terms, a.from(i, p), b.from(p, j), c.from(i, j), add || p > 0);
      }
    }
    p += kTerms;
  } while (p < s.terms);
}

#if defined(CPU_CAPABILITY_AVX512)
// The same by oneDNN, of which every thread compiles a kernel for each shape
// and keeps it: so m and n go up to multiples of 16. Both operands are zero
// behind `terms` rows or columns, up to an even number; b is packed.
inline void product(
    Sizes s,
    Matrix<const BFloat16> a,
    Matrix<const BFloat16> b,
    Matrix<float> c,
    bool add) {
  constexpr int64_t most_columns = 256; // wider kernels take longer to compile
  constexpr int64_t most_terms = kTerms * kVnni<BFloat16>;
  const int64_t rows = round_up<int64_t>(s.m, 16);
  for (int64_t p = 0; p < s.terms; p += most_terms, add = true) {
    const int64_t terms =
        round_up<int64_t>(std::min(most_terms, s.terms - p), 2);
    for (int64_t j = 0; j < s.n; j += most_columns) {
      const int64_t n = round_up<int64_t>(std::min(most_columns, s.n - j), 16);
      // clang-format off
      cpublas::brgemm(rows, n, terms, a.row, b.row / 2, c.row, add,
                      a.data + p, b[p / 2] + j * 2, c.data + j, true);
      // clang-format on
    }
  }
}
#endif

// c <- a @ b.T for `rows` rows of a. The sums of a vector of results are added
// up together.
template <typename T, typename B, int rows>
void row_products(
    int64_t n,
    int64_t terms,
    Matrix<const T> a,
    Matrix<const B> b,
    Matrix<T> c) {
  using Vec = Vectorized<T>;
  constexpr int size = Vec::size(), columns = size / rows;
  static_assert(columns > 0);
  T sums[size * size], sums_t[size * size];
  for (int64_t j = 0; j < n; j += columns) {
    Vec sum[size];
    c10::ForcedUnroll<size>{}([&](auto i) { sum[i] = Vec(T(0)); });
    for (int64_t p = 0; p < terms; p += size) {
      c10::ForcedUnroll<size>{}([&](auto i) C10_ALWAYS_INLINE_ATTRIBUTE {
        const auto x = load_vector<T>(b[std::min(j + i / rows, n - 1)] + p);
        sum[i] = vec::fmadd(Vec::loadu(a[i % rows] + p), x, sum[i]);
      });
    }
    c10::ForcedUnroll<size>{}([&](auto i) { sum[i].store(sums + i * size); });
    vec::transpose_mxn<T, size, size>(sums, size, sums_t, size);
    Vec total(T(0));
    c10::ForcedUnroll<size>{}(
        [&](auto i) { total = total + Vec::loadu(sums_t + i * size); });
    total.store(sums);
    for (int64_t i = 0; i < rows * std::min<int64_t>(columns, n - j); i++) {
      c[i % rows][j + i / rows] = sums[i];
    }
  }
}

// c <- a @ b.T, where rows of both are whole vectors. For few rows of a this
// costs less than a transpose of b.
template <typename T, typename B>
void product_of_rows(
    Sizes s,
    Matrix<const T> a,
    Matrix<const B> b,
    Matrix<T> c) {
  constexpr int rows = std::min(4, Vectorized<T>::size());
  int64_t i = 0;
  for (; i + rows <= s.m; i += rows) {
    row_products<T, B, rows>(s.n, s.terms, a.from(i), b, c.from(i));
  }
  for (; i < s.m; i++) {
    row_products<T, B, 1>(s.n, s.terms, a.from(i), b, c.from(i));
  }
}

// The columns of an operand B that a product takes at once
template <typename T>
constexpr int64_t kPanel = kVectors * Vectorized<T>::size();

// Memory for `rows` rows of whole panels. Rows have a line of the cache between
// them: those that lie a power of two apart take each other's place in it.
template <typename T>
struct Tile : Matrix<T> {
  Tile(int64_t rows, int64_t columns)
      : Matrix<T>{
            nullptr,
            round_up<int64_t>(columns, 64) + 64 / int64_t{sizeof(T)}} {
    if (rows > 0) {
      // Vectors are read behind the last row.
      const int64_t size = (rows + 1) * this->row * sizeof(T);
      memory_ = c10::GetCPUAllocator()->allocate(size);
      this->data = static_cast<T*>(memory_.get());
    }
  }

 private:
  DataPtr memory_;
};

// A tile for `rows` rows in panels, in each of which they follow one another.
// Rows of heads often lie a power of two apart.
template <typename T>
Matrix<T> as_panels(Matrix<T> tile, int64_t rows) {
  // transpose writes 16 columns.
  return kPanel<T> % 16 == 0 ? Matrix<T>{tile.data, kPanel<T>, rows} : tile;
}

// Number (i, j) of x, which may be in panels
template <typename T>
T* in_panel(Matrix<T> x, int64_t i, int64_t j) {
  const int64_t begin = j / kPanel<T> * kPanel<T>;
  return x.from(i, begin).data + j - begin;
}

// The same numbers in another type
template <typename To, typename From, int n>
auto converted(const VectorizedN<From, n>& x) {
  constexpr int count = n * Vectorized<From>::size() / Vectorized<To>::size();
  return vec::convert<To, count, From, n>(x);
}

// As many numbers as a vector of scalar_t has, in the type of sums
template <typename scalar_t, typename opmath_t>
using Widened = VectorizedN<
    opmath_t,
    Vectorized<scalar_t>::size() / Vectorized<opmath_t>::size()>;

// to (n) <- from (n), by whole vectors: vec::convert takes single numbers.
template <typename To, typename From>
void convert_row(const From* from, To* to, int64_t n) {
  using Short = std::conditional_t<sizeof(To) < sizeof(From), To, From>;
  constexpr int64_t size = Vectorized<Short>::size();
  constexpr int count = size / Vectorized<From>::size();
  for (int64_t i = 0; i < n; i += size) {
    const int64_t left = std::min(size, n - i);
    const auto x = VectorizedN<From, count>::loadu(from + i, left);
    converted<To>(x).store(to + i, left);
  }
}

// x (rows, columns) as an operand, in `copy` unless it can be read where it
// lies. Behind the columns of a copy are zeros, up to a multiple of 16.
template <typename operand_t, typename scalar_t>
Matrix<const operand_t> load(
    Matrix<const scalar_t> x,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> copy) {
  constexpr int64_t vnni = kVnni<operand_t>;
  if constexpr (std::is_same_v<operand_t, scalar_t>) {
    // Products read whole vectors of columns, or pairs of them and whole tiles
    // of rows.
    constexpr int64_t unit = vnni == 2 ? 2 : Vectorized<operand_t>::size();
    const bool has_pairs = x.row % 2 == 0 &&
        reinterpret_cast<uintptr_t>(x.data) % sizeof(float) == 0;
    if (columns % unit == 0 && (vnni == 1 || (rows % 16 == 0 && has_pairs))) {
      return x;
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    convert_row(x[r], copy[r], columns);
    std::fill(
        copy[r] + columns,
        copy[r] + round_up<int64_t>(columns, 16),
        operand_t(0));
  }
  return copy;
}

// The same in panels, which x may be where it lies
template <typename operand_t, typename scalar_t>
Matrix<const operand_t> load_panels(
    Matrix<const scalar_t> x,
    int64_t rows,
    int64_t columns,
    Matrix<operand_t> copy) {
  constexpr int64_t most = kPanel<operand_t>;
  if constexpr (std::is_same_v<operand_t, scalar_t>) {
    if (x.row == most && columns == most) {
      return x;
    }
  }
  copy = as_panels(copy, rows);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += most) {
      const int64_t n = std::min(most, columns - c);
      operand_t* to = in_panel(copy, r, c);
      convert_row(x[r] + c, to, n);
      std::fill(to + n, to + round_up<int64_t>(n, 16), operand_t(0));
    }
  }
  return copy;
}

// to (columns, rows), perhaps in panels, <- x (rows, columns) transposed, with
// zeros up to a multiple of 16: what lies there may be denormal, which takes
// time.
template <typename T>
void transpose(Matrix<const T> x, int64_t rows, int64_t columns, Matrix<T> to) {
  constexpr int64_t unit = 16;
  for (int64_t r = 0; r < rows; r += unit) {
    for (int64_t c = 0; c < columns; c += unit) {
      const int64_t height = std::min(unit, rows - r);
      const int64_t width = std::min(unit, columns - c);
      if (height == unit && width == unit) {
        vec::transpose_mxn<T, unit, unit>(
            x[r] + c, x.row, in_panel(to, c, r), to.row);
        continue;
      }
      for (int64_t j = 0; j < width; j++) {
        for (int64_t i = 0; i < unit; i++) {
          in_panel(to, c + j, r)[i] = i < height ? x[r + i][c + j] : T(0);
        }
      }
    }
  }
}

// Pairs of 16 bits, which move as one number
template <typename T>
auto as_pairs(Matrix<T> x) {
  using Pair = std::conditional_t<std::is_const_v<T>, const float, float>;
  return Matrix<Pair>{reinterpret_cast<Pair*>(x.data), x.row / 2};
}

// The transpose of x, packed where products want that
template <typename T>
void load_transposed(
    Matrix<const T> x,
    int64_t rows,
    int64_t columns,
    Matrix<T> to) {
  if constexpr (kVnni<T> == 2) {
    const int64_t pairs = ceil_div<int64_t>(columns, 2);
    transpose<float>(as_pairs(x), rows, pairs, as_pairs(to));
  } else {
    transpose<T>(x, rows, columns, to);
  }
}

#if defined(CPU_CAPABILITY_AVX512)
// to (rows / 2, 2 * columns) <- x (rows, columns), two rows interleaved, with
// zeros up to a multiple of 32 rows
inline void pack(
    Matrix<const BFloat16> x,
    int64_t rows,
    int64_t columns,
    Matrix<BFloat16> to) {
  for (int64_t r = 0; r < round_up<int64_t>(rows, 32); r += 2) {
    if (r < rows) {
      const int64_t count = std::min<int64_t>(2, rows - r);
      vec::pack_vnni2(x[r], to[r / 2], x.row, count, columns);
    } else {
      std::fill_n(to[r / 2], 2 * columns, BFloat16(0));
    }
  }
}
#endif

// x (rows, columns) as operand B of products: where it lies, unless loaded
template <typename scalar_t, typename operand_t>
struct Right {
  using opmath_t = at::opmath_type<operand_t>;
  using Left = Matrix<const operand_t>;

  void load(Matrix<operand_t> tile) {
    if constexpr (kVnni<operand_t> == 2) {
      pack(x, rows, columns, tile);
      copy = tile;
    } else {
      copy = load_panels(x, rows, columns, tile);
    }
  }

  // For products with x.T alone
  void load_t(Matrix<operand_t> tile, Matrix<operand_t> tile_t) {
    const Left read = attn_tile::load(x, rows, columns, tile);
    if constexpr (kVnni<operand_t> == 1) {
      tile_t = as_panels(tile_t, columns);
    }
    load_transposed(read, rows, columns, tile_t);
    copy = tile_t;
  }

  // c <- a (m, rows) @ x, or c + a @ x if `add`
  void product(int64_t m, Left a, Matrix<opmath_t> c, bool add) const {
    const Sizes sizes{m, columns, padded<operand_t>(rows)};
    if constexpr (kVnni<operand_t> == 1) {
      if (copy.data == nullptr) {
        return attn_tile::product(sizes, a, x, c, add);
      }
    }
    attn_tile::product(sizes, a, copy, c, add);
  }

  // c <- a (m, columns) @ x.T
  void product_t(int64_t m, Left a, Matrix<opmath_t> c) const {
    const Sizes sizes{m, rows, columns};
    if constexpr (kVnni<operand_t> == 1) {
      if (copy.data == nullptr) {
        return product_of_rows(sizes, a, x, c);
      }
    }
    attn_tile::product(sizes, a, copy, c, false);
  }

  Matrix<const scalar_t> x;
  int64_t rows, columns;
  Matrix<const operand_t> copy{};
};

} // namespace CPU_CAPABILITY
} // namespace at::native::attn_tile
