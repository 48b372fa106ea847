// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/native/attn.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/irange.h>

#include <array>

namespace at::native {

namespace {

using namespace attn_tile;

// Blocks of attn: what the next products read of them stays in the cache.
constexpr int64_t kBlockRows = 48, kForwardColumns = 128;
constexpr int64_t kBackwardRows = 96, kBackwardColumns = 256;

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// As many elements, to the end of the cache's line.
template <typename T>
int64_t whole_lines(int64_t elements) {
  constexpr int64_t line = 64 / sizeof(T);
  return ceil_div(elements, line) * line;
}

// Two arrays of uninitialised memory, seen by the profiler as every tensor is.
// One allocation serves all threads: malloc returns what is freed beyond twice
// the largest to the system, whose new pages cost more than the arithmetic.
template <typename First, typename Second>
class Scratch {
 public:
  Scratch(int64_t first, int64_t second)
      : offset_(whole_lines<char>(first * sizeof(First))),
        memory_(
            c10::GetCPUAllocator()->allocate(
                offset_ + second * sizeof(Second))) {}
  First* first() const {
    return static_cast<First*>(memory_.get());
  }
  Second* second() const {
    return reinterpret_cast<Second*>(
        static_cast<char*>(memory_.get()) + offset_);
  }

 private:
  int64_t offset_;
  at::DataPtr memory_;
};

// to (n) <- from (n)
template <typename scalar_t, typename T>
inline void widen(const scalar_t* from, T* to, int64_t n) {
  if constexpr (std::is_same_v<scalar_t, T>) {
    std::copy_n(from, n, to);
  } else {
    using Vec = Vectorized<scalar_t>;
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) {
      auto [low, high] = vec::convert_to_float<scalar_t>(Vec::loadu(from + i));
      low.store(to + i);
      high.store(to + i + Vec::size() / 2);
    }
    for (; i < n; i++) {
      to[i] = static_cast<T>(from[i]);
    }
  }
}

template <typename scalar_t, typename T>
inline void narrow(const T* from, scalar_t* to, int64_t n) {
  if constexpr (std::is_same_v<scalar_t, T>) {
    std::copy_n(from, n, to);
  } else {
    vec::convert(from, to, n);
  }
}

// A vector of the first n numbers, zeros after them.
template <typename T, typename scalar_t>
inline Vectorized<T> load(const scalar_t* from, int64_t n) {
  constexpr int64_t width = Vectorized<T>::size();
  using Vec = Vectorized<scalar_t>;
  const Vec x = n < width ? Vec::loadu(from, n) : Vec::loadu(from, width);
  if constexpr (std::is_same_v<scalar_t, T>) {
    return x;
  } else {
    return std::get<0>(vec::convert_to_float<scalar_t>(x));
  }
}

// to (rows, units of columns) <- from (rows, columns), where a row is summed
// over
template <typename U, typename scalar_t>
void load_left(const scalar_t* from, U* to, int64_t rows, int64_t columns) {
  const int64_t units = ceil_div(columns, Unit<U>::group);
  for (; rows > 0; rows--, from += columns, to += units) {
    if constexpr (std::is_same_v<U, Pair>) {
      if (columns % 2) {
        to[units - 1].second = 0;
      }
      std::copy_n(from, columns, reinterpret_cast<scalar_t*>(to));
    } else {
      widen(from, to, columns);
    }
  }
}

// to (units of rows, padded(columns)) <- from (rows, columns), rows from_row
// apart, where a column is summed over
template <typename U, typename scalar_t>
void load_right(
    const scalar_t* from,
    int64_t from_row,
    U* to,
    int64_t to_row,
    int64_t rows,
    int64_t columns) {
  for (int64_t r = 0; r < rows; r += Unit<U>::group) {
    if constexpr (std::is_same_v<U, Pair>) {
      const scalar_t* next = from + from_row;
      if (r + 1 < rows) {
        for (int64_t c = 0; c < columns; c++) {
          to[c] = {from[c], next[c]};
        }
      } else {
        for (int64_t c = 0; c < columns; c++) {
          to[c] = {from[c], scalar_t(0)};
        }
      }
    } else {
      widen(from, to, columns);
    }
    std::fill(to + columns, to + to_row, U{});
    from += Unit<U>::group * from_row;
    to += to_row;
  }
}

// for each kPanel rows: to (units of columns, kPanel) <- from (rows, columns)
// transposed
template <typename U, typename scalar_t>
void load_transposed(
    const scalar_t* from,
    U* to,
    int64_t rows,
    int64_t columns) {
  constexpr int64_t group = Unit<U>::group;
  constexpr int64_t panel = kPanel<typename Unit<U>::Sum>;
  for (int64_t r = 0; r < rows; r += panel, from += panel * columns) {
    const int64_t n = std::min(panel, rows - r);
    for (int64_t c = 0; c < columns; c += group, to += panel) {
      const scalar_t* element = from + c;
      for (int64_t j = 0; j < n; j++, element += columns) {
        if constexpr (std::is_same_v<U, Pair>) {
          to[j] = {element[0], c + 1 < columns ? element[1] : scalar_t(0)};
        } else {
          to[j] = static_cast<U>(*element);
        }
      }
      std::fill(to + n, to + panel, U{});
    }
  }
}

// f(row, column, rows, columns) for each tile that the registers hold: what
// is done to it is done while the first cache has it.
template <typename T, typename F>
inline void each_tile(int64_t rows, int64_t columns, const F& f) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - r);
    for (int64_t c = 0; c < columns; c += kPanel<T>) {
      f(r, c, tile_rows, std::min(kPanel<T>, columns - c));
    }
  }
}

// The tile below: rows of attn lie too far apart for the processor to guess
// the next. Beyond the end of attn this does nothing.
template <bool written, typename scalar_t>
inline void prefetch_next(const scalar_t* attn, int64_t row, int64_t columns) {
#if defined(__GNUC__)
  constexpr int64_t line = 64 / sizeof(scalar_t);
  for (const auto r : c10::irange(kTileRows, 2 * kTileRows)) {
    for (int64_t c = 0; c < columns; c += line) {
      __builtin_prefetch(attn + r * row + c, written);
    }
  }
#endif
}

// Zeros from n on: there, an infinite row times the zeros beyond the columns is
// not a number, and the last of an odd number of columns makes a pair with it.
template <typename V>
inline V without_beyond(const V& x, int64_t n) {
  return n < V::size() ? V::set(V(0), x, n) : x;
}

// attn (n) <- tanh(scores); left <- attn
template <typename scalar_t, typename U, typename T>
inline void tanh_row(const T* scores, scalar_t* attn, U* left, int64_t n) {
  using Vec = Vectorized<scalar_t>;
  for (int64_t j = 0; j < n; j += Vec::size()) {
    const auto first = attn_tile::tanh(Vectorized<T>::loadu(scores + j));
    Vec result;
    if constexpr (std::is_same_v<scalar_t, T>) {
      result = first;
    } else {
      const T* next = scores + j + Vectorized<T>::size();
      result = vec::convert_from_float<scalar_t>(
          first, attn_tile::tanh(Vectorized<T>::loadu(next)));
    }
    result.store(attn + j, std::min<int64_t>(Vec::size(), n - j));
    if constexpr (std::is_same_v<U, Pair>) {
      without_beyond(result, n - j).store(left + j / Unit<U>::group);
    } else if constexpr (std::is_same_v<scalar_t, T>) {
      result.store(left + j);
    } else {
      auto [low, high] = vec::convert_to_float<scalar_t>(result);
      low.store(left + j);
      high.store(left + j + Vectorized<T>::size());
    }
  }
}

// result <- scores @ wide, a block of rows at a time. The scores are made of
// left @ right.T, zeros without left, where they lie: finish(row, column, rows,
// columns, sums, scores) is called for every tile. U is what the products read:
// opmath_type<scalar_t>, or Pair for bfloat16.
template <typename scalar_t, typename U, int64_t kColumns, typename F>
void by_rows(
    const Tensor& result,
    const Tensor& left,
    const Tensor& right,
    const Tensor& wide,
    const F& finish) {
  using T = typename Unit<U>::Sum;
  constexpr int64_t group = Unit<U>::group, scores_row = kColumns / group;
  const int64_t n = wide.size(0), e = wide.size(1);
  const int64_t d = left.defined() ? left.size(1) : 0;
  const int64_t d_units = ceil_div(d, group), e_padded = padded<T>(e);
  const scalar_t* left_data = d > 0 ? left.const_data_ptr<scalar_t>() : nullptr;
  const scalar_t* right_data =
      d > 0 ? right.const_data_ptr<scalar_t>() : nullptr;
  const scalar_t* wide_data = wide.const_data_ptr<scalar_t>();
  scalar_t* result_data = result.mutable_data_ptr<scalar_t>();

  constexpr int64_t panel = kPanel<T>;
  const int64_t panels = ceil_div(n, panel);
  const int64_t threads = std::min<int64_t>(
      at::get_num_threads(), 2. * n * n * (d + e + 16) / kThreadWork + 1);
  const int64_t blocks = ceil_div(ceil_div(n, kBlockRows), threads) * threads;
  const int64_t block_rows = ceil_div(n, blocks);
  // A pair of rows may be finished where only the first of them is.
  const int64_t own_units = whole_lines<U>(
      block_rows * d_units + (block_rows + group - 1) * scores_row);
  const int64_t own_sums = block_rows * e_padded;
  const int64_t right_units = whole_lines<U>(panels * d_units * panel);
  const int64_t wide_units = ceil_div(n, group) * e_padded;
  const Scratch<U, T> scratch(
      right_units + wide_units + threads * own_units, threads * own_sums);
  U* right_panels = scratch.first();
  U* wide_rows = right_panels + right_units;
  const int64_t copy_grain = ceil_div(1 << 15, panel * (d + e) + 1);
  at::parallel_for(0, panels, copy_grain, [&](int64_t begin, int64_t end) {
    const int64_t i = begin * panel;
    const int64_t rows = std::min(end * panel, n) - i;
    load_transposed(right_data + i * d, right_panels + i * d_units, rows, d);
    load_right(
        wide_data + i * e,
        e,
        wide_rows + i / group * e_padded,
        e_padded,
        rows,
        e);
  });

  const auto run = [&](int64_t begin, int64_t end) {
    const int64_t thread = at::get_thread_num();
    U* left_rows = wide_rows + wide_units + thread * own_units;
    U* scores = left_rows + block_rows * d_units;
    T* sums = scratch.second() + thread * own_sums;
    std::array<T, kTileRows * kPanel<T>> tile{};
    for (int64_t i = begin * block_rows; i < std::min(end * block_rows, n);
         i += block_rows) {
      const int64_t rows = std::min(block_rows, n - i);
      load_left(left_data + i * d, left_rows, rows, d);
      for (int64_t j = 0; j < n; j += kColumns) {
        const int64_t columns = std::min(kColumns, n - j);
        each_tile<T>(rows, columns, [&](auto r, auto c, auto m, auto width) {
          product<U, T>(
              m,
              width,
              d_units,
              {left_rows + r * d_units, d_units, 1},
              {right_panels + (j + c) * d_units, panel},
              tile.data(),
              kPanel<T>,
              false);
          finish(
              i + r,
              j + c,
              m,
              width,
              tile.data(),
              scores + (r * kColumns + c) / group);
        });
        product<U, T>(
            rows,
            e,
            ceil_div(columns, group),
            {scores, scores_row, 1},
            {wide_rows + j / group * e_padded, e_padded},
            sums,
            e_padded,
            j > 0);
      }
      for (const auto r : c10::irange(rows)) {
        narrow(sums + r * e_padded, result_data + (i + r) * e, e);
      }
    }
  };
  at::parallel_for(0, blocks, ceil_div(blocks, threads), run);
}

template <typename scalar_t, typename U>
void attn_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  using T = typename Unit<U>::Sum;
  const int64_t n = q.size(0);
  scalar_t* attn_data = attn.mutable_data_ptr<scalar_t>();
  // attn <- tanh(q @ k.T), output <- attn @ v
  by_rows<scalar_t, U, kForwardColumns>(
      output,
      q,
      k,
      v,
      [=](int64_t i, int64_t j, int64_t m, int64_t width, T* sums, U* scores) {
        scalar_t* to = attn_data + i * n + j;
        prefetch_next<true>(to, n, width);
        for (const auto x : c10::irange(m)) {
          tanh_row(
              sums + x * kPanel<T>,
              to + x * n,
              scores + x * (kForwardColumns / Unit<U>::group),
              width);
        }
      });
}

// sum (n) <- sum + x, whose numbers are `stride` apart
template <typename scalar_t, typename T>
inline void add_row(const scalar_t* x, int64_t stride, T* sum, int64_t n) {
  using Vec = Vectorized<T>;
  for (int64_t c = 0; stride == 1 && c < n; c += Vec::size()) {
    (Vec::loadu(sum + c) + load<T>(x + c, n - c)).store(sum + c);
  }
  for (int64_t c = 0; stride != 1 && c < n; c++) {
    sum[c] += static_cast<T>(x[c * stride]);
  }
}

// grad_scores <- grad_attn * (1 - attn^2) for a tile, as the left and as the
// right factor of a product, and attn as a right one
template <typename scalar_t, typename U, typename T>
C10_ALWAYS_INLINE void backward_tile(
    const T* grad_attn,
    const scalar_t* attn,
    int64_t attn_row,
    int64_t rows,
    int64_t columns,
    U* left,
    U* right,
    U* attn_right) {
  using Vec = Vectorized<T>;
  constexpr int64_t group = Unit<U>::group;
  const auto load_attn = [&](int64_t r, int64_t c) {
    return load<T>(attn + r * attn_row + c, columns - c);
  };
  const auto grad_scores = [&](int64_t r, int64_t c, const Vec& a) {
    const Vec one(T(1)), grad = Vec::loadu(grad_attn + r * kPanel<T> + c);
    const Vec result = grad * ((one - a) * (one + a));
    if constexpr (std::is_same_v<U, Pair>) {
      return without_beyond(result, columns - c);
    }
    return result;
  };
  for (int64_t r = 0; r < rows; r += group) {
    for (int64_t c = 0; c < columns; c += Vec::size()) {
      const int64_t to = r / group * kBackwardColumns + c;
      const Vec a = load_attn(r, c), grad = grad_scores(r, c, a);
      if constexpr (std::is_same_v<U, Pair>) {
        const bool two = r + 1 < rows;
        const Vec below = two ? load_attn(r + 1, c) : Vec(0);
        const Vec grad_below = two ? grad_scores(r + 1, c, below) : Vec(0);
        store_pairs(a, below, attn_right + to);
        store_rounded(
            grad,
            grad_below,
            reinterpret_cast<BFloat16*>(left) + r * kBackwardColumns + c,
            kBackwardColumns,
            right + to);
      } else {
        a.store(attn_right + to);
        grad.store(right + to);
      }
    }
  }
}

// sums (rows of kPanel) <- sums + a tile of x
template <typename scalar_t, typename T>
void add_tile(
    const Tensor& x,
    int64_t row,
    int64_t column,
    int64_t rows,
    int64_t columns,
    T* sums) {
  const scalar_t* from =
      x.const_data_ptr<scalar_t>() + row * x.stride(0) + column * x.stride(1);
  for (; rows > 0; rows--, from += x.stride(0), sums += kPanel<T>) {
    add_row(from, x.stride(1), sums, columns);
  }
}

// grad_q alone, of which each thread owns rows.
template <typename scalar_t, typename U>
void attn_backward_q(
    const Tensor& grad_q,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  using T = typename Unit<U>::Sum;
  const int64_t n = attn.size(0);
  const scalar_t* attn_data = attn.const_data_ptr<scalar_t>();
  by_rows<scalar_t, U, kBackwardColumns>(
      grad_q,
      grad_output,
      v,
      k,
      [=](int64_t i, int64_t j, int64_t m, int64_t width, T* sums, U* scores) {
        const scalar_t* from = attn_data + i * n + j;
        prefetch_next<false>(from, n, width);
        if (grad_attn.defined()) {
          add_tile<scalar_t>(grad_attn, i, j, m, width, sums);
        }
        // What only a sum over rows needs.
        std::array<U, kTileRows * kBackwardColumns> right, attn_right;
        backward_tile(
            sums,
            from,
            n,
            m,
            width,
            scores,
            Unit<U>::group == 1 ? scores : right.data(),
            attn_right.data());
      });
}

template <typename scalar_t, typename U>
void attn_backward(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  using T = typename Unit<U>::Sum;
  constexpr int64_t group = Unit<U>::group;
  const auto data = [](const Tensor& t) -> const scalar_t* {
    return t.defined() ? t.const_data_ptr<scalar_t>() : nullptr;
  };
  const bool scores_wanted = grad_q.defined() || grad_k.defined();
  const bool has_output = grad_output.defined();
  const bool has_attn = grad_attn.defined() && scores_wanted;
  const bool has_scores = has_output && scores_wanted;
  const scalar_t* q_data = data(q);
  const scalar_t* k_data = data(k);
  const scalar_t* v_data = data(v);
  const scalar_t* grad_output_data = data(grad_output);
  const scalar_t* attn_data = data(attn);
  const int64_t n = attn.size(0);
  const int64_t d = grad_q.defined() ? grad_q.size(1)
      : grad_k.defined()             ? grad_k.size(1)
                                     : 0;
  const int64_t e = has_output ? grad_output.size(1) : 0;
  const int64_t d_padded = padded<T>(d), e_padded = padded<T>(e);
  const int64_t e_units = ceil_div(e, group);

  // Each part owns some columns of attn, rows of grad_k and grad_v, and has its
  // own sums of grad_q, which are to stay small beside attn.
  const int64_t most = std::max<int64_t>(
      {2, n / (4 * d_padded + 1), (1 << 18) / (n * d_padded + 1)});
  int64_t parts = std::min<int64_t>(
      at::get_num_threads(), 4. * n * n * (d + e + 4) / kThreadWork + 1);
  if (grad_q.defined() && 4 * parts > 5 * most) {
    // Made apart it costs a fifth product, and all threads have work.
    attn_backward_q<scalar_t, U>(grad_q, grad_output, grad_attn, k, v, attn);
    if (grad_k.defined() || grad_v.defined()) {
      attn_backward<scalar_t, U>(
          Tensor(), grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
    }
    return;
  }
  if (grad_q.defined()) {
    parts = std::min(parts, most);
  }
  const int64_t part_columns = padded<T>(ceil_div(n, parts));
  parts = ceil_div(n, part_columns);
  const int64_t block_rows = std::min(n, kBackwardRows);
  const int64_t block_units = ceil_div(block_rows, group);
  const int64_t block_columns =
      ceil_div(std::min(part_columns, kBackwardColumns), kPanel<T>) * kPanel<T>;
  const int64_t tile = block_units * kBackwardColumns;
  const int64_t width = d_padded + e_padded;
  const int64_t own_units = whole_lines<U>(
      (1 + group) * tile + block_rows * e_units + block_units * width +
      ceil_div(block_columns, group) * d_padded + block_columns * e_units);
  const int64_t own_sums = block_columns * width;
  const int64_t grad_q_sums = grad_q.defined() ? n * d_padded : 0;
  const Scratch<U, T> scratch(
      parts * own_units, parts * (own_sums + grad_q_sums));

  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    const int64_t thread = at::get_thread_num();
    T* grad_k_rows = scratch.second() + parts * grad_q_sums + thread * own_sums;
    T* grad_v_rows = grad_k_rows + block_columns * d_padded;
    U* scores_right = scratch.first() + thread * own_units;
    U* attn_right = scores_right + tile;
    // Without pairs both factors are the same.
    U* scores_left = group == 1 ? scores_right : attn_right + tile;
    U* output_left = attn_right + group * tile;
    U* output_right = output_left + block_rows * e_units;
    U* q_right = output_right + block_units * e_padded;
    U* k_right = q_right + block_units * d_padded;
    U* v_panels = k_right + ceil_div(block_columns, group) * d_padded;
    std::array<T, kTileRows * kPanel<T>> grad_attn_tile{};
    for (const auto part : c10::irange(begin, end)) {
      const int64_t first = part * part_columns;
      const int64_t last = std::min(first + part_columns, n);
      T* grad_q_rows = scratch.second() + part * grad_q_sums;
      for (int64_t j = first; j < last; j += kBackwardColumns) {
        const int64_t columns = std::min(kBackwardColumns, last - j);
        if (grad_q.defined()) {
          load_right(k_data + j * d, d, k_right, d_padded, columns, d);
        }
        if (has_scores) {
          load_transposed(v_data + j * e, v_panels, columns, e);
        }
        for (int64_t i = 0; i < n; i += block_rows) {
          const int64_t rows = std::min(block_rows, n - i);
          if (has_scores) {
            load_left(grad_output_data + i * e, output_left, rows, e);
          }
          each_tile<T>(rows, columns, [&](auto r, auto c, auto m, auto width) {
            const scalar_t* from = attn_data + (i + r) * n + j + c;
            prefetch_next<false>(from, n, width);
            T* sum = grad_attn_tile.data();
            if (has_scores) {
              // grad_attn <- grad_output @ v.T
              product<U, T>(
                  m,
                  width,
                  e_units,
                  {output_left + r * e_units, e_units, 1},
                  {v_panels + c * e_units, kPanel<T>},
                  sum,
                  kPanel<T>,
                  false);
            } else {
              grad_attn_tile.fill(T(0));
            }
            if (has_attn) {
              add_tile<scalar_t>(grad_attn, i + r, j + c, m, width, sum);
            }
            const int64_t to = r / group * kBackwardColumns + c;
            backward_tile(
                sum,
                from,
                n,
                m,
                width,
                scores_left + (r * kBackwardColumns + c) / group,
                scores_right + to,
                attn_right + to);
          });
          if (grad_q.defined()) {
            // grad_q <- grad_q + grad_scores @ k
            product<U, T>(
                rows,
                d,
                ceil_div(columns, group),
                {scores_left, kBackwardColumns / group, 1},
                {k_right, d_padded},
                grad_q_rows + i * d_padded,
                d_padded,
                j > first);
          }
          if (grad_k.defined()) {
            // grad_k <- grad_k + grad_scores.T @ q
            load_right(q_data + i * d, d, q_right, d_padded, rows, d);
            product<U, T>(
                columns,
                d,
                ceil_div(rows, group),
                {scores_right, 1, kBackwardColumns},
                {q_right, d_padded},
                grad_k_rows,
                d_padded,
                i > 0);
          }
          if (grad_v.defined()) {
            // grad_v <- grad_v + attn.T @ grad_output
            load_right(
                grad_output_data + i * e, e, output_right, e_padded, rows, e);
            product<U, T>(
                columns,
                e,
                ceil_div(rows, group),
                {attn_right, 1, kBackwardColumns},
                {output_right, e_padded},
                grad_v_rows,
                e_padded,
                i > 0);
          }
        }
        const auto store_rows =
            [&](const Tensor& grad, const T* rows, int64_t size) {
              if (grad.defined()) {
                scalar_t* to = grad.mutable_data_ptr<scalar_t>() + j * size;
                for (const auto c : c10::irange(columns)) {
                  narrow(rows + c * padded<T>(size), to + c * size, size);
                }
              }
            };
        store_rows(grad_k, grad_k_rows, d);
        store_rows(grad_v, grad_v_rows, e);
      }
    }
  });

  if (grad_q.defined()) {
    scalar_t* to = grad_q.mutable_data_ptr<scalar_t>();
    const int64_t grain = ceil_div(1 << 15, parts * d + 1);
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
      for (const auto i : c10::irange(begin, end)) {
        T* sum = scratch.second() + i * d_padded;
        for (const auto part : c10::irange(int64_t(1), parts)) {
          const T* other = sum + part * grad_q_sums;
          for (int64_t c = 0; c < d_padded; c += Vectorized<T>::size()) {
            (Vectorized<T>::loadu(sum + c) + Vectorized<T>::loadu(other + c))
                .store(sum + c);
          }
        }
        narrow(sum, to + i * d, d);
      }
    });
  }
}

// Calls f with an element of type U, as the processor allows.
template <typename scalar_t, typename F>
void with_unit(const F& f) {
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
#if defined(CPU_CAPABILITY_AVX512) && defined(__GNUC__)
    if (has_pair_products()) {
      return f(Pair());
    }
#endif
  }
  f(at::opmath_type<scalar_t>());
}

void attn_kernel(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, q.scalar_type(), "attn_cpu", [&] {
        with_unit<scalar_t>([&](auto unit) {
          attn_forward<scalar_t, decltype(unit)>(output, attn, q, k, v);
        });
      });
}

void attn_backward_kernel(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, attn.scalar_type(), "_attn_backward_cpu", [&] {
        with_unit<scalar_t>([&](auto unit) {
          attn_backward<scalar_t, decltype(unit)>(
              grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
        });
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
