// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <ATen/native/cpu/AttnLayout.h>
#include <ATen/native/cpu/AttnSchedule.h>

namespace at::native {

namespace {

using namespace attn_tile;

// A tile of attn and its block stay in the L2 cache.
constexpr int64_t kTileRows = 32, kColumns = 256;
constexpr int64_t kForwardRows = 64, kBackwardRows = 128;

// The backward goes through all rows of as many columns of attn: 1,024 floats
// are one 4 KiB page, so a row costs one TLB entry.
constexpr int64_t kPanelColumns = 1024;

// Fewer columns than this are not worth a part of their own.
constexpr int64_t kLeastPart = 64;

// Fewer numbers to copy than this are not worth another thread.
constexpr int64_t kThreadCopies = 1 << 15;

// What tanh and 1 - attn^2 cost for each number of attn, as a number of columns
// added to D + E.
constexpr int64_t kTanhColumns = 16, kSlopeColumns = 4;

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
    const auto loaded = Widened<scalar_t, opmath_t>::loadu(scores + j);
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
  using Wide = Widened<scalar_t, opmath_t>;
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

// Where matrix b of x begins
int64_t matrix_offset(const Tensor& x, int64_t b) {
  int64_t offset = 0;
  for (int64_t i = x.dim() - 3; i >= 0; i--) {
    offset += b % x.size(i) * x.stride(i);
    b /= x.size(i);
  }
  return offset;
}

// Rows and columns of matrix b of attn, from (i, j)
struct Block {
  int64_t b, i, j, rows, columns;
};

// sums <- sums + a block of x
template <typename scalar_t, typename opmath_t>
void add_block(const Tensor& x, const Block& at, Matrix<opmath_t> sums) {
  const int64_t row = x.stride(-2), column = x.stride(-1);
  const scalar_t* from = x.const_data_ptr<scalar_t>();
  from += matrix_offset(x, at.b) + at.i * row + at.j * column;
  for (const auto r : c10::irange(at.rows)) {
    opmath_t* to = sums[r];
    for (const auto c : c10::irange(at.columns)) {
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
        output_{output.mutable_data_ptr<scalar_t>(), v.size(-1)},
        attn_{attn.mutable_data_ptr<scalar_t>(), k.size(-2)},
        m_(q.size(-2)),
        matrices_(attn.numel() / (m_ * n_)) {}

  // Copies of a matrix's v, and of k.T in blocks of columns below each other
  struct Copies {
    Copies(const Forward& f, Slices& slices) {
      const int64_t n = pad(f.n_);
      const int64_t stride = scratch_stride<scalar_t>(std::min(n, kColumns));
      k_t_rows = pad(f.d_) / vnni;
      k_t = slices.take<operand_t>(
          ceil_div(n, kColumns) * k_t_rows, stride * vnni);
      v = slices.take<operand_t>(n / vnni, (pad(f.e_) + kGap) * vnni);
    }
    // Columns j.. of k.T
    Matrix<operand_t> k_t_from(int64_t j) const {
      return k_t.from(j / kColumns * k_t_rows, j % kColumns * vnni);
    }
    Matrix<operand_t> k_t, v;
    int64_t k_t_rows;
  };

  // The arrays of a thread
  struct Tile {
    Tile(const Forward& f, Slices& slices) {
      const int64_t stride = scratch_stride<scalar_t>(std::min(f.n_, kColumns));
      const int64_t rows = std::min(pad(f.m_), kForwardRows), d = pad(f.d_);
      copy = slices.take<operand_t>(kUnit<scalar_t>, d);
      q = slices.take<operand_t>(rows, d);
      scores = slices.take<opmath_t>(std::min(rows, kTileRows), stride);
      attn = slices.take<operand_t>(rows, stride);
      sums = slices.take<opmath_t>(rows, pad(f.e_));
    }
    Matrix<operand_t> copy, q, attn;
    Matrix<opmath_t> scores, sums;
  };

  void run() const {
    const double flop = 2. * m_ * n_ * (d_ + e_ + kTanhColumns);
    const Schedule s = schedule(
        matrices_,
        flop,
        ceil_div(m_, kUnit<scalar_t>),
        ceil_div(m_, kForwardRows),
        ceil_div(m_, kUnit<scalar_t>));
    const Scratch<Tile, Forward> tiles(*this, s.threads);
    run_whole(s, tiles);
    run_rest(s, tiles);
  }

  void run_whole(const Schedule& s, const Scratch<Tile, Forward>& tiles) const {
    const Scratch<Copies, Forward> copies(*this, s.whole > 0 ? s.threads : 0);
    each<Products>(s.whole, s.threads, [&](int64_t thread, int64_t b) {
      const Tile tile = tiles[thread];
      const Copies own = copies[thread];
      for (int64_t j = 0; j < n_; j += kForwardRows) {
        copy_rows(tile, own, b, j);
      }
      for (int64_t i = 0; i < m_; i += kForwardRows) {
        run_block(tile, own, b, i, std::min(kForwardRows, m_ - i));
      }
    });
  }

  void run_rest(const Schedule& s, const Scratch<Tile, Forward>& tiles) const {
    const Scratch<Copies, Forward> copies(*this, s.rest);
    const int64_t pieces = ceil_div(n_, kForwardRows);
    const int64_t copied = s.rest * n_ * (d_ + e_) / kThreadCopies + 1;
    each<Products>(
        s.rest * pieces,
        std::min(s.threads, copied),
        [&](int64_t thread, int64_t task) {
          const int64_t b = task / pieces, j = task % pieces * kForwardRows;
          copy_rows(tiles[thread], copies[b], s.whole + b, j);
        });
    const auto at = [&](int64_t part) {
      return cut(m_, kUnit<scalar_t>, s.parts, part);
    };
    each<Products>(
        s.rest * s.parts, s.threads, [&](int64_t thread, int64_t task) {
          const int64_t b = task / s.parts, part = task % s.parts;
          const int64_t i = at(part), rows = at(part + 1) - i;
          run_block(tiles[thread], copies[b], s.whole + b, i, rows);
        });
  }

  void copy_rows(const Tile& tile, const Copies& to, int64_t b, int64_t j)
      const {
    const int64_t rows = std::min(kForwardRows, n_ - j), from = b * n_ + j;
    pack_transposed<1>(k_.from(from), rows, d_, tile.copy, to.k_t_from(j));
    pack<vnni>(v_.from(from), rows, e_, to.v.from(j / vnni));
  }

  void run_block(
      const Tile& tile,
      const Copies& copies,
      int64_t b,
      int64_t i,
      int64_t rows) const {
    const int64_t height = tile_size(rows), first = b * m_ + i;
    pack<1>(q_.from(first), rows, d_, tile.q);
    for (int64_t j = 0; j < n_; j += kColumns) {
      const int64_t columns = std::min(kColumns, n_ - j);
      const int64_t width = tile_size(columns);
      for (int64_t r = 0; r < height; r += kTileRows) {
        // scores <- q @ k.T, attn <- tanh(scores)
        const int64_t m = std::min(kTileRows, height - r);
        const Sizes sizes{m, width, product_size<operand_t>(d_)};
        product<operand_t>(
            sizes, tile.q.from(r), copies.k_t_from(j), tile.scores, false);
        for (const auto row : c10::irange(r, r + m)) {
          const auto scores = tile.scores[row - r], copy = tile.attn[row];
          const int64_t n = row < rows ? columns : 0;
          std::fill(scores + width, scores + pad(columns), opmath_t(0));
          tanh_row(scores, attn_[first + row] + j, copy, n, width);
        }
      }
      // output <- output + attn @ v
      const Sizes sizes{height, product_size<operand_t>(e_), width};
      const auto v = copies.v.from(j / vnni);
      product<operand_t>(sizes, tile.attn, v, tile.sums, j > 0);
    }
    for (const auto r : c10::irange(rows)) {
      vec::convert(tile.sums[r], output_[first + r], e_);
    }
  }

  using Products = ReleaseProducts<operand_t>;
  const Matrix<const scalar_t> q_, k_, v_;
  const Matrix<scalar_t> output_, attn_;
  const int64_t n_ = attn_.stride, d_ = q_.stride, e_ = v_.stride;
  const int64_t m_, matrices_;
};

// The gradients of one matrix are made for a panel of columns of attn at a
// time, and for some rows: rows of grad_q, and the transposes of rows of grad_k
// and grad_v, are sums over the products of its blocks.
template <typename scalar_t, typename operand_t>
struct Backward {
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr int64_t vnni = kVnni<operand_t>;
  static constexpr auto pad = scratch_size<scalar_t>;

  Backward(const AttnGradients& grads, const AttnBackwardArgs& args)
      : grads_(grads), args_(args) {}

  // The sums for grad_k and grad_v of a panel, transposed
  struct Panel {
    Panel(const Backward& b, Slices& slices) {
      const int64_t stride = scratch_stride<scalar_t>(b.columns_);
      grad_k_t = slices.take<opmath_t>(b.has_k_ * pad(b.d_), stride);
      grad_v_t = slices.take<opmath_t>(b.has_v_ * pad(b.e_), stride);
    }
    Matrix<opmath_t> grad_k_t, grad_v_t;
  };

  // The sums for grad_q of a matrix
  struct Sums {
    Sums(const Backward& b, Slices& slices) {
      grad_q = slices.take<opmath_t>(b.has_q_ * pad(b.m_), pad(b.d_));
    }
    Matrix<opmath_t> grad_q;
  };

  // The arrays of a thread: copies of a panel's rows of k and v, and of a
  // block's rows of q and grad_output, and a tile of attn
  struct Tile {
    Tile(const Backward& b, Slices& slices) {
      const int64_t d = pad(b.d_), e = pad(b.e_), columns = pad(b.columns_);
      const int64_t wide = scratch_stride<scalar_t>(columns);
      const int64_t stride =
          scratch_stride<scalar_t>(std::min(columns, kColumns));
      const int64_t rows = std::min(pad(b.rows_), kBackwardRows);
      copy = slices.take<operand_t>(kUnit<scalar_t>, std::max(d, e));
      k = slices.take<operand_t>(b.has_q_ * columns / vnni, (d + kGap) * vnni);
      v_t = slices.take<operand_t>(b.has_scores_ * e / vnni, wide * vnni);
      q_t = slices.take<operand_t>(b.has_k_ * d, kBackwardRows);
      grad_output_t = slices.take<operand_t>(b.has_v_ * e, kBackwardRows);
      grad_output = slices.take<operand_t>(b.has_scores_ * rows, e);
      sums = slices.take<opmath_t>(b.has_scores_ * kTileRows, stride);
      scores = scores_b = slices.take<operand_t>(b.has_scores_ * rows, stride);
      if (vnni > 1) {
        scores_b =
            slices.take<operand_t>(b.has_k_ * rows / vnni, stride * vnni);
      }
      attn = slices.take<operand_t>(b.has_v_ * rows / vnni, stride * vnni);
      grad = slices.take<opmath_t>(16, std::max(d, e));
    }
    Matrix<operand_t> copy, k, v_t, q_t, grad_output_t, grad_output;
    Matrix<operand_t> scores, scores_b, attn;
    Matrix<opmath_t> sums, grad;
  };

  void run() {
    const double flop = 4. * m_ * n_ * (d_ + e_ + kSlopeColumns);
    const Schedule s = schedule(
        matrices_,
        flop,
        ceil_div(n_, kUnit<scalar_t>),
        ceil_div(n_, kPanelColumns),
        std::min(m_, n_) / kLeastPart);
    if (s.whole > 0) {
      run_whole(s);
    }
    if (s.rest > 0) {
      run_rest(s);
    }
  }

  void run_whole(const Schedule& s) {
    rows_ = m_;
    columns_ = std::min(n_, kPanelColumns);
    const Scratch<Panel, Backward> panels(*this, s.threads);
    const Scratch<Sums, Backward> all_sums(*this, s.threads);
    const Scratch<Tile, Backward> tiles(*this, s.threads);
    each<Products>(s.whole, s.threads, [&](int64_t thread, int64_t b) {
      const Panel panel = panels[thread];
      const Sums sums = all_sums[thread];
      const Tile tile = tiles[thread];
      for (int64_t j = 0; j < n_; j += columns_) {
        const Block part{b, 0, j, m_, std::min(columns_, n_ - j)};
        run_part(tile, panel, sums, part, j > 0, false);
        store_columns(tile, panel, part);
      }
      store_rows(sums, {b, 0, 0, m_, n_});
    });
  }

  // The columns of a matrix are cut into parts, each with a panel of its own,
  // and its rows into as many. In every step each part takes other rows, so
  // that no two add to the same rows of grad_q, and every sum exists once.
  void run_rest(const Schedule& s) {
    const int64_t parts = s.parts;
    const auto at = [&](int64_t size, int64_t part) {
      return cut(size, kUnit<scalar_t>, parts, part);
    };
    rows_ = ceil_div(pad(m_), parts);
    columns_ = ceil_div(pad(n_), parts);
    const Scratch<Panel, Backward> panels(*this, s.rest * parts);
    const Scratch<Sums, Backward> all_sums(*this, s.rest);
    const Scratch<Tile, Backward> tiles(*this, s.threads);
    for (const auto step : c10::irange(parts)) {
      each<Products>(
          s.rest * parts, s.threads, [&](int64_t thread, int64_t task) {
            const int64_t b = task / parts, columns = task % parts;
            const int64_t rows = (columns + step) % parts;
            const int64_t i = at(m_, rows), j = at(n_, columns);
            const Block part{
                s.whole + b,
                i,
                j,
                at(m_, rows + 1) - i,
                at(n_, columns + 1) - j};
            const bool add = step > 0;
            run_part(tiles[thread], panels[task], all_sums[b], part, add, add);
            if (step == parts - 1) {
              store_columns(tiles[thread], panels[task], part);
              store_rows(all_sums[b], part);
            }
          });
    }
  }

  // Adds a part's products to the sums, or sets them where it comes first.
  void run_part(
      const Tile& tile,
      const Panel& panel,
      const Sums& sums,
      const Block& part,
      bool add_q,
      bool add_k) const {
    const int64_t first = part.b * n_ + part.j;
    if (has_q_) {
      pack<vnni>(k_.from(first), part.columns, d_, tile.k);
    }
    if (has_scores_ && e_ > 0) {
      pack_transposed<1>(v_.from(first), part.columns, e_, tile.copy, tile.v_t);
    }
    for (int64_t i = 0; i < part.rows; i += kBackwardRows) {
      const int64_t rows = std::min(kBackwardRows, part.rows - i);
      load_rows(tile, part.b * m_ + part.i + i, rows);
      for (int64_t j = 0; j < part.columns; j += kColumns) {
        const int64_t columns = std::min(kColumns, part.columns - j);
        const Block block{part.b, part.i + i, part.j + j, rows, columns};
        const auto grad_q = sums.grad_q.from(block.i);
        run_block(
            tile, panel, grad_q, block, j, add_q || j > 0, add_k || i > 0);
      }
    }
  }

  // Copies a block's rows of q and grad_output, from row i of all.
  void load_rows(const Tile& tile, int64_t i, int64_t rows) const {
    if (has_k_) {
      pack_transposed<vnni>(q_.from(i), rows, d_, tile.copy, tile.q_t);
    }
    const auto grad_output = grad_output_.from(i);
    if (has_v_) {
      pack_transposed<vnni>(
          grad_output, rows, e_, tile.copy, tile.grad_output_t);
    }
    if (has_scores_ && e_ > 0) {
      pack<1>(grad_output, rows, e_, tile.grad_output);
    }
  }

  // j is the place of the block in the panel.
  void run_block(
      const Tile& tile,
      const Panel& panel,
      Matrix<opmath_t> grad_q,
      const Block& block,
      int64_t j,
      bool add_q,
      bool add_k) const {
    const int64_t height = tile_size(block.rows);
    const int64_t width = tile_size(block.columns);
    for (int64_t r = 0; r < height && has_scores_; r += kTileRows) {
      grad_scores(tile, tile.v_t.from(0, j * vnni), block, r);
    }
    if (has_q_) {
      // grad_q <- grad_q + grad_scores @ k
      const Sizes sizes{height, product_size<operand_t>(d_), width};
      const auto k = tile.k.from(j / vnni);
      product<operand_t>(sizes, tile.scores, k, grad_q, add_q);
    }
    // The transposes of grad_k and grad_v
    if (has_k_) {
      if constexpr (vnni > 1) {
        const Matrix<const operand_t> scores = tile.scores;
        pack<vnni>(scores, height, width, tile.scores_b);
      }
      const Sizes sizes{product_size<operand_t>(d_), width, height};
      const auto to = panel.grad_k_t.from(0, j);
      product<operand_t>(sizes, tile.q_t, tile.scores_b, to, add_k);
    }
    if (has_v_) {
      const Sizes sizes{product_size<operand_t>(e_), width, height};
      const auto to = panel.grad_v_t.from(0, j);
      const auto attn = attn_.from(block.b * m_ + block.i, block.j);
      pack<vnni>(attn, block.rows, block.columns, tile.attn);
      product<operand_t>(sizes, tile.grad_output_t, tile.attn, to, add_k);
    }
  }

  // scores <- grad_attn * (1 - attn^2), for the tile from row r of a block
  void grad_scores(
      const Tile& tile,
      Matrix<const operand_t> v_t,
      const Block& block,
      int64_t r) const {
    const int64_t height = std::min(kTileRows, tile_size(block.rows) - r);
    const int64_t columns = block.columns, width = tile_size(columns);
    const auto sums = tile.sums;
    // grad_attn <- grad_output @ v.T
    if (e_ > 0) {
      const Sizes sizes{height, width, product_size<operand_t>(e_)};
      product<operand_t>(sizes, tile.grad_output.from(r), v_t, sums, false);
    } else {
      std::fill_n(sums.data, height * sums.stride, opmath_t(0));
    }
    if (args_.grad_attn.defined()) {
      const int64_t rows = std::min(height, block.rows - r);
      add_block<scalar_t>(
          args_.grad_attn,
          {block.b, block.i + r, block.j, rows, columns},
          sums);
    }
    const int64_t first = block.b * m_ + block.i;
    for (const auto row : c10::irange(r, r + height)) {
      const int64_t next =
          std::min(first + row + kTileRows, matrices_ * m_ - 1);
      prefetch(attn_[next] + block.j, columns);
      const scalar_t* attn = attn_[first + row] + block.j;
      const int64_t n = row < block.rows ? columns : 0;
      opmath_t* grad = sums[row - r];
      std::fill(grad + width, grad + pad(columns), opmath_t(0));
      grad_row(grad, attn, tile.scores[row], n, width);
    }
  }

  // A part's rows of grad_k and grad_v
  void store_columns(const Tile& tile, const Panel& panel, const Block& part)
      const {
    const int64_t first = part.b * n_ + part.j;
    store(tile, panel.grad_k_t, grads_.grad_k, first, part.columns);
    store(tile, panel.grad_v_t, grads_.grad_v, first, part.columns);
  }

  // Rows of grad from `first` <- the transpose of sums
  static void store(
      const Tile& tile,
      Matrix<opmath_t> sums,
      const Tensor& grad,
      int64_t first,
      int64_t rows) {
    if (!grad.defined()) {
      return;
    }
    const int64_t size = grad.size(-1);
    scalar_t* to = grad.mutable_data_ptr<scalar_t>() + first * size;
    for (const auto r : c10::irange(rows)) {
      if (r % 16 == 0) {
        transpose<opmath_t>(sums.from(0, r), pad(size), 16, tile.grad);
      }
      vec::convert(tile.grad[r % 16], to + r * size, size);
    }
  }

  // A part's rows of grad_q
  void store_rows(const Sums& sums, const Block& part) const {
    if (!has_q_) {
      return;
    }
    scalar_t* to = grads_.grad_q.template mutable_data_ptr<scalar_t>();
    to += part.b * m_ * d_;
    for (const auto i : c10::irange(part.i, part.i + part.rows)) {
      vec::convert(sums.grad_q[i], to + i * d_, d_);
    }
  }

  const AttnGradients& grads_;
  const AttnBackwardArgs& args_;
  using Products = ReleaseProducts<operand_t>;
  using Input = Matrix<const scalar_t>;
  const Input q_ = matrix<scalar_t>(args_.q), k_ = matrix<scalar_t>(args_.k);
  const Input v_ = matrix<scalar_t>(args_.v);
  const Input attn_ = matrix<scalar_t>(args_.attn);
  const Input grad_output_ = matrix<scalar_t>(args_.grad_output);
  // Which gradients are wanted; that of the scores is for grad_q and grad_k.
  const bool has_q_ = grads_.grad_q.defined(), has_k_ = grads_.grad_k.defined();
  const bool has_v_ = grads_.grad_v.defined(), has_scores_ = has_q_ || has_k_;
  const int64_t m_ = args_.attn.size(-2), n_ = attn_.stride;
  const int64_t matrices_ = args_.attn.numel() / (m_ * n_);
  const int64_t e_ = grad_output_.stride;
  const int64_t d_ = has_scores_ ? (has_q_ ? k_ : q_).stride : 0;
  int64_t rows_ = 0, columns_ = 0; // of a part, at most
};

// Calls f with a number of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& t, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, t.scalar_type(), "attn_cpu", [&] {
        if constexpr (kHasVnni && std::is_same_v<scalar_t, BFloat16>) {
          // Setting AMX up is not worth it for few rows.
          if (t.size(-2) > 8 && has_vnni_products()) {
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
