// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <ATen/native/cpu/AttnLayout.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>

namespace at::native {

namespace {

using namespace attn_tile;

// A tile of sums stays in the L1 cache, a block of attn in the L2 cache.
constexpr int64_t kTileRows = 32;
constexpr int64_t kForwardRows = 64, kBackwardRows = 128;

// Less work than this (FLOP), or fewer numbers to copy, is not worth another
// thread.
constexpr double kThreadWork = 2e6;
constexpr int64_t kCopied = 1 << 15;

// What tanh and 1 - attn^2 cost for each number of attn, as a number of columns
// added to D + E.
constexpr int64_t kTanhColumns = 16, kSlopeColumns = 4;

// Numbers of one array of sums that the L2 cache holds beside others.
constexpr int64_t kCachedSums = 1 << 18;

// Rows and columns of attn from (i, j).
struct Block {
  int64_t i, j, rows, columns;
};

int64_t threads_for(double flop) {
  return std::min<int64_t>(at::get_num_threads(), flop / kThreadWork + 1);
}

int64_t columns_of(const Tensor& t) {
  return t.defined() ? t.size(1) : 0;
}

// attn (n) <- tanh(scores), left <- attn. Writes whole vectors of left.
template <typename scalar_t, typename E>
void tanh_row(const SumOf<E>* scores, scalar_t* attn, E* left, int64_t n) {
  using Vec = Vectorized<SumOf<E>>;
  constexpr int64_t width = Vectorized<scalar_t>::size();
  using Wide = VectorizedN<SumOf<E>, width / Vec::size()>;
  for (int64_t j = 0; j < n; j += width) {
    const Wide x = Wide::loadu(scores + j).unary_op([](const Vec& part) {
      if constexpr (sizeof(scalar_t) == 2) {
        return short_tanh(part);
      } else {
        return tanh(part);
      }
    });
    const VectorizedN<scalar_t, 1> result = converted<scalar_t>(x);
    result.store(attn + j, std::min(width, n - j));
    converted<E>(result).store(left + j);
  }
  fill_pair(left, n);
}

// attn <- tanh(q @ k.T), output <- attn @ v, a block of rows at a time.
template <typename scalar_t, typename E>
class Forward {
  using T = SumOf<E>;
  static constexpr int64_t group = kGroup<E>;

 public:
  Forward(
      const Tensor& output,
      const Tensor& attn,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v)
      : q_(q),
        k_(k),
        v_(v),
        output_{output.mutable_data_ptr<scalar_t>(), v.size(1)},
        attn_{attn.mutable_data_ptr<scalar_t>(), q.size(0)},
        n_(q.size(0)),
        e_(v.size(1)),
        depth_(even<E>(q.size(1))) {}

  void run() {
    const int64_t threads =
        threads_for(2. * n_ * n_ * (depth_ + e_ + kTanhColumns));
    const int64_t blocks = round_up(ceil_div(n_, kForwardRows), threads);
    const int64_t rows = even<E>(ceil_div(n_, blocks));
    reserve(std::max(rows, kLoadRows));
    scratch_.allocate(threads);
    const int64_t loads = ceil_div(n_, kLoadRows);
    const int64_t least = kCopied / (kLoadRows * (depth_ + e_) + 1) + 1;
    const int64_t grain = std::max(ceil_div(loads, threads), least);
    at::parallel_for(0, loads, grain, [&](auto begin, auto end) {
      for (const auto i : c10::irange(begin, end)) {
        load(i * kLoadRows);
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
  // Rows of k and v that are transposed and copied at a time
  static constexpr int64_t kLoadRows = 64;

  void reserve(int64_t rows) {
    const int64_t stride = stride_of(n_);
    const int64_t copied = kInPlace<scalar_t, E> ? 0 : n_;
    k_t_ = scratch_.reserve<E>(
        ceil_div(n_, kColumns) * depth_ / group, stride * group);
    v_copy_ = scratch_.reserve<E>(ceil_div(copied, group), right_row<E>(e_));
    scratch_.begin_threads();
    copy_ = scratch_.reserve<E>(rows, depth_);
    scores_ = scratch_.reserve<T>(kTileRows, stride);
    attn_left_ = scratch_.reserve<E>(rows, stride);
    sums_ = scratch_.reserve<T>(rows, round_up<int64_t>(e_, 16));
  }

  // Columns j.. of k.T
  Matrix<E> k_t(int64_t j) const {
    return scratch_[k_t_].from(
        j / kColumns * depth_ / group, j % kColumns * group);
  }

  void load(int64_t i) {
    const int64_t rows = std::min(kLoadRows, n_ - i);
    if (depth_ > 0) {
      const auto k = left_factor<scalar_t>(k_, i, rows, scratch_[copy_]);
      transpose<E>(k, rows, depth_ / group, k_t(i));
    }
    right_factor<scalar_t>(v_, i, rows, scratch_[v_copy_].from(i / group));
  }

  void run_block(const Product<E>& product, int64_t i, int64_t rows) {
    const Matrix<T> scores = scratch_[scores_], sums = scratch_[sums_];
    const Matrix<E> left = scratch_[attn_left_];
    Matrix<const E> q{};
    if (depth_ > 0) {
      q = left_factor<scalar_t>(q_, i, rows, scratch_[copy_]);
    }
    for (int64_t j = 0; j < n_; j += kColumns) {
      const int64_t columns = std::min(kColumns, n_ - j);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        // scores <- q @ k.T, attn <- tanh(scores)
        const int64_t count = std::min(kTileRows, rows - r);
        const int64_t width = padded<E>(columns);
        product({count, width, depth_, q.from(r), k_t(j), scores, false});
        for (const auto x : c10::irange(count)) {
          scalar_t* attn = attn_[i + r + x] + j;
          tanh_row(scores[x], attn, left[r + x], columns);
        }
      }
      // output <- output + attn @ v
      Matrix<const E> v = scratch_[v_copy_].from(j / group);
      if constexpr (kInPlace<scalar_t, E>) {
        v = matrix<scalar_t>(v_).from(j);
      }
      product({rows, e_, even<E>(columns), left, v, sums, j > 0});
    }
    for (const auto r : c10::irange(rows)) {
      convert(sums[r], output_[i + r], e_);
    }
  }

  const Tensor &q_, &k_, &v_;
  Matrix<scalar_t> output_, attn_;
  int64_t n_, e_, depth_;
  Scratch scratch_;
  Rows<E> k_t_{}, v_copy_{}, copy_{}, attn_left_{};
  Rows<T> scores_{}, sums_{};
};

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

// For a row, or a pair of rows: scores (n) <- grad_attn * (1 - attn^2). Unless
// they are null, score_pairs gets pairs of scores and attn_right gets attn,
// both as right factors. Writes whole vectors.
template <typename scalar_t, typename E>
void grad_rows(
    int64_t rows,
    int64_t n,
    Matrix<const SumOf<E>> grad_attn,
    Matrix<const scalar_t> attn,
    Matrix<E> scores,
    E* score_pairs,
    E* attn_right) {
  using T = SumOf<E>;
  using Load = VectorizedN<scalar_t, 1>;
  using Wide = VectorizedN<T, Load::size() / Vectorized<T>::size()>;
  const Wide one(T(1));
  for (int64_t j = 0; j < n; j += Load::size()) {
    std::array<Load, kGroup<E>> x, grad;
#pragma GCC unroll 2
    for (int r = 0; r < kGroup<E>; r++) {
      x[r] = grad[r] = Load(scalar_t(0));
      if (r < rows) {
        x[r] = Load::loadu(attn[r] + j, std::min<int64_t>(n - j, Load::size()));
        const Wide a = converted<T>(x[r]);
        const Wide product =
            Wide::loadu(grad_attn[r] + j) * ((one - a) * (one + a));
        converted<E>(product).store(scores[r] + j);
        grad[r] = converted<scalar_t>(product);
      }
    }
    if constexpr (kGroup<E> == 1) {
      if (attn_right) {
        converted<E>(x[0]).store(attn_right + j);
      }
    } else {
      if (score_pairs) {
        store_pairs(grad[0], grad[1], score_pairs + 2 * j);
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

// Each part of the work owns some columns of attn. It sums the transposes of
// these rows of grad_k and grad_v, and its own share of grad_q.
template <typename scalar_t, typename E>
class Backward {
  using T = SumOf<E>;
  static constexpr int64_t group = kGroup<E>;
  static constexpr bool kSumInPlace = std::is_same_v<scalar_t, T>;

  // grad_k or grad_v: its transpose is the transpose of `input`, q or
  // grad_output, times `right`, the gradient of the scores or attn.
  struct ColumnGradient {
    const Tensor &grad, &input;
    Rows<E> input_t{}, right{};
    Rows<T> sums{};
  };

 public:
  Backward(const AttnGradients& grads, const AttnBackward& x)
      : grads_(grads),
        x_(x),
        grad_k_{grads.grad_k, x.q},
        grad_v_{grads.grad_v, x.grad_output},
        attn_(matrix<scalar_t>(x.attn)),
        n_(x.attn.size(0)),
        d_(std::max(columns_of(grads.grad_q), columns_of(grads.grad_k))),
        e_(columns_of(x.grad_output)),
        depth_(d_ > 0 ? even<E>(e_) : 0),
        rows_(std::min(even<E>(n_), kBackwardRows)) {
    parts_ = threads_for(4. * n_ * n_ * (d_ + e_ + kSlopeColumns));
    if (grads_.grad_q.defined()) {
      // All sums of grad_q take no more memory than attn, or than the cache
      // has, but at least two parts are allowed.
      const int64_t size = n_ * d_ + 1;
      parts_ = std::min(
          parts_, std::max<int64_t>({2, n_ * n_ / size, kCachedSums / size}));
    }
  }

  void run() {
    share_ = round_up<int64_t>(ceil_div(n_, parts_), 16);
    parts_ = ceil_div(n_, share_);
    reserve();
    const int64_t blocks = ceil_div(n_, rows_);
    const int64_t grain = ceil_div(blocks, parts_);
    at::parallel_for(0, blocks, grain, [&](auto begin, auto end) {
      for (const auto block : c10::irange(begin, end)) {
        load(grad_k_, block);
        load(grad_v_, block);
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
    if (grads_.grad_q.defined()) {
      sum_grad_q();
    }
  }

 private:
  void reserve() {
    const int64_t blocks = ceil_div(n_, rows_), stride = stride_of(share_);
    grad_k_.input_t =
        scratch_.reserve<E>(blocks * columns_of(grads_.grad_k), rows_);
    grad_v_.input_t =
        scratch_.reserve<E>(blocks * columns_of(grads_.grad_v), rows_);
    const int64_t sums = grads_.grad_q.defined() ? parts_ - kSumInPlace : 0;
    grad_q_ = scratch_.reserve<T>(sums * n_, round_up<int64_t>(d_, 16));
    scratch_.begin_threads();
    // Rows of an input that are not read in place
    const int64_t copied = kInPlace<scalar_t, E> ? 0 : std::max(rows_, stride);
    copy_ = scratch_.reserve<E>(copied, right_row<E>(std::max(d_, e_)));
    k_right_ = scratch_.reserve<E>(copied / group, right_row<E>(d_));
    v_t_ = scratch_.reserve<E>(depth_ / group, stride * group);
    sums_ = scratch_.reserve<T>(kTileRows, stride);
    scores_ = grad_k_.right = scratch_.reserve<E>(rows_, stride);
    if (group == 2) {
      grad_k_.right = scratch_.reserve<E>(rows_ / group, stride * group);
    }
    const int64_t attn_rows = grads_.grad_v.defined() ? rows_ / group : 0;
    grad_v_.right = scratch_.reserve<E>(attn_rows, stride * group);
    grad_ = scratch_.reserve<T>(
        kSumInPlace ? 0 : stride, round_up<int64_t>(std::max(d_, e_), 16));
    grad_k_.sums = scratch_.reserve<T>(columns_of(grads_.grad_k), stride);
    grad_v_.sums = scratch_.reserve<T>(columns_of(grads_.grad_v), stride);
    scratch_.allocate(parts_);
  }

  // Transposes a block of rows of an input, which every part reads.
  void load(const ColumnGradient& g, int64_t block) {
    if (g.grad.defined()) {
      const int64_t i = block * rows_, rows = std::min(rows_, n_ - i);
      const int64_t size = g.input.size(1);
      const auto from =
          right_factor<scalar_t>(g.input, i, rows, scratch_[copy_]);
      const auto to = scratch_[g.input_t].from(block * size);
      transpose<E>(from, ceil_div(rows, group), size, to);
    }
  }

  void run_columns(
      const Product<E>& product,
      int64_t part,
      int64_t j,
      int64_t columns) {
    Matrix<const E> k{};
    if (grads_.grad_q.defined()) {
      k = right_factor<scalar_t>(x_.k, j, columns, scratch_[k_right_]);
    }
    if (depth_ > 0) {
      const auto v = left_factor<scalar_t>(x_.v, j, columns, scratch_[copy_]);
      transpose<E>(v, columns, depth_ / group, scratch_[v_t_]);
    }
    for (int64_t i = 0; i < n_; i += rows_) {
      const Block at{i, j, std::min(rows_, n_ - i), columns};
      make_factors(product, at);
      if (grads_.grad_q.defined()) {
        // grad_q <- grad_q + grad_scores @ k
        const bool add = j > part * share_;
        const auto to = grad_q_sums(part).from(i);
        const int64_t depth = even<E>(columns);
        product({at.rows, d_, depth, scratch_[scores_], k, to, add});
      }
      add_columns(product, grad_k_, at);
      add_columns(product, grad_v_, at);
    }
    store_columns(grad_k_, j, columns);
    store_columns(grad_v_, j, columns);
  }

  // A block's factors: the gradient of the scores as left and right factor, and
  // attn as right factor.
  void make_factors(const Product<E>& product, const Block& at) {
    const bool wanted = grads_.grad_q.defined() || grads_.grad_k.defined();
    const Matrix<T> sums = scratch_[sums_];
    const Matrix<E> scores = scratch_[scores_];
    const Matrix<E> scores_right = scratch_[grad_k_.right];
    const Matrix<E> attn_right = scratch_[grad_v_.right];
    Matrix<const E> output{};
    if (depth_ > 0) {
      output =
          left_factor<scalar_t>(x_.grad_output, at.i, at.rows, scratch_[copy_]);
    }
    for (int64_t r = 0; r < at.rows; r += kTileRows) {
      const int64_t rows = std::min(kTileRows, at.rows - r);
      const Block tile{at.i + r, at.j, rows, at.columns};
      if (wanted) {
        // grad_attn <- grad_output @ v.T
        const int64_t width = padded<E>(at.columns);
        const auto left = output.from(r);
        product({rows, width, depth_, left, scratch_[v_t_], sums, false});
        if (x_.grad_attn.defined()) {
          add_tile<scalar_t>(x_.grad_attn, tile, sums);
        }
      }
      for (int64_t y = r; y < r + rows; y += group) {
        const int64_t count = std::min(group, r + rows - y);
        for (const auto x : c10::irange(count)) {
          const int64_t next = std::min(at.i + y + x + kTileRows, n_ - 1);
          prefetch(attn_[next] + at.j, at.columns);
        }
        grad_rows<scalar_t, E>(
            count,
            at.columns,
            sums.from(y - r),
            attn_.from(at.i + y, at.j),
            scores.from(y),
            wanted ? scores_right[y / group] : nullptr,
            grads_.grad_v.defined() ? attn_right[y / group] : nullptr);
      }
    }
  }

  // sums, of grad transposed, <- sums + left @ right
  void add_columns(
      const Product<E>& product,
      const ColumnGradient& g,
      const Block& at) {
    if (g.grad.defined()) {
      const int64_t size = g.grad.size(1), width = padded<E>(at.columns);
      const Matrix<const E> left =
          scratch_[g.input_t].from(at.i / rows_ * size);
      const Matrix<E> right = scratch_[g.right];
      const Matrix<T> sums = scratch_[g.sums];
      product({size, width, even<E>(at.rows), left, right, sums, at.i > 0});
    }
  }

  // Rows j.. of grad <- sums transposed
  void store_columns(const ColumnGradient& g, int64_t j, int64_t columns) {
    if (!g.grad.defined()) {
      return;
    }
    const int64_t size = g.grad.size(1);
    const Matrix<T> sums = scratch_[g.sums];
    scalar_t* to = g.grad.template mutable_data_ptr<scalar_t>() + j * size;
    if constexpr (kSumInPlace) {
      transpose<T>(sums, size, columns, {to, size});
    } else {
      const Matrix<T> rows = scratch_[grad_];
      transpose<T>(sums, size, columns, rows);
      for (const auto r : c10::irange(columns)) {
        convert(rows[r], to + r * size, size);
      }
    }
  }

  // Where the types are equal, the first part sums in grad_q itself.
  Matrix<T> grad_q_sums(int64_t part) const {
    if constexpr (kSumInPlace) {
      if (part == 0) {
        return {grads_.grad_q.template mutable_data_ptr<T>(), d_};
      }
    }
    return scratch_[grad_q_].from((part - kSumInPlace) * n_);
  }

  void sum_grad_q() {
    const Matrix<T> sums = grad_q_sums(0);
    const int64_t grain = kCopied / (parts_ * d_ + 1) + 1;
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
        scalar_t* to = grads_.grad_q.template mutable_data_ptr<scalar_t>();
        for (const auto i : c10::irange(begin, end)) {
          convert(sums[i], to + i * d_, d_);
        }
      }
    });
  }

  const AttnGradients& grads_;
  const AttnBackward& x_;
  ColumnGradient grad_k_, grad_v_;
  Matrix<const scalar_t> attn_;
  int64_t n_, d_, e_, depth_, rows_;
  // Parts of the work, and the columns of each
  int64_t parts_ = 0, share_ = 0;
  Scratch scratch_;
  Rows<T> grad_q_{}, grad_{}, sums_{};
  Rows<E> copy_{}, k_right_{}, v_t_{}, scores_{};
};

// Calls f with a value of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& t, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, t.scalar_type(), "attn_cpu", [&] {
        // Setting AMX up is not worth it for few rows.
        const bool many = t.size(0) > 8;
        if constexpr (kHasPairs && std::is_same_v<scalar_t, BFloat16>) {
          if (many && has_pair_products()) {
            return f(BFloat16(), BFloat16());
          }
        }
        f(scalar_t(), at::opmath_type<scalar_t>());
      });
}

void attn_kernel(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  dispatch(q, [&](auto number, auto element) {
    Forward<decltype(number), decltype(element)>(output, attn, q, k, v).run();
  });
}

void attn_backward_kernel(const AttnGradients& grads, const AttnBackward& x) {
  dispatch(x.attn, [&](auto number, auto element) {
    Backward<decltype(number), decltype(element)>(grads, x).run();
  });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
