// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/native/attn.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/irange.h>

#include <array>

namespace at::native {

namespace {

using namespace attn_tile;

// A tile of sums stays in the first cache, a block of attn in the second.
constexpr int64_t kTileRows = 32, kColumns = 256;
constexpr int64_t kForwardRows = 64, kBackwardRows = 128;

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

// Rows and columns of attn from (i, j).
struct Block {
  int64_t i, j, rows, columns;
};

// How far apart the rows of a block lie. A power of two would make them share a
// few sets of the cache.
int64_t stride_of(int64_t columns) {
  return round_up<int64_t>(std::min(columns, kColumns), 16) + 16;
}

int64_t threads_for(double flop) {
  return std::min<int64_t>(at::get_num_threads(), flop / kThreadWork + 1);
}

int64_t columns_of(const Tensor& t) {
  return t.defined() ? t.size(1) : 0;
}

// Uninitialised memory for several arrays, each at a line of the cache. One
// allocation serves all threads, so that malloc keeps it for the next call.
class Scratch {
 public:
  // Returns where an array of `size` elements begins, once allocated.
  template <typename T>
  int64_t reserve(int64_t size) {
    const int64_t begin = bytes_;
    bytes_ += round_up<int64_t>(size * sizeof(T), 64);
    return begin;
  }
  // What is reserved from now on, each thread has.
  void share() {
    shared_ = bytes_;
  }
  void allocate(int64_t threads) {
    const int64_t bytes = shared_ + threads * (bytes_ - shared_);
    memory_ = c10::GetCPUAllocator()->allocate(bytes);
  }
  template <typename T>
  T* at(int64_t begin) const {
    if (begin >= shared_) {
      begin += at::get_thread_num() * (bytes_ - shared_);
    }
    return reinterpret_cast<T*>(static_cast<char*>(memory_.get()) + begin);
  }

 private:
  int64_t bytes_ = 0, shared_ = 0;
  at::DataPtr memory_;
};

// The numbers of one vector as vectors of the type of sums, and back.
template <typename scalar_t>
auto widened(const Vectorized<scalar_t>& x) {
  if constexpr (std::is_same_v<scalar_t, SumOf<scalar_t>>) {
    return std::array{x};
  } else {
    const auto [low, high] = vec::convert_to_float<scalar_t>(x);
    return std::array{low, high};
  }
}

template <typename scalar_t, typename Wide>
Vectorized<scalar_t> narrowed(const Wide& x) {
  if constexpr (std::is_same_v<scalar_t, SumOf<scalar_t>>) {
    return x[0];
  } else {
    return vec::convert_from_float<scalar_t>(x[0], x[1]);
  }
}

// Stores sums, or one vector of an input, in the type that products read.
template <typename scalar_t, typename E, typename Wide>
void store_sums(const Wide& x, E* to) {
  if constexpr (std::is_same_v<E, scalar_t>) {
    narrowed<scalar_t>(x).store(to);
  } else {
    for (const auto i : c10::irange(x.size())) {
      x[i].store(to + i * Vectorized<E>::size());
    }
  }
}

template <typename scalar_t, typename E>
void store(const Vectorized<scalar_t>& x, E* to) {
  if constexpr (std::is_same_v<E, scalar_t>) {
    x.store(to);
  } else {
    store_sums<scalar_t>(widened(x), to);
  }
}

// to (n) <- from (n), in another type
template <typename From, typename To>
void convert(const From* from, To* to, int64_t n) {
  if constexpr (!std::is_same_v<From, To> && std::is_same_v<To, float>) {
    constexpr int64_t width = Vectorized<From>::size();
    for (; n >= width; n -= width, from += width, to += width) {
      store(Vectorized<From>::loadu(from), to);
    }
  }
  vec::convert(from, to, n);
}

// Terms of a sum, with the zero that makes a whole pair.
template <typename E>
int64_t even(int64_t size) {
  return round_up<int64_t>(size, kGroup<E>);
}

// Columns of a product in scratch, where blocks have room for some more: pairs
// have no register tile that could make what whole multiples leave.
template <typename E>
int64_t with_room(int64_t columns) {
  return kGroup<E> == 2 ? round_up(columns, kWhole) : columns;
}

template <typename E>
void fill_pair(E* row, int64_t size) {
  std::fill(row + size, row + even<E>(size), E(0));
}

// to <- the numbers of two rows in turns
template <typename E>
void store_pairs(const Vectorized<E>& x, const Vectorized<E>& y, E* to) {
  const auto [x0, x1] = vec::convert_to_float<E>(x);
  const auto [y0, y1] = vec::convert_to_float<E>(y);
  const auto pairs = [](const auto& low, const auto& high) {
    // Widened, a number is the upper half of its float.
    const Vectorized<int32_t> half(0xffff), shift(16);
    return ((vec::cast<int32_t>(low) >> shift) & half) |
        vec::cast<int32_t>(high);
  };
  pairs(x0, y0).store(to);
  pairs(x1, y1).store(to + Vectorized<E>::size());
}

// to <- pairs of rows
template <typename E>
void interleave(
    Matrix<const E> from,
    int64_t rows,
    int64_t columns,
    Matrix<E> to) {
  for (int64_t r = 0; r < rows; r += 2) {
    const auto pairs = reinterpret_cast<std::array<E, 2>*>(to[r / 2]);
    const bool last = r + 1 == rows;
    for (const auto c : c10::irange(columns)) {
      pairs[c] = {from[r][c], last ? E(0) : from[r + 1][c]};
    }
  }
}

// to <- from transposed, as many rows as a vector has numbers. A round moves
// the highest bit of a number's place, row * width + column, to its lower end:
// when all bits of the row have moved, row and column have changed places.
template <typename T, typename E>
void transpose_square(Matrix<const E> from, Matrix<E> to) {
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
template <typename E, int64_t group = kGroup<E>>
void transpose(
    Matrix<const E> from,
    int64_t rows,
    int64_t columns,
    Matrix<E> to) {
  using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
  constexpr int64_t width = Vectorized<T>::size();
  for (int64_t r = 0; r < rows; r += width) {
    for (int64_t c = 0; c < columns; c += width) {
      const auto part = from.from(r, c * group);
      const auto turned = to.from(c, r * group);
      if (r + width <= rows && c + width <= columns) {
        transpose_square<T, E>(part, turned);
        continue;
      }
      for (int64_t x = 0; x < std::min(width, rows - r); x++) {
        for (int64_t y = 0; y < std::min(width, columns - c); y++) {
          std::copy_n(part[x] + y * group, group, turned[y] + x * group);
        }
      }
    }
  }
}

// Rows of the inputs as factors of products.
template <typename scalar_t, typename E>
class Factors {
 protected:
  using T = SumOf<E>;
  static constexpr bool kPairs = kGroup<E> == 2;
  static constexpr bool kInPlace = std::is_same_v<scalar_t, E> && !kPairs;

  static Matrix<const scalar_t> matrix(const Tensor& t) {
    return {t.const_data_ptr<scalar_t>(), t.size(1)};
  }

  // Rows i.. of t to the left: where they lie, or copied.
  static Matrix<const E>
  left(const Tensor& t, int64_t i, int64_t rows, E* copy) {
    const auto from = matrix(t).from(i);
    const int64_t columns = t.size(1);
    const Matrix<E> to{copy, even<E>(columns)};
    if constexpr (std::is_same_v<scalar_t, E>) {
      if (to.row == columns) {
        return from;
      }
    }
    for (const auto r : c10::irange(rows)) {
      convert(from[r], to[r], columns);
      fill_pair(to[r], columns);
    }
    return to;
  }

  // The same to the right.
  static Matrix<const E>
  right(const Tensor& t, int64_t i, int64_t rows, E* copy) {
    if constexpr (kPairs) {
      const Matrix<E> to{copy, right_row(t)};
      interleave<E>(matrix(t).from(i), rows, t.size(1), to);
      return to;
    } else {
      return left(t, i, rows, copy);
    }
  }

  // How far apart the rows lie that `right` copies, at whole lines.
  static int64_t right_row(const Tensor& t) {
    return kPairs ? 2 * round_up<int64_t>(t.size(1), 16) : t.size(1);
  }
};

// result <- scores @ wide, a block of rows at a time. The scores are made of
// left @ right.T, zeros without left: finish(block, sums, scores) is called for
// every tile.
template <typename scalar_t, typename E, typename Finish>
class ByRows : Factors<scalar_t, E> {
  using Base = Factors<scalar_t, E>;
  using typename Base::T;

 public:
  ByRows(
      const Tensor& result,
      const Tensor& left,
      const Tensor& right,
      const Tensor& wide,
      const Finish& finish)
      : result_(result),
        left_(left),
        right_(right),
        wide_(wide),
        n_(wide.size(0)),
        e_(wide.size(1)),
        depth_(even<E>(columns_of(left))),
        stride_(stride_of(n_)),
        finish_(finish) {}

  void run() {
    const int64_t threads = threads_for(2. * n_ * n_ * (depth_ + e_ + 16));
    const int64_t blocks = round_up(ceil_div(n_, kForwardRows), threads);
    const int64_t rows = even<E>(ceil_div(n_, blocks));
    reserve(std::max(rows, kChunk));
    scratch_.allocate(threads);
    const int64_t chunks = ceil_div(n_, kChunk);
    const int64_t least = (1 << 15) / (kChunk * (depth_ + e_) + 1) + 1;
    const int64_t grain = std::max(ceil_div(chunks, threads), least);
    at::parallel_for(0, chunks, grain, [&](auto begin, auto end) {
      for (const auto chunk : c10::irange(begin, end)) {
        load(chunk * kChunk);
      }
    });
    const int64_t share = ceil_div(blocks, threads);
    at::parallel_for(0, blocks, share, [&](auto begin, auto end) {
      const Product<E> product;
      for (int64_t i = begin * rows; i < std::min(end * rows, n_); i += rows) {
        run_block(product, i, std::min(rows, n_ - i));
      }
    });
  }

 private:
  // Rows of right and wide that are laid out at a time
  static constexpr int64_t kChunk = 64;

  void reserve(int64_t rows) {
    const int64_t columns = round_up(n_, kColumns) / kColumns * stride_;
    right_at_ = scratch_.reserve<E>(columns * depth_);
    const int64_t copied = Base::kInPlace ? 0 : even<E>(n_);
    wide_at_ = scratch_.reserve<E>(copied * Base::right_row(wide_));
    scratch_.share();
    rows_at_ = scratch_.reserve<E>(rows * depth_);
    sums_at_ = scratch_.reserve<T>(kTileRows * stride_);
    scores_at_ = scratch_.reserve<E>(rows * stride_);
    result_at_ = scratch_.reserve<T>(rows * round_up<int64_t>(e_, 16));
  }

  // Where rows of wide are copied
  Matrix<E> wide_copy(int64_t i) const {
    const int64_t row = Base::right_row(wide_);
    return {scratch_.at<E>(wide_at_) + i / kGroup<E> * row, row};
  }

  Matrix<E> right_block(int64_t j) const {
    E* blocks = scratch_.at<E>(right_at_);
    return {blocks + j / kColumns * depth_ * stride_, stride_ * kGroup<E>};
  }

  void load(int64_t i) {
    const int64_t rows = std::min(kChunk, n_ - i);
    if (depth_ > 0) {
      const auto from = Base::left(right_, i, rows, scratch_.at<E>(rows_at_));
      const auto to = right_block(i).from(0, i % kColumns * kGroup<E>);
      transpose<E>(from, rows, depth_ / kGroup<E>, to);
    }
    Base::right(wide_, i, rows, wide_copy(i).data);
  }

  void run_block(const Product<E>& product, int64_t i, int64_t rows) {
    const Matrix<T> sums{scratch_.at<T>(sums_at_), stride_};
    const Matrix<T> result{
        scratch_.at<T>(result_at_), round_up<int64_t>(e_, 16)};
    const Matrix<E> scores{scratch_.at<E>(scores_at_), stride_};
    Matrix<const E> left{};
    if (depth_ > 0) {
      left = Base::left(left_, i, rows, scratch_.at<E>(rows_at_));
    }
    for (int64_t j = 0; j < n_; j += kColumns) {
      const int64_t columns = std::min(kColumns, n_ - j);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        const Block tile{i + r, j, std::min(kTileRows, rows - r), columns};
        const auto right = right_block(j);
        const int64_t wide = with_room<E>(columns);
        product(tile.rows, wide, depth_, left.from(r), right, sums, false);
        finish_(tile, sums, scores.from(r));
      }
      Matrix<const E> wide = wide_copy(j);
      if constexpr (Base::kInPlace) {
        wide = Base::matrix(wide_).from(j);
      }
      const int64_t depth = even<E>(columns);
      product(rows, e_, depth, scores, wide, result, j > 0);
    }
    for (const auto r : c10::irange(rows)) {
      convert(
          result[r], result_.mutable_data_ptr<scalar_t>() + (i + r) * e_, e_);
    }
  }

  const Tensor &result_, &left_, &right_, &wide_;
  int64_t n_, e_, depth_, stride_;
  const Finish& finish_;
  Scratch scratch_;
  int64_t right_at_ = 0, wide_at_ = 0;
  int64_t rows_at_ = 0, sums_at_ = 0, scores_at_ = 0, result_at_ = 0;
};

template <typename scalar_t, typename E, typename Finish>
void by_rows(
    const Tensor& result,
    const Tensor& left,
    const Tensor& right,
    const Tensor& wide,
    const Finish& finish) {
  ByRows<scalar_t, E, Finish>(result, left, right, wide, finish).run();
}

// attn (n) <- tanh(scores); left <- attn. Writes whole vectors of left.
template <typename scalar_t, typename E>
void tanh_row(const SumOf<E>* scores, scalar_t* attn, E* left, int64_t n) {
  using Vec = Vectorized<SumOf<E>>;
  constexpr int64_t width = Vectorized<scalar_t>::size();
  std::array<Vec, width / Vec::size()> x;
  for (int64_t j = 0; j < n; j += width) {
    for (const auto i : c10::irange(x.size())) {
      x[i] = tanh_of<scalar_t>(Vec::loadu(scores + j + i * Vec::size()));
    }
    const auto result = narrowed<scalar_t>(x);
    result.store(attn + j, std::min(width, n - j));
    store(result, left + j);
  }
  fill_pair(left, n);
}

// attn <- tanh(q @ k.T), output <- attn @ v
template <typename scalar_t, typename E>
void attn_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  const Matrix<scalar_t> to{attn.mutable_data_ptr<scalar_t>(), attn.size(1)};
  const auto finish = [&](const Block& at, auto sums, Matrix<E> scores) {
    for (const auto r : c10::irange(at.rows)) {
      tanh_row(sums[r], to[at.i + r] + at.j, scores[r], at.columns);
    }
  };
  by_rows<scalar_t, E>(output, q, k, v, finish);
}

// sums <- sums + a tile of x
template <typename scalar_t, typename T>
void add_tile(const Tensor& x, const Block& at, Matrix<T> sums) {
  const int64_t row = x.stride(0), column = x.stride(1);
  const scalar_t* from = x.const_data_ptr<scalar_t>();
  from += at.i * row + at.j * column;
  for (const auto r : c10::irange(at.rows)) {
    T* to = sums[r];
    for (const auto c : c10::irange(at.columns)) {
      to[c] += static_cast<T>(from[r * row + c * column]);
    }
  }
}

// A row, or a pair of rows: scores (n) <- grad_attn * (1 - attn^2), and as
// right factors the pairs of scores and attn, unless they are null. Writes
// whole vectors.
template <typename scalar_t, typename E>
void grad_rows(
    int64_t rows,
    int64_t n,
    Matrix<const SumOf<E>> grad_attn,
    Matrix<const scalar_t> attn,
    Matrix<E> scores,
    E* score_pairs,
    E* attn_right) {
  using Vec = Vectorized<SumOf<E>>;
  using Load = Vectorized<scalar_t>;
  for (int64_t j = 0; j < n; j += Load::size()) {
    std::array<Load, kGroup<E>> x, result;
#pragma GCC unroll 2
    for (int r = 0; r < kGroup<E>; r++) {
      if (r >= rows) {
        x[r] = result[r] = Load(scalar_t(0));
        continue;
      }
      x[r] = n - j < Load::size() ? Load::loadu(attn[r] + j, n - j)
                                  : Load::loadu(attn[r] + j);
      auto a = widened(x[r]);
      for (const auto i : c10::irange(a.size())) {
        const Vec one(1);
        const Vec grad = Vec::loadu(grad_attn[r] + j + i * Vec::size());
        a[i] = grad * ((one - a[i]) * (one + a[i]));
      }
      store_sums<scalar_t>(a, scores[r] + j);
      result[r] = narrowed<scalar_t>(a);
    }
    if constexpr (kGroup<E> == 1) {
      if (attn_right) {
        store(x[0], attn_right + j);
      }
    } else {
      if (score_pairs) {
        store_pairs(result[0], result[1], score_pairs + 2 * j);
      }
      if (attn_right) {
        store_pairs(x[0], x[1], attn_right + 2 * j);
      }
    }
  }
  for (const auto r : c10::irange(rows)) {
    fill_pair(scores[r], n);
  }
}

// The rows of attn lie too far apart for the processor to guess the next.
template <typename scalar_t>
void prefetch(const scalar_t* row, int64_t n) {
#if defined(__GNUC__)
  for (int64_t c = 0; c < n; c += 64 / sizeof(scalar_t)) {
    __builtin_prefetch(row + c, 0, 2);
  }
#endif
}

// Each part of the work owns some columns of attn, rows of grad_k and grad_v,
// whose transposes it sums, and has its own sums of grad_q.
template <typename scalar_t, typename E>
class ByColumns : Factors<scalar_t, E> {
  using Base = Factors<scalar_t, E>;
  using typename Base::T;
  static constexpr bool kSumInPlace = std::is_same_v<scalar_t, T>;

 public:
  explicit ByColumns(const AttnBackward& x)
      : x_(x),
        attn_(Base::matrix(x.attn)),
        n_(x.attn.size(0)),
        d_(std::max(columns_of(x.grad_q), columns_of(x.grad_k))),
        e_(columns_of(x.grad_output)),
        depth_(even<E>(e_)),
        rows_(std::min(even<E>(n_), kBackwardRows)) {
    parts_ = threads_for(4. * n_ * n_ * (d_ + e_ + 4));
    most_ =
        std::max<int64_t>({2, n_ / (4 * d_ + 1), (1 << 18) / (n_ * d_ + 1)});
  }

  // Whether so many threads would need too much memory for sums of grad_q.
  bool crowded() const {
    return x_.grad_q.defined() && 4 * parts_ > 5 * most_;
  }

  void run() {
    if (x_.grad_q.defined()) {
      parts_ = std::min(parts_, most_);
    }
    share_ = round_up<int64_t>(ceil_div(n_, parts_), 16);
    parts_ = ceil_div(n_, share_);
    reserve();
    const int64_t blocks = ceil_div(n_, rows_);
    const int64_t grain = ceil_div(blocks, parts_);
    at::parallel_for(0, blocks, grain, [&](auto begin, auto end) {
      for (const auto block : c10::irange(begin, end)) {
        load_transposed(x_.grad_k, x_.q, block * rows_, q_);
        load_transposed(x_.grad_v, x_.grad_output, block * rows_, output_);
      }
    });
    at::parallel_for(0, parts_, 1, [&](auto begin, auto end) {
      const Product<E> product;
      for (const auto part : c10::irange(begin, end)) {
        const int64_t last = std::min((part + 1) * share_, n_);
        for (int64_t j = part * share_; j < last; j += kColumns) {
          run_columns(product, part, j, std::min(kColumns, last - j));
        }
      }
    });
    if (x_.grad_q.defined()) {
      sum_grad_q();
    }
  }

 private:
  void reserve() {
    const bool q = x_.grad_q.defined(), k = x_.grad_k.defined();
    const bool v = x_.grad_v.defined();
    stride_ = stride_of(share_);
    grad_q_row_ = round_up<int64_t>(d_, 16);
    const int64_t all = round_up(n_, rows_);
    q_ = scratch_.reserve<E>(k ? all * d_ : 0);
    output_ = scratch_.reserve<E>(v ? all * e_ : 0);
    const int64_t sums = parts_ - kSumInPlace;
    grad_q_ = scratch_.reserve<T>(q ? sums * n_ * grad_q_row_ : 0);
    scratch_.share();
    const int64_t block = rows_ * stride_, widest = std::max(d_, e_) + 16;
    sums_ = scratch_.reserve<T>(kTileRows * stride_);
    // Rows of an input that are not used where they lie
    const int64_t copied = Base::kInPlace ? 0 : std::max(rows_, stride_);
    copy_ = scratch_.reserve<E>(copied * widest * kGroup<E>);
    scores_ = scratch_.reserve<E>(block);
    scores_right_ = Base::kPairs ? scratch_.reserve<E>(block) : scores_;
    attn_right_ = scratch_.reserve<E>(v ? block : 0);
    k_ = scratch_.reserve<E>(Base::kInPlace ? 0 : stride_ * grad_q_row_);
    v_ = scratch_.reserve<E>(stride_ * depth_);
    grad_k_ = scratch_.reserve<T>(k ? d_ * stride_ : 0);
    grad_v_ = scratch_.reserve<T>(v ? e_ * stride_ : 0);
    scratch_.allocate(parts_);
  }

  Matrix<E> block_at(int64_t begin) const {
    return {scratch_.at<E>(begin), stride_};
  }
  Matrix<E> right_at(int64_t begin) const {
    return {scratch_.at<E>(begin), stride_ * kGroup<E>};
  }

  // The transpose of some rows, which every part reads, to the left.
  void load_transposed(
      const Tensor& grad,
      const Tensor& t,
      int64_t i,
      int64_t begin) {
    if (grad.defined()) {
      const int64_t rows = std::min(rows_, n_ - i), size = t.size(1);
      const auto from = Base::right(t, i, rows, scratch_.at<E>(copy_));
      const Matrix<E> to{scratch_.at<E>(begin) + i * size, rows_};
      transpose<E>(from, even<E>(rows) / kGroup<E>, size, to);
    }
  }

  void run_columns(
      const Product<E>& product,
      int64_t part,
      int64_t j,
      int64_t columns) {
    Matrix<const E> k{};
    if (x_.grad_q.defined()) {
      k = Base::right(x_.k, j, columns, scratch_.at<E>(k_));
    }
    if (depth_ > 0 && scores_wanted()) {
      const auto v = Base::left(x_.v, j, columns, scratch_.at<E>(copy_));
      transpose<E>(v, columns, depth_ / kGroup<E>, right_at(v_));
    }
    for (int64_t i = 0; i < n_; i += rows_) {
      const Block at{i, j, std::min(rows_, n_ - i), columns};
      load(product, at);
      if (x_.grad_q.defined()) {
        // grad_q <- grad_q + grad_scores @ k
        const int64_t depth = even<E>(columns), first = part * share_;
        const auto to = grad_q_sums(part).from(i);
        product(at.rows, d_, depth, block_at(scores_), k, to, j > first);
      }
      // grad_k.T <- grad_k.T + q.T @ grad_scores
      add_columns(product, x_.grad_k, q_, scores_right_, at, grad_k_);
      // grad_v.T <- grad_v.T + grad_output.T @ attn
      add_columns(product, x_.grad_v, output_, attn_right_, at, grad_v_);
    }
    store_columns(x_.grad_k, grad_k_, j, columns);
    store_columns(x_.grad_v, grad_v_, j, columns);
  }

  bool scores_wanted() const {
    return x_.grad_q.defined() || x_.grad_k.defined();
  }

  // The factors that a block of attn gives: the gradient of the scores and
  // attn, to the left and to the right.
  void load(const Product<E>& product, const Block& at) {
    Matrix<const E> output{};
    if (depth_ > 0 && scores_wanted()) {
      E* copy = scratch_.at<E>(copy_);
      output = Base::left(x_.grad_output, at.i, at.rows, copy);
    }
    const Matrix<T> sums{scratch_.at<T>(sums_), stride_};
    constexpr int64_t group = kGroup<E>;
    for (int64_t r = 0; r < at.rows; r += kTileRows) {
      const int64_t rows = std::min(kTileRows, at.rows - r);
      const Block tile{at.i + r, at.j, rows, at.columns};
      if (scores_wanted()) {
        // grad_attn <- grad_output @ v.T
        const auto left = output.from(r);
        const auto v = right_at(v_);
        const int64_t wide = with_room<E>(at.columns);
        product(rows, wide, depth_, left, v, sums, false);
        if (x_.grad_attn.defined()) {
          add_tile<scalar_t>(x_.grad_attn, tile, sums);
        }
      }
      for (int64_t y = r; y < r + rows; y += group) {
        const int64_t pair = std::min(group, r + rows - y);
        for (const auto x : c10::irange(pair)) {
          prefetch(
              attn_[std::min(at.i + y + x + kTileRows, n_ - 1)] + at.j,
              at.columns);
        }
        grad_rows<scalar_t, E>(
            pair,
            at.columns,
            sums.from(y - r),
            attn_.from(at.i + y, at.j),
            block_at(scores_).from(y),
            scores_wanted() ? right_at(scores_right_)[y / group] : nullptr,
            x_.grad_v.defined() ? right_at(attn_right_)[y / group] : nullptr);
      }
    }
  }

  // The transpose of grad's sums <- itself + left @ right
  void add_columns(
      const Product<E>& product,
      const Tensor& grad,
      int64_t left,
      int64_t right,
      const Block& at,
      int64_t sums) {
    if (grad.defined()) {
      const int64_t size = grad.size(1), depth = even<E>(at.rows);
      const Matrix<const E> from{scratch_.at<E>(left) + at.i * size, rows_};
      const Matrix<T> to{scratch_.at<T>(sums), stride_};
      const int64_t wide = with_room<E>(at.columns);
      product(size, wide, depth, from, right_at(right), to, at.i > 0);
    }
  }

  // Rows j.. of grad <- sums (size, columns) transposed
  void
  store_columns(const Tensor& grad, int64_t begin, int64_t j, int64_t columns) {
    if (!grad.defined()) {
      return;
    }
    const Matrix<const T> sums{scratch_.at<T>(begin), stride_};
    scalar_t* to = grad.mutable_data_ptr<scalar_t>() + j * grad.size(1);
    const Matrix<scalar_t> rows{to, grad.size(1)};
    std::array<T, 16 * 32> part;
    for (int64_t c = 0; c < columns; c += 16) {
      for (int64_t x = 0; x < rows.row; x += 32) {
        const int64_t count = std::min<int64_t>(16, columns - c);
        const int64_t width = std::min<int64_t>(32, rows.row - x);
        transpose<T>(sums.from(x, c), width, count, {part.data(), 32});
        for (const auto r : c10::irange(count)) {
          convert(&part[r * 32], rows[c + r] + x, width);
        }
      }
    }
  }

  // The first part's sums are those of the result, where the types are equal.
  Matrix<T> grad_q_sums(int64_t part) const {
    if constexpr (kSumInPlace) {
      if (part == 0) {
        return {x_.grad_q.template mutable_data_ptr<T>(), d_};
      }
    }
    const Matrix<T> sums{scratch_.at<T>(grad_q_), grad_q_row_};
    return sums.from((part - kSumInPlace) * n_);
  }

  void sum_grad_q() {
    const Matrix<T> sums = grad_q_sums(0);
    const int64_t grain = (1 << 15) / (parts_ * d_ + 1) + 1;
    at::parallel_for(0, n_, grain, [&](auto begin, auto end) {
      for (const auto part : c10::irange(int64_t(1), parts_)) {
        const Matrix<T> others = grad_q_sums(part);
        for (const auto i : c10::irange(begin, end)) {
          for (const auto c : c10::irange(d_)) {
            sums[i][c] += others[i][c];
          }
        }
      }
      if constexpr (!kSumInPlace) {
        scalar_t* to = x_.grad_q.template mutable_data_ptr<scalar_t>();
        for (const auto i : c10::irange(begin, end)) {
          convert(sums[i], to + i * d_, d_);
        }
      }
    });
  }

  const AttnBackward& x_;
  Matrix<const scalar_t> attn_;
  int64_t n_, d_, e_, depth_, rows_;
  // Parts of the work, the most that memory allows, and the columns of each
  int64_t parts_ = 0, most_ = 0, share_ = 0, stride_ = 0, grad_q_row_ = 0;
  Scratch scratch_;
  // What all parts read and write, and what each has
  int64_t q_ = 0, output_ = 0, grad_q_ = 0;
  int64_t sums_ = 0, copy_ = 0, scores_ = 0, scores_right_ = 0;
  int64_t attn_right_ = 0, k_ = 0, v_ = 0, grad_k_ = 0, grad_v_ = 0;
};

// grad_q alone, of which each thread owns rows.
template <typename scalar_t, typename E>
void attn_backward_q(const AttnBackward& x) {
  const Matrix<const scalar_t> attn{
      x.attn.const_data_ptr<scalar_t>(), x.attn.size(1)};
  const auto finish = [&](const Block& at, auto sums, Matrix<E> scores) {
    if (x.grad_attn.defined()) {
      add_tile<scalar_t>(x.grad_attn, at, sums);
    }
    for (int64_t r = 0; r < at.rows; r += kGroup<E>) {
      const int64_t rows = std::min(kGroup<E>, at.rows - r);
      const auto tile = attn.from(at.i + r, at.j);
      grad_rows<scalar_t, E>(
          rows,
          at.columns,
          sums.from(r),
          tile,
          scores.from(r),
          nullptr,
          nullptr);
    }
  };
  by_rows<scalar_t, E>(x.grad_q, x.grad_output, x.v, x.k, finish);
}

template <typename scalar_t, typename E>
void attn_backward(const AttnBackward& x) {
  ByColumns<scalar_t, E> all(x);
  if (!all.crowded()) {
    return all.run();
  }
  // A pass of its own for grad_q costs a fifth product but keeps every thread
  // busy.
  attn_backward_q<scalar_t, E>(x);
  AttnBackward others = x;
  others.grad_q = Tensor();
  if (others.grad_k.defined() || others.grad_v.defined()) {
    ByColumns<scalar_t, E>(others).run();
  }
}

// Calls f with a number of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& t, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, t.scalar_type(), "attn_cpu", [&] {
        // Few rows are not worth what it takes to set AMX up.
        const bool many = t.size(0) > 8;
        if (std::is_same_v<scalar_t, BFloat16> && many && has_pair_products()) {
          f(BFloat16(), BFloat16());
        } else {
          f(scalar_t(), at::opmath_type<scalar_t>());
        }
      });
}

void attn_kernel(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  dispatch(q, [&](auto number, auto element) {
    attn_forward<decltype(number), decltype(element)>(output, attn, q, k, v);
  });
}

void attn_backward_kernel(const AttnBackward& x) {
  dispatch(x.attn, [&](auto number, auto element) {
    attn_backward<decltype(number), decltype(element)>(x);
  });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
