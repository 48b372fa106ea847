// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/native/attn.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/irange.h>

#include <array>

namespace at::native {

namespace {

using namespace attn_tile;

// Blocks of attn: what the next products read of them stays in the cache.
constexpr int64_t kColumns = 256, kForwardRows = 64, kBackwardRows = 128;

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t round_up(int64_t size, int64_t multiple) {
  return ceil_div(size, multiple) * multiple;
}

// Uninitialised memory for several arrays, each at a line of the cache. One
// allocation serves all threads, so that malloc keeps it for the next call.
class Scratch {
 public:
  // Returns where an array of `size` elements begins, once allocated.
  template <typename T>
  int64_t reserve(int64_t size) {
    const int64_t begin = bytes_;
    bytes_ += round_up(size * sizeof(T), 64);
    return begin;
  }
  void allocate() {
    memory_ = c10::GetCPUAllocator()->allocate(bytes_);
  }
  template <typename T>
  T* at(int64_t begin) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.get()) + begin);
  }
  int64_t bytes() const {
    return bytes_;
  }

 private:
  int64_t bytes_ = 0;
  at::DataPtr memory_;
};

// to (n) <- from (n), in another type
template <typename From, typename To>
inline void convert(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, n, to);
  } else if constexpr (std::is_same_v<To, float>) {
    using Vec = Vectorized<From>;
    int64_t i = 0;
    for (; i + Vec::size() <= n; i += Vec::size()) {
      auto [low, high] = vec::convert_to_float<From>(Vec::loadu(from + i));
      low.store(to + i);
      high.store(to + i + Vec::size() / 2);
    }
    for (; i < n; i++) {
      to[i] = static_cast<To>(from[i]);
    }
  } else {
    vec::convert(from, to, n);
  }
}

// A matrix of an input: rows of `row` numbers.
template <typename scalar_t>
struct Matrix {
  const scalar_t* data;
  int64_t row;
};

// to (rows, padded(columns)) <- from (rows, columns)
template <typename E, typename scalar_t>
void load_left(
    Matrix<scalar_t> from,
    int64_t rows,
    int64_t columns,
    E* to,
    int64_t to_row) {
  const int64_t whole = padded<E>(columns);
  for (; rows > 0; rows--, from.data += from.row, to += to_row) {
    convert(from.data, to, columns);
    std::fill(to + columns, to + whole, E(0));
  }
}

// One panel (padded(rows), padded(columns)) <- from (rows, columns)
template <typename E, typename scalar_t>
void load_panel(
    Matrix<scalar_t> from,
    int64_t rows,
    int64_t columns,
    E* to,
    int64_t to_row) {
  constexpr int64_t group = kGroup<E>;
  const int64_t whole = padded<SumOf<E>>(columns) * group;
  for (int64_t r = 0; r < padded<E>(rows); r += group, to += to_row) {
    const scalar_t* row = from.data + r * from.row;
    if constexpr (group == 2) {
      const scalar_t* next = row + from.row;
      if (r + 1 < rows) {
        const auto pair = reinterpret_cast<std::array<E, 2>*>(to);
        for (int64_t c = 0; c < columns; c++) {
          pair[c] = {row[c], next[c]};
        }
      } else {
        for (int64_t c = 0; c < columns; c++) {
          to[2 * c] = r < rows ? row[c] : E(0);
          to[2 * c + 1] = E(0);
        }
      }
    } else if (r < rows) {
      convert(row, to, columns);
    }
    std::fill(to + (r < rows ? columns * group : 0), to + whole, E(0));
  }
}

template <typename E, typename scalar_t>
void load_right(
    Matrix<scalar_t> from,
    int64_t rows,
    int64_t columns,
    E* to,
    int64_t panel) {
  for (int64_t c = 0; c < columns; c += kPanel, to += panel) {
    const int64_t width = std::min(kPanel, columns - c);
    load_panel(
        Matrix<scalar_t>{from.data + c, from.row},
        rows,
        width,
        to,
        kPanel * kGroup<E>);
  }
}

// to (columns, rows) <- from (rows, columns), of numbers or of pairs
template <typename E>
void transpose(
    const E* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    E* to,
    int64_t to_row) {
  constexpr int64_t group = kGroup<E>;
  const auto each = [&](int64_t r, int64_t c) {
    for (const auto g : c10::irange(group)) {
      to[c * to_row + r * group + g] = from[r * from_row + c * group + g];
    }
  };
  constexpr int width = Vectorized<float>::size();
  int64_t r = 0;
  if constexpr (sizeof(E) * group == sizeof(float)) {
    for (; r + width <= rows; r += width) {
      int64_t c = 0;
      for (; c + width <= columns; c += width) {
        vec::transpose_mxn<float, width, width>(
            reinterpret_cast<const float*>(from + r * from_row + c * group),
            from_row / group,
            reinterpret_cast<float*>(to + c * to_row + r * group),
            to_row / group);
      }
      for (; c < columns; c++) {
        for (const auto i : c10::irange(width)) {
          each(r + i, c);
        }
      }
    }
  }
  for (; r < rows; r++) {
    for (const auto c : c10::irange(columns)) {
      each(r, c);
    }
  }
}

// Panels of the transpose: for each kPanel rows, (padded(columns), kPanel) <-
// from (rows, columns)
template <typename E, typename scalar_t>
void load_right_transposed(
    Matrix<scalar_t> from,
    int64_t rows,
    int64_t columns,
    E* to) {
  constexpr int64_t group = kGroup<E>, chunk = 16 * group;
  std::array<E, kPanel * chunk> part;
  for (; rows > 0; rows -= kPanel, from.data += kPanel * from.row) {
    const int64_t count = std::min(kPanel, rows);
    const int64_t whole = padded<SumOf<E>>(count);
    const int64_t depth = padded<E>(columns);
    for (int64_t c = 0; c < depth; c += chunk) {
      const int64_t width = std::clamp<int64_t>(columns - c, 0, chunk);
      load_left(
          Matrix<scalar_t>{from.data + c, from.row},
          count,
          width,
          part.data(),
          chunk);
      std::fill(&part[0] + count * chunk, &part[0] + whole * chunk, E(0));
      const int64_t units = std::min(chunk, depth - c) / group;
      transpose(
          part.data(), chunk, whole, units, to + c * kPanel, kPanel * group);
    }
    to += depth * kPanel;
  }
}

// The transpose as a left factor: to (columns, padded(rows)) <- from
// (rows, columns)
template <typename E, typename scalar_t>
void load_left_transposed(
    Matrix<scalar_t> from,
    int64_t rows,
    int64_t columns,
    E* to,
    int64_t to_row) {
  constexpr int64_t group = kGroup<E>, chunk = 16 * group;
  std::array<E, kPanel * chunk> part;
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t count = std::min(chunk, rows - r);
    for (int64_t c = 0; c < columns; c += kPanel) {
      const int64_t width = std::min(kPanel, columns - c);
      load_panel(
          Matrix<scalar_t>{from.data + r * from.row + c, from.row},
          count,
          width,
          part.data(),
          kPanel * group);
      transpose(
          part.data(),
          kPanel * group,
          padded<E>(count) / group,
          width,
          to + c * to_row + r,
          to_row);
    }
  }
}

// f(row, column, rows, columns) for each tile
template <typename F>
inline void each_tile(int64_t rows, int64_t columns, const F& f) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    for (int64_t c = 0; c < columns; c += kPanel) {
      f(r, c, std::min(kTileRows, rows - r), std::min(kPanel, columns - c));
    }
  }
}

// A tile of attn, before the product that makes what it meets: its rows lie too
// far apart for the processor to guess the next.
template <bool written, typename scalar_t>
inline void
prefetch_tile(Matrix<scalar_t> attn, int64_t rows, int64_t columns) {
#if defined(__GNUC__)
  for (; rows > 0; rows--, attn.data += attn.row) {
    for (int64_t c = 0; c < columns; c += 64 / sizeof(scalar_t)) {
      __builtin_prefetch(attn.data + c, written);
    }
  }
#endif
}

// result <- scores @ wide, a block of rows at a time. The scores are made of
// left @ right.T, zeros without left, where they lie: finish(row, column, rows,
// columns, sums, scores) is called for every tile, whose rows of sums lie
// kPanel apart and those of scores kColumns.
template <typename scalar_t, typename E, typename F>
void by_rows(
    const Tensor& result,
    const Tensor& left,
    const Tensor& right,
    const Tensor& wide,
    const F& finish) {
  using T = SumOf<E>;
  const int64_t n = wide.size(0), e = wide.size(1);
  const int64_t d = left.defined() ? left.size(1) : 0;
  const int64_t d_padded = padded<E>(d), e_padded = padded<T>(e);
  const auto matrix = [](const Tensor& t, int64_t row) -> Matrix<scalar_t> {
    return {row > 0 ? t.const_data_ptr<scalar_t>() : nullptr, row};
  };
  const auto left_data = matrix(left, d), right_data = matrix(right, d);
  const auto wide_data = matrix(wide, e);
  scalar_t* result_data = result.mutable_data_ptr<scalar_t>();

  const int64_t threads = std::min<int64_t>(
      at::get_num_threads(), 2. * n * n * (d + e + 16) / kThreadWork + 1);
  const int64_t blocks = ceil_div(ceil_div(n, kForwardRows), threads) * threads;
  const int64_t block_rows = round_up(ceil_div(n, blocks), kGroup<E>);
  const int64_t panel = padded<E>(n) * kPanel;
  Scratch scratch;
  const auto right_at = scratch.reserve<E>(round_up(n, kPanel) * d_padded);
  const auto wide_at = scratch.reserve<E>(ceil_div(e, kPanel) * panel);
  const auto own = scratch.bytes();
  const auto left_at = scratch.reserve<E>(block_rows * d_padded);
  const auto scores_at = scratch.reserve<E>(block_rows * kColumns);
  const auto sums_at = scratch.reserve<T>(block_rows * e_padded);
  const int64_t own_bytes = scratch.bytes() - own;
  scratch.reserve<char>((threads - 1) * own_bytes);
  scratch.allocate();
  E* right_panels = scratch.at<E>(right_at);
  E* wide_panels = scratch.at<E>(wide_at);

  const int64_t grain = ceil_div(1 << 15, kPanel * (d + e) + 1);
  at::parallel_for(0, ceil_div(n, kPanel), grain, [&](auto begin, auto end) {
    const int64_t i = begin * kPanel, rows = std::min(end * kPanel, n) - i;
    load_right_transposed(
        Matrix<scalar_t>{right_data.data + i * d, d},
        rows,
        d,
        right_panels + i * d_padded);
    load_right(
        Matrix<scalar_t>{wide_data.data + i * e, e},
        rows,
        e,
        wide_panels + i * kPanel,
        panel);
  });

  at::parallel_for(
      0, blocks, ceil_div(blocks, threads), [&](auto begin, auto end) {
        const int64_t mine = at::get_thread_num() * own_bytes;
        E* left_rows = scratch.at<E>(left_at + mine);
        E* scores = scratch.at<E>(scores_at + mine);
        T* sums = scratch.at<T>(sums_at + mine);
        std::array<T, kTileRows * kPanel> tile{};
        const Product<E> product;
        for (int64_t i = begin * block_rows; i < std::min(end * block_rows, n);
             i += block_rows) {
          const int64_t rows = std::min(block_rows, n - i);
          load_left(
              Matrix<scalar_t>{left_data.data + i * d, d},
              rows,
              d,
              left_rows,
              d_padded);
          for (int64_t j = 0; j < n; j += kColumns) {
            const int64_t columns = std::min(kColumns, n - j);
            each_tile(rows, columns, [&](auto r, auto c, auto m, auto width) {
              product(
                  m,
                  width,
                  d_padded,
                  {left_rows + r * d_padded, d_padded},
                  {right_panels + (j + c) * d_padded, kPanel * kGroup<E>, 0},
                  tile.data(),
                  kPanel,
                  false);
              E* to = scores + r * kColumns + c;
              finish(i + r, j + c, m, width, tile.data(), to);
              for (const auto x : c10::irange(width < kPanel ? m : 0)) {
                std::fill(
                    to + x * kColumns + width,
                    to + x * kColumns + kPanel,
                    E(0));
              }
            });
            product(
                rows,
                e,
                padded<E>(columns),
                {scores, kColumns},
                {wide_panels + j * kPanel, kPanel * kGroup<E>, panel},
                sums,
                e_padded,
                j > 0);
          }
          for (const auto r : c10::irange(rows)) {
            convert(sums + r * e_padded, result_data + (i + r) * e, e);
          }
        }
      });
}

// attn (n) <- tanh(scores); left <- attn. Writes whole vectors of left.
template <typename scalar_t, typename E>
inline void
tanh_row(const SumOf<E>* scores, scalar_t* attn, E* left, int64_t n) {
  using T = SumOf<E>;
  using Vec = Vectorized<scalar_t>;
  for (int64_t j = 0; j < n; j += Vec::size()) {
    const auto first = Vectorized<T>::loadu(scores + j);
    Vec result;
    if constexpr (std::is_same_v<scalar_t, T>) {
      result = attn_tile::tanh(first);
    } else {
      const auto next =
          Vectorized<T>::loadu(scores + j + Vectorized<T>::size());
      result = vec::convert_from_float<scalar_t>(
          short_tanh(first), short_tanh(next));
    }
    result.store(attn + j, std::min<int64_t>(Vec::size(), n - j));
    if constexpr (std::is_same_v<scalar_t, E>) {
      result.store(left + j);
    } else {
      auto [low, high] = vec::convert_to_float<scalar_t>(result);
      low.store(left + j);
      high.store(left + j + Vectorized<T>::size());
    }
  }
}

template <typename scalar_t, typename E>
void attn_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  const int64_t n = q.size(0);
  scalar_t* attn_data = attn.mutable_data_ptr<scalar_t>();
  // attn <- tanh(q @ k.T), output <- attn @ v
  by_rows<scalar_t, E>(
      output,
      q,
      k,
      v,
      [=](auto i, auto j, auto rows, auto columns, auto* sums, E* scores) {
        for (const auto r : c10::irange(rows)) {
          tanh_row(
              sums + r * kPanel,
              attn_data + (i + r) * n + j,
              scores + r * kColumns,
              columns);
        }
      });
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

// sums (rows of kPanel) <- sums + a tile of x
template <typename scalar_t, typename T>
void add_tile(
    const Tensor& x,
    int64_t row,
    int64_t column,
    int64_t rows,
    int64_t columns,
    T* sums) {
  const int64_t stride = x.stride(1);
  const scalar_t* from =
      x.const_data_ptr<scalar_t>() + row * x.stride(0) + column * stride;
  for (; rows > 0; rows--, from += x.stride(0), sums += kPanel) {
    if (stride == 1) {
      for (int64_t c = 0; c < columns; c += Vectorized<T>::size()) {
        (Vectorized<T>::loadu(sums + c) + load<T>(from + c, columns - c))
            .store(sums + c);
      }
    } else {
      for (const auto c : c10::irange(columns)) {
        sums[c] += static_cast<T>(from[c * stride]);
      }
    }
  }
}

// scores (rows of kColumns) <- grad_attn (rows of kPanel) * (1 - attn^2), for a
// tile. Zeros beyond its columns: an infinite row times what is padded with
// zeros there would be NaN.
template <typename scalar_t, typename E>
void grad_scores_tile(
    const SumOf<E>* grad_attn,
    Matrix<scalar_t> attn,
    int64_t rows,
    int64_t columns,
    E* scores) {
  using T = SumOf<E>;
  using Vec = Vectorized<T>;
  using Load = Vectorized<scalar_t>;
  const auto grad = [](const T* g, const Vec& a) {
    return Vec::loadu(g) * ((Vec(1) - a) * (Vec(1) + a));
  };
  for (; rows > 0; rows--) {
    for (int64_t c = 0; c < columns; c += Load::size()) {
      const scalar_t* from = attn.data + c;
      const T* g = grad_attn + c;
      const Load a = c + Load::size() <= columns
          ? Load::loadu(from)
          : Load::loadu(from, columns - c);
      if constexpr (std::is_same_v<scalar_t, T>) {
        grad(g, a).store(scores + c);
      } else {
        auto [low, high] = vec::convert_to_float<scalar_t>(a);
        low = grad(g, low);
        high = grad(g + Vec::size(), high);
        if constexpr (kGroup<E> == 2) {
          vec::convert_from_float<E>(low, high).store(scores + c);
        } else {
          low.store(scores + c);
          high.store(scores + c + Vec::size());
        }
      }
    }
    std::fill(scores + columns, scores + padded<E>(columns), E(0));
    attn.data += attn.row;
    grad_attn += kPanel;
    scores += kColumns;
  }
}

// grad_q alone, of which each thread owns rows.
template <typename scalar_t, typename E>
void attn_backward_q(
    const Tensor& grad_q,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  const int64_t n = attn.size(0);
  const scalar_t* attn_data = attn.const_data_ptr<scalar_t>();
  by_rows<scalar_t, E>(
      grad_q,
      grad_output,
      v,
      k,
      [=](auto i, auto j, auto rows, auto columns, auto* sums, E* scores) {
        if (grad_attn.defined()) {
          add_tile<scalar_t>(grad_attn, i, j, rows, columns, sums);
        }
        grad_scores_tile<scalar_t>(
            sums,
            Matrix<scalar_t>{attn_data + i * n + j, n},
            rows,
            columns,
            scores);
      });
}

// Each part of the work owns some columns of attn, rows of grad_k and grad_v,
// whose transposes it sums, and has its own sums of grad_q.
template <typename scalar_t, typename E>
class Backward {
 public:
  using T = SumOf<E>;

  Backward(
      const Tensor& grad_q,
      const Tensor& grad_k,
      const Tensor& grad_v,
      const Tensor& grad_output,
      const Tensor& grad_attn,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const Tensor& attn)
      : grad_q_(grad_q),
        grad_k_(grad_k),
        grad_v_(grad_v),
        grad_attn_(grad_attn),
        n_(attn.size(0)),
        d_(grad_q.defined()       ? grad_q.size(1)
               : grad_k.defined() ? grad_k.size(1)
                                  : 0),
        e_(grad_output.defined() ? grad_output.size(1) : 0),
        scores_wanted_(grad_q.defined() || grad_k.defined()),
        q_(matrix(q, d_)),
        k_(matrix(k, d_)),
        v_(matrix(v, e_)),
        grad_output_(matrix(grad_output, e_)),
        attn_(matrix(attn, n_)) {
    parts_ = std::min<int64_t>(
        at::get_num_threads(), 4. * n_ * n_ * (d_ + e_ + 4) / kThreadWork + 1);
    most_ =
        std::max<int64_t>({2, n_ / (4 * d_ + 1), (1 << 18) / (n_ * d_ + 1)});
  }

  // Whether so many threads would need too much memory for sums of grad_q.
  bool crowded() const {
    return grad_q_.defined() && 4 * parts_ > 5 * most_;
  }

  void run() {
    plan();
    at::parallel_for(0, ceil_div(n_, rows_), 1, [&](auto begin, auto end) {
      for (const auto block : c10::irange(begin, end)) {
        load_rows(block * rows_);
      }
    });
    at::parallel_for(0, parts_, 1, [&](auto begin, auto end) {
      const Product<E> product;
      for (const auto part : c10::irange(begin, end)) {
        const int64_t first = part * part_columns_;
        const int64_t last = std::min(first + part_columns_, n_);
        for (int64_t j = first; j < last; j += kColumns) {
          run_columns(product, part, j, std::min(kColumns, last - j));
        }
      }
    });
    if (grad_q_.defined()) {
      sum_grad_q();
    }
  }

 private:
  static Matrix<scalar_t> matrix(const Tensor& t, int64_t row) {
    return {t.defined() ? t.const_data_ptr<scalar_t>() : nullptr, row};
  }

  void plan() {
    if (grad_q_.defined()) {
      parts_ = std::min(parts_, most_);
    }
    part_columns_ = padded<T>(ceil_div(n_, parts_));
    parts_ = ceil_div(n_, part_columns_);
    rows_ = padded<E>(std::min(n_, kBackwardRows));
    columns_ = round_up(std::min(part_columns_, kColumns), kPanel);
    panel_ = rows_ * kPanel;
    d_padded_ = padded<T>(d_);
    e_depth_ = padded<E>(e_);
    const int64_t all_rows = round_up(n_, rows_);
    q_left_ = scratch_.reserve<E>(grad_k_.defined() ? all_rows * d_ : 0);
    output_left_ = scratch_.reserve<E>(grad_v_.defined() ? all_rows * e_ : 0);
    grad_q_bytes_ = grad_q_.defined() ? n_ * d_padded_ * sizeof(T) : 0;
    grad_q_sums_ = scratch_.reserve<char>(parts_ * grad_q_bytes_);
    const int64_t own = scratch_.bytes();
    output_rows_ = scratch_.reserve<E>(rows_ * e_depth_);
    scores_ = scratch_.reserve<E>(rows_ * kColumns);
    scores_right_ =
        kGroup<E> == 1 ? scores_ : scratch_.reserve<E>(rows_ * columns_);
    attn_right_ = scratch_.reserve<E>(rows_ * columns_);
    k_right_ = scratch_.reserve<E>(columns_ * round_up(d_, kPanel));
    v_right_ = scratch_.reserve<E>(columns_ * e_depth_);
    grad_k_sums_ = scratch_.reserve<T>(d_ * columns_);
    grad_v_sums_ = scratch_.reserve<T>(e_ * columns_);
    own_bytes_ = scratch_.bytes() - own;
    scratch_.reserve<char>((parts_ - 1) * own_bytes_);
    scratch_.allocate();
  }

  template <typename Element>
  Element* own(int64_t begin) const {
    return scratch_.at<Element>(begin + at::get_thread_num() * own_bytes_);
  }

  // The transposes of a block of rows, which every part reads.
  void load_rows(int64_t i) {
    const int64_t rows = std::min(rows_, n_ - i);
    if (grad_k_.defined()) {
      load_left_transposed(
          Matrix<scalar_t>{q_.data + i * d_, d_},
          rows,
          d_,
          scratch_.at<E>(q_left_) + i * d_,
          rows_);
    }
    if (grad_v_.defined()) {
      load_left_transposed(
          Matrix<scalar_t>{grad_output_.data + i * e_, e_},
          rows,
          e_,
          scratch_.at<E>(output_left_) + i * e_,
          rows_);
    }
  }

  void run_columns(
      const Product<E>& product,
      int64_t part,
      int64_t j,
      int64_t columns) {
    if (grad_q_.defined()) {
      load_right(
          Matrix<scalar_t>{k_.data + j * d_, d_},
          columns,
          d_,
          own<E>(k_right_),
          columns_ * kPanel);
    }
    if (e_ > 0 && scores_wanted_) {
      load_right_transposed(
          Matrix<scalar_t>{v_.data + j * e_, e_},
          columns,
          e_,
          own<E>(v_right_));
    }
    for (int64_t i = 0; i < n_; i += rows_) {
      const int64_t rows = std::min(rows_, n_ - i);
      load_tiles(product, i, j, rows, columns);
      add_products(product, part, i, j, rows, columns);
    }
    store(grad_k_, own<T>(grad_k_sums_), j, columns);
    store(grad_v_, own<T>(grad_v_sums_), j, columns);
  }

  // The factors that a block of attn gives: the gradient of the scores, to the
  // left and to the right, and attn.
  void load_tiles(
      const Product<E>& product,
      int64_t i,
      int64_t j,
      int64_t rows,
      int64_t columns) {
    constexpr int64_t pair = kPanel * kGroup<E>;
    E* output_rows = own<E>(output_rows_);
    E* scores = own<E>(scores_);
    if (e_ > 0 && scores_wanted_) {
      load_left(
          Matrix<scalar_t>{grad_output_.data + i * e_, e_},
          rows,
          e_,
          output_rows,
          e_depth_);
    }
    std::array<T, kTileRows * kPanel> tile{};
    each_tile(rows, columns, [&](auto r, auto c, auto m, auto width) {
      const Matrix<scalar_t> attn{attn_.data + (i + r) * n_ + j + c, n_};
      const int64_t to = c / kPanel * panel_ + r * kPanel;
      prefetch_tile<false>(attn, m, width);
      // Zeros after the last rows are terms of the sums, too.
      const int64_t last = r + m == rows ? rows - r : m;
      if (scores_wanted_) {
        tile.fill(T(0));
        if (e_ > 0) {
          // grad_attn <- grad_output @ v.T
          product(
              m,
              width,
              e_depth_,
              {output_rows + r * e_depth_, e_depth_},
              {own<E>(v_right_) + c * e_depth_, pair, 0},
              tile.data(),
              kPanel,
              false);
        }
        if (grad_attn_.defined()) {
          add_tile<scalar_t>(grad_attn_, i + r, j + c, m, width, tile.data());
        }
        E* left = scores + r * kColumns + c;
        grad_scores_tile<scalar_t>(tile.data(), attn, m, width, left);
        if constexpr (kGroup<E> == 2) {
          load_panel(
              Matrix<E>{left, kColumns},
              last,
              width,
              own<E>(scores_right_) + to,
              pair);
        } else {
          for (int64_t x = m; x < padded<E>(last); x++) {
            std::fill_n(left + x * kColumns, kPanel, E(0));
          }
        }
      }
      if (grad_v_.defined()) {
        load_panel(attn, last, width, own<E>(attn_right_) + to, pair);
      }
    });
  }

  void add_products(
      const Product<E>& product,
      int64_t part,
      int64_t i,
      int64_t j,
      int64_t rows,
      int64_t columns) {
    constexpr int64_t pair = kPanel * kGroup<E>;
    const Right<E> scores_right = kGroup<E> == 1
        ? Right<E>{own<E>(scores_), kColumns, kPanel}
        : Right<E>{own<E>(scores_right_), pair, panel_};
    const int64_t depth = padded<E>(rows);
    if (grad_q_.defined()) {
      // grad_q <- grad_q + grad_scores @ k
      T* sums = scratch_.at<T>(grad_q_sums_ + part * grad_q_bytes_);
      product(
          rows,
          d_,
          padded<E>(columns),
          {own<E>(scores_), kColumns},
          {own<E>(k_right_), pair, columns_ * kPanel},
          sums + i * d_padded_,
          d_padded_,
          j > part * part_columns_);
    }
    if (grad_k_.defined()) {
      // grad_k.T <- grad_k.T + q.T @ grad_scores
      product(
          d_,
          columns,
          depth,
          {scratch_.at<E>(q_left_) + i * d_, rows_},
          scores_right,
          own<T>(grad_k_sums_),
          columns_,
          i > 0);
    }
    if (grad_v_.defined()) {
      // grad_v.T <- grad_v.T + grad_output.T @ attn
      product(
          e_,
          columns,
          depth,
          {scratch_.at<E>(output_left_) + i * e_, rows_},
          {own<E>(attn_right_), pair, panel_},
          own<T>(grad_v_sums_),
          columns_,
          i > 0);
    }
  }

  // Rows j.. of grad <- sums (size, columns) transposed
  void store(const Tensor& grad, const T* sums, int64_t j, int64_t columns) {
    if (!grad.defined()) {
      return;
    }
    const int64_t size = grad.size(1);
    scalar_t* to = grad.mutable_data_ptr<scalar_t>() + j * size;
    std::array<T, kTileRows * kPanel> part;
    for (int64_t x = 0; x < size; x += kPanel) {
      const int64_t width = std::min(kPanel, size - x);
      for (int64_t c = 0; c < columns; c += kTileRows) {
        const int64_t count = std::min(kTileRows, columns - c);
        transpose(
            sums + x * columns_ + c,
            columns_,
            width,
            count,
            part.data(),
            kPanel);
        for (const auto r : c10::irange(count)) {
          convert(&part[r * kPanel], to + (c + r) * size + x, width);
        }
      }
    }
  }

  void sum_grad_q() {
    using Vec = Vectorized<T>;
    scalar_t* to = grad_q_.mutable_data_ptr<scalar_t>();
    const int64_t grain = ceil_div(1 << 15, parts_ * d_ + 1);
    at::parallel_for(0, n_, grain, [&](auto begin, auto end) {
      for (const auto i : c10::irange(begin, end)) {
        T* sum = scratch_.at<T>(grad_q_sums_) + i * d_padded_;
        for (const auto part : c10::irange(int64_t(1), parts_)) {
          const T* other = sum + part * (grad_q_bytes_ / sizeof(T));
          for (int64_t c = 0; c < d_padded_; c += Vec::size()) {
            (Vec::loadu(sum + c) + Vec::loadu(other + c)).store(sum + c);
          }
        }
        convert(sum, to + i * d_, d_);
      }
    });
  }

  Tensor grad_q_, grad_k_, grad_v_, grad_attn_;
  int64_t n_, d_, e_;
  bool scores_wanted_;
  Matrix<scalar_t> q_, k_, v_, grad_output_, attn_;
  // Parts, the columns of each, and the sizes of a block
  int64_t parts_, most_, part_columns_ = 0, rows_ = 0, columns_ = 0;
  int64_t panel_ = 0, d_padded_ = 0, e_depth_ = 0;
  // Arrays that all threads share, and those of each
  Scratch scratch_;
  int64_t q_left_ = 0, output_left_ = 0, grad_q_sums_ = 0, grad_q_bytes_ = 0;
  int64_t output_rows_ = 0, scores_ = 0, scores_right_ = 0, attn_right_ = 0;
  int64_t k_right_ = 0, v_right_ = 0, grad_k_sums_ = 0, grad_v_sums_ = 0;
  int64_t own_bytes_ = 0;
};

template <typename scalar_t, typename E>
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
  const auto with = [&](const Tensor& grad_q) {
    return Backward<scalar_t, E>(
        grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
  };
  auto work = with(grad_q);
  if (!work.crowded()) {
    return work.run();
  }
  // Made apart, grad_q costs a fifth product and keeps every thread busy.
  attn_backward_q<scalar_t, E>(grad_q, grad_output, grad_attn, k, v, attn);
  if (grad_k.defined() || grad_v.defined()) {
    with(Tensor()).run();
  }
}

// Calls f with a number of the type that products read.
template <typename scalar_t, typename F>
void with_element(const F& f) {
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    if (has_pair_products()) {
      return f(BFloat16());
    }
  }
#endif
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
        with_element<scalar_t>([&](auto element) {
          attn_forward<scalar_t, decltype(element)>(output, attn, q, k, v);
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
        with_element<scalar_t>([&](auto element) {
          attn_backward<scalar_t, decltype(element)>(
              grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
        });
      });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
