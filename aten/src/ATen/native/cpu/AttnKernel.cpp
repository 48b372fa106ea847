// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <ATen/native/cpu/AttnLayout.h>

namespace at::native {

namespace {

using namespace attn_tile;

// A tile of attn stays in the L1 cache, a block in the L2 cache.
constexpr int64_t kTileRows = 32, kColumns = 256;
constexpr int64_t kForwardRows = 64, kBackwardRows = 128;

// Columns of attn for which the backward goes through all rows: those of a row
// share a page, which the processor then looks up once.
constexpr int64_t kPanelColumns = 1024;

// Less work than this (FLOP), or fewer numbers to copy, is not worth another
// thread.
constexpr double kThreadWork = 2e6;
constexpr int64_t kThreadCopies = 1 << 15;

// What tanh and 1 - attn^2 cost for each number of attn, as a number of columns
// added to D + E.
constexpr int64_t kTanhColumns = 16, kSlopeColumns = 4;

// Scratch takes at most as many bytes as attn, or 4 MiB, or what two threads
// need.
template <typename scalar_t>
int64_t most_scratch(int64_t n) {
  return std::max<int64_t>(n * n * sizeof(scalar_t), 4 << 20);
}

int64_t threads_for(double flop) {
  return std::min<int64_t>(at::get_num_threads(), flop / kThreadWork + 1);
}

// Added to rows of scratch: if they lay a power of two apart, they would share
// a few sets of the cache.
constexpr int64_t kGap = 16;

// How far apart the rows of a block lie.
template <typename scalar_t>
int64_t block_stride(int64_t columns) {
  return scratch_size<scalar_t>(std::min(columns, kColumns)) + kGap;
}

// The same numbers in another type
template <typename To, typename From, int n>
auto converted(const VectorizedN<From, n>& x) {
  constexpr int count = n * Vectorized<From>::size() / Vectorized<To>::size();
  return vec::convert<To, count, From, n>(x);
}

// A vector of scalar_t, as numbers of the type that sums have
template <typename scalar_t, typename opmath_t>
using Wide = VectorizedN<
    opmath_t,
    Vectorized<scalar_t>::size() / Vectorized<opmath_t>::size()>;

// attn (n) <- tanh(scores), copy <- attn. Behind them the copy has zeros up to
// `end`: scores there may be NaN, as products of infinity and padding.
template <typename scalar_t, typename operand_t, typename opmath_t>
void tanh_row(
    const opmath_t* scores,
    scalar_t* attn,
    operand_t* copy,
    int64_t n,
    int64_t end) {
  using Vec = Vectorized<opmath_t>;
  constexpr int64_t width = Vectorized<scalar_t>::size();
  for (int64_t j = 0; j < n; j += width) {
    const auto loaded = Wide<scalar_t, opmath_t>::loadu(scores + j);
    const auto x = loaded.unary_op([](const Vec& part) {
      if constexpr (sizeof(scalar_t) == 2) {
        return short_tanh(part);
      } else {
        return tanh(part);
      }
    });
    const VectorizedN<scalar_t, 1> result = converted<scalar_t>(x);
    result.store(attn + j, std::min(width, n - j));
    converted<operand_t>(result).store(copy + j);
  }
  std::fill(copy + n, copy + end, operand_t(0));
}

// scores (n) <- grad_attn * (1 - attn^2), and zeros behind them up to `end`
template <typename scalar_t, typename operand_t, typename opmath_t>
void grad_row(
    const opmath_t* grad_attn,
    const scalar_t* attn,
    operand_t* scores,
    int64_t n,
    int64_t end) {
  constexpr int64_t width = Vectorized<scalar_t>::size();
  using Wide = Wide<scalar_t, opmath_t>;
  const Wide one(opmath_t(1));
  for (int64_t j = 0; j < n; j += width) {
    const int64_t count = std::min(width, n - j);
    const auto loaded = VectorizedN<scalar_t, 1>::loadu(attn + j, count);
    const Wide a = converted<opmath_t>(loaded);
    const Wide grad = Wide::loadu(grad_attn + j) * ((one - a) * (one + a));
    converted<operand_t>(grad).store(scores + j);
  }
  std::fill(scores + n, scores + end, operand_t(0));
}

// Rows and columns of attn from (i, j)
struct Block {
  int64_t i, j, rows, columns;
};

// sums <- sums + a block of x
template <typename scalar_t, typename opmath_t>
void add_block(const Tensor& x, const Block& b, Matrix<opmath_t> sums) {
  const int64_t row = x.stride(0), column = x.stride(1);
  const scalar_t* from = x.const_data_ptr<scalar_t>();
  from += b.i * row + b.j * column;
  for (const auto r : c10::irange(b.rows)) {
    opmath_t* to = sums[r];
    for (const auto c : c10::irange(b.columns)) {
      to[c] += static_cast<opmath_t>(from[r * row + c * column]);
    }
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

// attn <- tanh(q @ k.T), output <- attn @ v, a block of rows at a time.
template <typename scalar_t, typename operand_t>
struct Forward {
  using operand_type = operand_t;
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr int64_t vnni = kVnni<operand_t>;
  static constexpr auto pad = scratch_size<scalar_t>;

  Forward(
      const Tensor& output,
      const Tensor& attn,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v)
      : q_(matrix<scalar_t>(q)),
        k_(matrix<scalar_t>(k)),
        v_(matrix<scalar_t>(v)),
        output_{output.mutable_data_ptr<scalar_t>(), v.size(1)},
        attn_{attn.mutable_data_ptr<scalar_t>(), q.size(0)} {}

  void run() {
    int64_t threads = threads_for(2. * n_ * n_ * (d_ + e_ + kTanhColumns));
    rows_ = pad(ceil_div(n_, round_up(ceil_div(n_, kForwardRows), threads)));
    const int64_t blocks = ceil_div(n_, rows_);
    const int64_t fitting =
        (most_scratch<scalar_t>(n_) - share({})) / Local(*this, {}).bytes;
    threads = std::min({threads, blocks, std::max<int64_t>(fitting, 2)});
    const auto each = allocate_scratch(*this, threads);
    const int64_t pieces = ceil_div(n_, kForwardRows);
    const int64_t least = kThreadCopies / (kForwardRows * (d_ + e_ + 1)) + 1;
    const int64_t grain = std::max(ceil_div(pieces, threads), least);
    each(pieces, grain, [&](Local& local, int64_t piece) {
      const int64_t i = piece * kForwardRows;
      const int64_t rows = std::min(kForwardRows, n_ - i);
      pack_transposed<1>(k_.from(i), rows, d_, local.copy, k_t(i));
      pack<vnni>(v_.from(i), rows, e_, v_copy_.from(i / vnni));
    });
    each(blocks, ceil_div(blocks, threads), [&](Local& local, int64_t block) {
      run_block(local, block * rows_);
    });
  }

  int64_t share(Slices slices) {
    const int64_t n = pad(n_), stride = block_stride<scalar_t>(n_) * vnni;
    const int64_t rows = ceil_div(n, kColumns) * pad(d_) / vnni;
    k_t_ = slices.take<operand_t>(rows, stride);
    v_copy_ = slices.take<operand_t>(n / vnni, (pad(e_) + kGap) * vnni);
    return slices.bytes;
  }

  // The arrays of a thread
  struct Local {
    Local(const Forward& f, Slices slices) {
      const int64_t stride = block_stride<scalar_t>(f.n_), d = pad(f.d_);
      copy = slices.take<operand_t>(kUnit<scalar_t>, d);
      q = slices.take<operand_t>(f.rows_, d);
      scores = slices.take<opmath_t>(std::min(f.rows_, kTileRows), stride);
      attn = slices.take<operand_t>(f.rows_, stride);
      sums = slices.take<opmath_t>(f.rows_, pad(f.e_));
      bytes = slices.bytes;
    }
    Matrix<operand_t> copy, q, attn;
    Matrix<opmath_t> scores, sums;
    int64_t bytes;
  };

  // Columns j.. of k.T
  Matrix<operand_t> k_t(int64_t j) const {
    return k_t_.from(j / kColumns * pad(d_) / vnni, j % kColumns * vnni);
  }

  void run_block(const Local& local, int64_t i) const {
    const int64_t rows = std::min(rows_, n_ - i), height = pad(rows);
    pack<1>(q_.from(i), rows, d_, local.q);
    for (int64_t j = 0; j < n_; j += kColumns) {
      const int64_t columns = std::min(kColumns, n_ - j), width = pad(columns);
      for (int64_t r = 0; r < height; r += kTileRows) {
        // scores <- q @ k.T, attn <- tanh(scores)
        const int64_t m = std::min(kTileRows, height - r);
        const Sizes sizes{m, width, product_size<operand_t>(d_)};
        product<operand_t>(sizes, local.q.from(r), k_t(j), local.scores, false);
        for (const auto row : c10::irange(r, r + m)) {
          const auto scores = local.scores[row - r], copy = local.attn[row];
          const int64_t n = row < rows ? columns : 0;
          tanh_row(scores, attn_[i + row] + j, copy, n, width);
        }
      }
      // output <- output + attn @ v
      const Sizes sizes{height, product_size<operand_t>(e_), width};
      const auto v = v_copy_.from(j / vnni);
      product<operand_t>(sizes, local.attn, v, local.sums, j > 0);
    }
    for (const auto r : c10::irange(rows)) {
      vec::convert(local.sums[r], output_[i + r], e_);
    }
  }

  const Matrix<const scalar_t> q_, k_, v_;
  const Matrix<scalar_t> output_, attn_;
  const int64_t n_ = attn_.stride, d_ = q_.stride, e_ = v_.stride;
  int64_t rows_ = 0; // of a block
  Matrix<operand_t> k_t_{}, v_copy_{};
};

// Each part of the work owns some columns of attn. It sums the transposes of
// these rows of grad_k and grad_v, and its own share of grad_q.
template <typename scalar_t, typename operand_t>
struct Backward {
  using operand_type = operand_t;
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr int64_t vnni = kVnni<operand_t>;
  static constexpr auto pad = scratch_size<scalar_t>;

  Backward(const AttnGradients& grads, const AttnBackwardArgs& args)
      : grads_(grads), args_(args) {}

  void run() {
    parts_ = threads_for(4. * n_ * n_ * (d_ + e_ + kSlopeColumns));
    const auto bytes = [&] {
      share_ = pad(ceil_div(n_, parts_));
      parts_ = ceil_div(n_, share_);
      return share({}) + parts_ * Local(*this, {}).bytes;
    };
    while (bytes() > most_scratch<scalar_t>(n_) && parts_ > 2) {
      parts_--;
    }
    const auto each = allocate_scratch(*this, parts_);
    const int64_t grain = ceil_div(blocks_, parts_);
    each(blocks_, grain, [&](Local& x, int64_t block) { load(x, block); });
    each(parts_, 1, [&](Local& x, int64_t part) { run_part(x, part); });
    if (has_q_) {
      sum_grad_q();
    }
  }

  int64_t share(Slices slices) {
    const int64_t n = blocks_ * rows_, d = pad(d_), e = pad(e_);
    q_t_ = slices.take<operand_t>(has_k_ * blocks_ * d, rows_);
    grad_output_t_ = slices.take<operand_t>(has_v_ * blocks_ * e, rows_);
    grad_output_a_ = slices.take<operand_t>(has_scores_ && e_ > 0 ? n : 0, e);
    grad_q_ = slices.take<opmath_t>(has_q_ * parts_ * n, d);
    return slices.bytes;
  }

  // The arrays of a thread, and the part and the panel that it works on
  struct Local {
    Local(const Backward& b, Slices slices) {
      const int64_t stride = block_stride<scalar_t>(b.share_), rows = b.rows_;
      const int64_t panel = std::min(b.share_, kPanelColumns);
      const int64_t d = pad(b.d_), e = pad(b.e_), wide = panel + kGap;
      copy = slices.take<operand_t>(kUnit<scalar_t>, std::max(d, e));
      k = slices.take<operand_t>(b.has_q_ * panel / vnni, (d + kGap) * vnni);
      v_t = slices.take<operand_t>(b.has_scores_ * e / vnni, wide * vnni);
      sums = slices.take<opmath_t>(b.has_scores_ * kTileRows, stride);
      scores = scores_b = slices.take<operand_t>(b.has_scores_ * rows, stride);
      if (vnni > 1) {
        scores_b =
            slices.take<operand_t>(b.has_k_ * rows / vnni, stride * vnni);
      }
      attn = slices.take<operand_t>(b.has_v_ * rows / vnni, stride * vnni);
      grad_k_t = slices.take<opmath_t>(b.has_k_ * d, wide);
      grad_v_t = slices.take<opmath_t>(b.has_v_ * e, wide);
      grad = slices.take<opmath_t>(16, std::max(d, e));
      bytes = slices.bytes;
    }
    Matrix<operand_t> copy, k, v_t, scores, scores_b, attn;
    Matrix<opmath_t> sums, grad_k_t, grad_v_t, grad;
    int64_t bytes, part = 0, first = 0;
  };

  // Copies a block of rows of q and grad_output, which every part reads.
  void load(const Local& local, int64_t block) {
    const int64_t i = block * rows_, rows = std::min(rows_, n_ - i);
    const auto grad_output = grad_output_.from(i);
    if (has_k_) {
      const auto to = q_t_.from(block * pad(d_));
      pack_transposed<vnni>(q_.from(i), rows, d_, local.copy, to);
    }
    if (has_v_) {
      const auto to = grad_output_t_.from(block * pad(e_));
      pack_transposed<vnni>(grad_output, rows, e_, local.copy, to);
    }
    if (has_scores_ && e_ > 0) {
      pack<1>(grad_output, rows, e_, grad_output_a_.from(i));
    }
  }

  void run_part(Local& local, int64_t part) {
    const int64_t begin = part * share_, end = std::min(begin + share_, n_);
    local.part = part;
    for (int64_t first = begin; first < end; first += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, end - first);
      local.first = first;
      if (has_q_) {
        pack<vnni>(k_.from(first), columns, d_, local.k);
      }
      if (has_scores_ && e_ > 0) {
        pack_transposed<1>(v_.from(first), columns, e_, local.copy, local.v_t);
      }
      for (int64_t i = 0; i < n_; i += rows_) {
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = std::min(kColumns, columns - j);
          run_block(local, {i, first + j, std::min(rows_, n_ - i), width});
        }
      }
      store(local, local.grad_k_t, grads_.grad_k, columns);
      store(local, local.grad_v_t, grads_.grad_v, columns);
    }
  }

  void run_block(const Local& local, const Block& b) {
    const int64_t height = pad(b.rows), width = pad(b.columns);
    const int64_t block = b.i / rows_, j = b.j - local.first;
    for (int64_t r = 0; r < height && has_scores_; r += kTileRows) {
      grad_scores(local, b, r);
    }
    if (has_q_) {
      // grad_q <- grad_q + grad_scores @ k
      const Sizes sizes{height, product_size<operand_t>(d_), width};
      const auto k = local.k.from(j / vnni), to = grad_q(local.part, b.i);
      const bool add = b.j > local.part * share_;
      product<operand_t>(sizes, local.scores, k, to, add);
    }
    // The transposes of grad_k and grad_v
    if (has_k_) {
      if constexpr (vnni > 1) {
        const Matrix<const operand_t> scores = local.scores;
        pack<vnni>(scores, height, width, local.scores_b);
      }
      const Sizes sizes{product_size<operand_t>(d_), width, height};
      const auto q = q_t_.from(block * pad(d_));
      const auto to = local.grad_k_t.from(0, j);
      product<operand_t>(sizes, q, local.scores_b, to, b.i > 0);
    }
    if (has_v_) {
      const Sizes sizes{product_size<operand_t>(e_), width, height};
      const auto grad_output = grad_output_t_.from(block * pad(e_));
      const auto to = local.grad_v_t.from(0, j);
      pack<vnni>(attn_.from(b.i, b.j), b.rows, b.columns, local.attn);
      product<operand_t>(sizes, grad_output, local.attn, to, b.i > 0);
    }
  }

  // scores <- grad_attn * (1 - attn^2), for the tile from row r of a block
  void grad_scores(const Local& local, const Block& b, int64_t r) {
    const int64_t height = std::min(kTileRows, pad(b.rows) - r);
    const int64_t width = pad(b.columns);
    const auto sums = local.sums;
    // grad_attn <- grad_output @ v.T
    if (e_ > 0) {
      const auto grad_output = grad_output_a_.from(b.i + r);
      const auto v = local.v_t.from(0, (b.j - local.first) * vnni);
      const Sizes sizes{height, width, product_size<operand_t>(e_)};
      product<operand_t>(sizes, grad_output, v, sums, false);
    } else {
      std::fill_n(sums.data, height * sums.stride, opmath_t(0));
    }
    if (args_.grad_attn.defined()) {
      const int64_t rows = std::min(height, b.rows - r);
      add_block<scalar_t>(
          args_.grad_attn, {b.i + r, b.j, rows, b.columns}, sums);
    }
    for (const auto row : c10::irange(r, r + height)) {
      const int64_t next = std::min(b.i + row + kTileRows, n_ - 1);
      prefetch(attn_[next] + b.j, b.columns);
      const scalar_t* attn = attn_[b.i + row] + b.j;
      const int64_t n = row < b.rows ? b.columns : 0;
      grad_row(sums[row - r], attn, local.scores[row], n, width);
    }
  }

  // The panel's rows of grad <- the transpose of sums
  static void store(
      const Local& local,
      Matrix<opmath_t> sums,
      const Tensor& grad,
      int64_t rows) {
    if (!grad.defined()) {
      return;
    }
    const int64_t size = grad.size(1);
    scalar_t* to = grad.mutable_data_ptr<scalar_t>() + local.first * size;
    for (const auto r : c10::irange(rows)) {
      if (r % 16 == 0) {
        transpose<opmath_t>(sums.from(0, r), pad(size), 16, local.grad);
      }
      vec::convert(local.grad[r % 16], to + r * size, size);
    }
  }

  // A part's sums of grad_q from row i
  Matrix<opmath_t> grad_q(int64_t part, int64_t i) const {
    return grad_q_.from(part * blocks_ * rows_ + i);
  }

  void sum_grad_q() {
    scalar_t* to = grads_.grad_q.template mutable_data_ptr<scalar_t>();
    const int64_t grain = kThreadCopies / (parts_ * (d_ + 1)) + 1;
    at::parallel_for(0, n_, grain, [&](auto first, auto last) {
      for (const auto i : c10::irange(first, last)) {
        opmath_t* sums = grad_q_[i];
        for (const auto part : c10::irange(int64_t(1), parts_)) {
          const opmath_t* others = grad_q(part, i).data;
          for (const auto c : c10::irange(d_)) {
            sums[c] += others[c];
          }
        }
        vec::convert(sums, to + i * d_, d_);
      }
    });
  }

  const AttnGradients& grads_;
  const AttnBackwardArgs& args_;
  using Input = Matrix<const scalar_t>;
  const Input q_ = matrix<scalar_t>(args_.q), k_ = matrix<scalar_t>(args_.k);
  const Input v_ = matrix<scalar_t>(args_.v);
  const Input attn_ = matrix<scalar_t>(args_.attn);
  const Input grad_output_ = matrix<scalar_t>(args_.grad_output);
  // Which gradients are wanted; that of the scores is for grad_q and grad_k.
  const bool has_q_ = grads_.grad_q.defined(), has_k_ = grads_.grad_k.defined();
  const bool has_v_ = grads_.grad_v.defined(), has_scores_ = has_q_ || has_k_;
  const int64_t n_ = attn_.stride, e_ = grad_output_.stride;
  const int64_t d_ = has_scores_ ? (has_q_ ? k_ : q_).stride : 0;
  // Rows of a block, and how many blocks
  const int64_t rows_ = std::min(pad(n_), kBackwardRows);
  const int64_t blocks_ = ceil_div(n_, rows_);
  // Parts of the work, and their columns
  int64_t parts_ = 0, share_ = 0;
  Matrix<operand_t> q_t_{}, grad_output_t_{}, grad_output_a_{};
  Matrix<opmath_t> grad_q_{};
};

// Calls f with a number of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& t, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, t.scalar_type(), "attn_cpu", [&] {
        // Setting AMX up is not worth it for few rows.
        const bool many = t.size(0) > 8;
        if constexpr (kHasVnni && std::is_same_v<scalar_t, BFloat16>) {
          if (many && has_vnni_products()) {
            try {
              return f(BFloat16(), BFloat16());
            } catch (const c10::Error&) {
              // Another thread has switched oneDNN off. Any other error comes
              // again below.
            }
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
  dispatch(q, [&](auto number, auto operand) {
    Forward<decltype(number), decltype(operand)>(output, attn, q, k, v).run();
  });
}

void attn_backward_kernel(
    const AttnGradients& grads,
    const AttnBackwardArgs& args) {
  dispatch(args.attn, [&](auto number, auto operand) {
    Backward<decltype(number), decltype(operand)>(grads, args).run();
  });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(attn_stub, &attn_kernel)
ALSO_REGISTER_AVX512_DISPATCH(attn_backward_stub, &attn_backward_kernel)

} // namespace at::native
