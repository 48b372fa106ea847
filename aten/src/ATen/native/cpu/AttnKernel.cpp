// CPU kernels of attn and its backward: tiles of attn that stay in the cache
// between the products before and after them. Operands are read where they lie.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <ATen/native/cpu/AttnTile.h>
#include <c10/util/irange.h>

namespace at::native {

namespace {

using namespace attn_tile;

// A tile of attn has at most kKeys columns and a block's rows. Rows of a group
// share the tiles of k and v that are loaded for them.
constexpr int64_t kKeys = 128, kGroupRows = 256;

// bfloat16 is multiplied as float32 up to as many rows of q.
constexpr int64_t kFewRows = 16;

// Threads share a matrix in parts of at least as many keys.
constexpr int64_t kLeastKeys = 64;

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

// How many threads to use for so much work.
int64_t useful_threads(double flop) {
  const int64_t threads = at::get_num_threads();
  return flop < threads * kThreadWork ? flop / kThreadWork + 1 : threads;
}

// Into how many pieces to cut each of `count` tasks, at least `least` and at
// most `most`, so that all threads have about as much to do.
int64_t pieces(int64_t count, int64_t least, int64_t most, int64_t threads) {
  const auto busiest = [&](int64_t n) {
    return static_cast<double>(ceil_div(count * n, threads)) / n;
  };
  int64_t best = least;
  for (const auto n :
       c10::irange(least + 1, std::min(most, least + threads) + 1)) {
    // More pieces have a price, so they must even the work out.
    best = busiest(n) < 0.95 * busiest(best) ? n : best;
  }
  return best;
}

// Where piece i of `count` begins: multiples of 16.
int64_t cut(int64_t size, int64_t count, int64_t i) {
  return std::min(size, ceil_div<int64_t>(size, 16) * i / count * 16);
}

// Other code in a thread configures AMX for itself.
template <typename operand_t>
struct ReleaseProducts {
  ~ReleaseProducts() {
    if (kVnni<operand_t> == 2) {
      cpublas::brgemm_release();
    }
  }
};

// attn (n) <- tanh(scores), copy <- attn, and zeros behind them up to `end`
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
    const int64_t count = std::min(width, n - j);
    const auto loaded = Widened<scalar_t, opmath_t>::loadu(scores + j, count);
    const auto x = loaded.unary_op([](const Vec& part) {
      if constexpr (sizeof(scalar_t) == 2) {
        return short_tanh(part);
      } else {
        return tanh(part);
      }
    });
    const VectorizedN<scalar_t, 1> result = converted<scalar_t>(x);
    result.store(attn + j, count);
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
    const Wide grad =
        Wide::loadu(grad_attn + j, count) * ((one - a) * (one + a));
    converted<operand_t>(grad).store(scores + j);
  }
  std::fill(scores + n, scores + end, operand_t(0));
}

// sums <- sums + a block of x, of any strides
template <typename scalar_t, typename opmath_t>
void add_block(
    Matrix<const scalar_t> x,
    int64_t column,
    int64_t rows,
    int64_t columns,
    Matrix<opmath_t> sums) {
  for (const auto r : c10::irange(rows)) {
    for (const auto c : c10::irange(columns)) {
      sums[r][c] += static_cast<opmath_t>(x[r][c * column]);
    }
  }
}

// Rows of to <- rows of x
template <typename scalar_t, typename opmath_t>
void store(
    Matrix<const opmath_t> x,
    int64_t rows,
    int64_t columns,
    Matrix<scalar_t> to) {
  for (const auto r : c10::irange(rows)) {
    convert_row(x[r], to[r], columns);
  }
}

// Matrices of to from `first` <- sums over the parts of x, of which every
// matrix has as many, `stride` rows apart
template <typename scalar_t, typename opmath_t>
void add_parts(
    Matrix<opmath_t> x,
    int64_t parts,
    int64_t stride,
    int64_t first,
    int64_t matrices,
    int64_t rows,
    int64_t columns,
    Operand<scalar_t> to) {
  at::parallel_for(0, matrices * rows, 256, [&](int64_t begin, int64_t end) {
    for (const auto i : c10::irange(begin, end)) {
      const int64_t b = i / rows, row = i % rows;
      opmath_t* sum = x[b * parts * stride + row];
      for (const auto part : c10::irange(1, parts)) {
        vec::map2<opmath_t>(
            [](auto a, auto b) { return a + b; },
            sum,
            sum,
            x[(b * parts + part) * stride + row],
            columns);
      }
      convert_row(sum, to.at(first + b, row).data, columns);
    }
  });
}

// attn <- tanh(q @ k.T), output <- attn @ v, a tile of keys at a time.
template <typename scalar_t, typename operand_t>
struct Forward {
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr bool packs = kVnni<operand_t> == 2;
  // Whether sums are stored as they are
  static constexpr bool direct = std::is_same_v<scalar_t, opmath_t>;
  static constexpr int64_t kRows = packs ? 256 : 36; // of a block

  // The arrays of a thread
  struct Tiles {
    explicit Tiles(const Forward& f)
        : q(group(f), f.d_),
          k(kKeys, f.d_),
          k_t(round_up<int64_t>(f.d_, 16), kKeys * kVnni<operand_t>),
          v(kKeys, f.e_ * kVnni<operand_t>),
          attn(rows(f), kKeys),
          scores(rows(f), kKeys),
          sums(direct ? 0 : group(f), f.e_) {}
    static int64_t group(const Forward& f) {
      return round_up<int64_t>(std::min(f.m_, kGroupRows), 16);
    }
    static int64_t rows(const Forward& f) {
      return std::min(group(f), kRows);
    }
    Tile<operand_t> q, k, k_t, v, attn;
    Tile<opmath_t> scores, sums;
  };

  Forward(
      const Tensor& output,
      const Tensor& attn,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v)
      : q_(q),
        k_(k),
        v_(v),
        output_(output),
        attn_(attn.mutable_data_ptr<scalar_t>()),
        m_(q.size(-2)),
        n_(k.size(-2)),
        d_(q.size(-1)),
        e_(v.size(-1)),
        matrices_(attn.numel() / (m_ * n_)) {}

  void run() const {
    const int64_t threads =
        useful_threads(2. * matrices_ * m_ * n_ * (d_ + e_));
    const int64_t groups = pieces(
        matrices_,
        ceil_div(m_, kGroupRows),
        ceil_div<int64_t>(m_, 32),
        threads);
    const int64_t items = matrices_ * groups;
    // Partial outputs are of fewer rows than `threads` groups have.
    const int64_t parts = items < threads
        ? pieces(items, 1, ceil_div(n_, kLeastKeys), threads)
        : 1;
    const int64_t padded = packs ? round_up<int64_t>(m_, 16) : m_;
    const Tile<opmath_t> partial(
        parts > 1 ? matrices_ * parts * padded : 0, e_);
    const int64_t tasks = items * parts;
    at::parallel_for(
        0, tasks, ceil_div(tasks, threads), [&](int64_t first, int64_t last) {
          const ReleaseProducts<operand_t> guard;
          const Tiles tiles(*this);
          for (const auto task : c10::irange(first, last)) {
            const int64_t part = task % parts, item = task / parts;
            const int64_t b = item / groups, group = item % groups;
            const int64_t i = cut(m_, groups, group);
            const int64_t rows = cut(m_, groups, group + 1) - i;
            const int64_t j = cut(n_, parts, part);
            const int64_t keys = cut(n_, parts, part + 1) - j;
            if (parts > 1) {
              const auto sums = partial.from((b * parts + part) * padded + i);
              run_group(tiles, b, i, rows, j, keys, sums);
            } else if constexpr (direct) {
              run_group(tiles, b, i, rows, j, keys, output_.at(b, i));
            } else {
              run_group(tiles, b, i, rows, j, keys, tiles.sums);
              store<scalar_t, opmath_t>(tiles.sums, rows, e_, output_.at(b, i));
            }
          }
        });
    if (parts > 1) {
      add_parts<scalar_t, opmath_t>(
          partial, parts, padded, 0, matrices_, m_, e_, output_);
    }
  }

  // Rows i.. of matrix b by keys j..
  void run_group(
      const Tiles& tiles,
      int64_t b,
      int64_t i,
      int64_t rows,
      int64_t j,
      int64_t keys,
      Matrix<opmath_t> sums) const {
    const auto q = load<operand_t>(q_.at(b, i), rows, d_, tiles.q);
    for (int64_t c = 0; c < keys; c += kKeys) {
      const int64_t n = std::min(kKeys, keys - c);
      const auto k = load<operand_t>(k_.at(b, j + c), n, d_, tiles.k);
      load_transposed<operand_t>(k, n, d_, tiles.k_t);
      const auto v = load_v(b, j + c, n, tiles.v);
      // Terms behind the last key are zeros.
      const int64_t terms = packs ? round_up<int64_t>(n, 32) : n;
      for (int64_t r = 0; r < rows; r += kRows) {
        const int64_t m = std::min(kRows, rows - r);
        // scores <- q @ k.T, attn <- tanh(scores)
        product<operand_t>(
            {m, n, d_},
            attn_tile::rows<operand_t>(q.from(r)),
            tiles.k_t,
            tiles.scores,
            false);
        scalar_t* attn = attn_ + (b * m_ + i + r) * n_ + j + c;
        for (const auto x : c10::irange(m)) {
          tanh_row(tiles.scores[x], attn + x * n_, tiles.attn[x], n, terms);
        }
        // output <- output + attn @ v
        product<operand_t>(
            {m, e_, terms},
            attn_tile::rows<operand_t>(tiles.attn),
            v,
            sums.from(r),
            c > 0);
      }
    }
  }

  Matrix<const operand_t> load_v(
      int64_t b,
      int64_t j,
      int64_t n,
      Matrix<operand_t> to) const {
    if constexpr (packs) {
      pack(v_.at(b, j), n, e_, to);
      return to;
    } else {
      return load<operand_t>(v_.at(b, j), n, e_, to);
    }
  }

  const Operand<const scalar_t> q_, k_, v_;
  const Operand<scalar_t> output_;
  scalar_t* attn_;
  const int64_t m_, n_, d_, e_, matrices_;
};

// The gradients, a tile of keys at a time: rows of grad_k and grad_v are sums
// over blocks of rows, and those of grad_q over tiles.
template <typename scalar_t, typename operand_t>
struct Backward {
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr bool packs = kVnni<operand_t> == 2;
  static constexpr bool direct = std::is_same_v<scalar_t, opmath_t>;
  static constexpr int64_t kRows = packs ? 128 : 64; // of a block
  // Where operands are packed, their rows are packed again for every tile.
  static constexpr int64_t kTile = packs ? 4 * kKeys : kKeys;

  // The arrays of a thread
  struct Tiles {
    explicit Tiles(const Backward& f, bool has_sums)
        : q(kRows, f.d_),
          k(kTile, f.d_ * kVnni<operand_t>),
          v(kTile, f.e_),
          v_t(round_up<int64_t>(f.e_, 16), kTile * kVnni<operand_t>),
          grad_output(kRows, f.e_),
          attn(kRows, kTile),
          scores(kRows, kTile),
          pairs(packs * kRows / 2, 2 * std::max({f.d_, f.e_, kTile})),
          q_t(packs * round_up<int64_t>(f.d_, 16), kRows),
          grad_output_t(packs * round_up<int64_t>(f.e_, 16), kRows),
          sums(kRows, kTile),
          grad_q(has_sums * f.padded_rows(), f.d_),
          grad_k(sums_rows(f.d_), sums_columns(f.d_)),
          grad_v(sums_rows(f.e_), sums_columns(f.e_)),
          grad(packs * kTile, std::max(f.d_, f.e_)) {}
    // Products of packed operands give the transposes of grad_k and grad_v.
    static int64_t sums_rows(int64_t size) {
      return direct ? 0 : packs ? round_up<int64_t>(size, 16) : kTile;
    }
    static int64_t sums_columns(int64_t size) {
      return packs ? kTile : size;
    }
    Tile<operand_t> q, k, v, v_t, grad_output, attn, scores, pairs, q_t,
        grad_output_t;
    Tile<opmath_t> sums, grad_q, grad_k, grad_v, grad;
  };

  Backward(const AttnGradients& grads, const AttnBackwardArgs& args)
      : q_(args.q),
        k_(args.k),
        v_(args.v),
        grad_output_(args.grad_output),
        grad_attn_(args.grad_attn),
        attn_(args.attn),
        grad_q_(grads.grad_q),
        grad_k_(grads.grad_k),
        grad_v_(grads.grad_v),
        m_(args.attn.size(-2)),
        n_(args.attn.size(-1)),
        d_(has_q()       ? grads.grad_q.size(-1)
               : has_k() ? grads.grad_k.size(-1)
                         : 0),
        e_(args.grad_output.defined() ? args.grad_output.size(-1) : 0),
        matrices_(args.attn.numel() / (m_ * n_)) {}

  // Every thread takes whole matrices, as many as every other. The keys of
  // those that are left are cut into parts, with partial sums for grad_q.
  void run() const {
    const double flop = 4. * m_ * n_ * (d_ + e_);
    const int64_t threads = useful_threads(matrices_ * flop);
    const int64_t whole = matrices_ / threads * threads;
    const int64_t rest = matrices_ - whole;
    run_matrices(0, whole, 1, threads);
    run_matrices(
        whole,
        rest,
        rest > 0 ? pieces(rest, 1, ceil_div(n_, kLeastKeys), threads) : 1,
        threads);
  }

  void run_matrices(
      int64_t first,
      int64_t count,
      int64_t parts,
      int64_t threads) const {
    const int64_t tasks = count * parts, rows = padded_rows();
    if (tasks == 0) {
      return;
    }
    const bool is_partial = has_q() && parts > 1;
    const Tile<opmath_t> partial(is_partial * tasks * rows, d_);
    at::parallel_for(
        0, tasks, ceil_div(tasks, threads), [&](int64_t begin, int64_t end) {
          const ReleaseProducts<operand_t> guard;
          const Tiles tiles(*this, has_q() && !direct && !is_partial);
          for (const auto task : c10::irange(begin, end)) {
            const int64_t b = first + task / parts, part = task % parts;
            const int64_t j = cut(n_, parts, part);
            const int64_t keys = cut(n_, parts, part + 1) - j;
            if (is_partial) {
              run_keys(tiles, b, j, keys, partial.from(task * rows));
            } else if constexpr (direct) {
              run_keys(tiles, b, j, keys, grad_q_.at(b, 0));
            } else {
              run_keys(tiles, b, j, keys, tiles.grad_q);
              store<scalar_t, opmath_t>(
                  tiles.grad_q, has_q() * m_, d_, grad_q_.at(b, 0));
            }
          }
        });
    if (is_partial) {
      add_parts<scalar_t, opmath_t>(
          partial, parts, rows, first, count, m_, d_, grad_q_);
    }
  }

  // Rows of grad_k and grad_v of matrix b from j, and what they add to grad_q
  void run_keys(
      const Tiles& tiles,
      int64_t b,
      int64_t j,
      int64_t keys,
      Matrix<opmath_t> grad_q) const {
    for (int64_t c = 0; c < keys; c += kTile) {
      const int64_t n = std::min(kTile, keys - c);
      const auto k = load_k(b, j + c, n, tiles.k);
      if (has_scores() && e_ > 0) {
        load_transposed<operand_t>(
            load<operand_t>(v_.at(b, j + c), n, e_, tiles.v), n, e_, tiles.v_t);
      }
      Matrix<opmath_t> grad_k = tiles.grad_k, grad_v = tiles.grad_v;
      if constexpr (direct) {
        grad_k = grad_k_.at(b, j + c);
        grad_v = grad_v_.at(b, j + c);
      }
      for (int64_t i = 0; i < m_; i += kRows) {
        const Block block{b, i, j + c, std::min(kRows, m_ - i), n};
        run_block(tiles, block, k, grad_q.from(i), grad_k, grad_v, c > 0);
      }
      if constexpr (packs) {
        transpose<float>(grad_k, has_k() * d_, n, tiles.grad);
        store<scalar_t, opmath_t>(
            tiles.grad, has_k() * n, d_, grad_k_.at(b, j + c));
        transpose<float>(grad_v, has_v() * e_, n, tiles.grad);
        store<scalar_t, opmath_t>(
            tiles.grad, has_v() * n, e_, grad_v_.at(b, j + c));
      } else if constexpr (!direct) {
        store<scalar_t, opmath_t>(
            grad_k, has_k() * n, d_, grad_k_.at(b, j + c));
        store<scalar_t, opmath_t>(
            grad_v, has_v() * n, e_, grad_v_.at(b, j + c));
      }
    }
  }

  // A tile of matrix b of attn, from (i, j)
  struct Block {
    int64_t b, i, j, rows, keys;
  };

  void run_block(
      const Tiles& tiles,
      const Block& at,
      Matrix<const operand_t> k,
      Matrix<opmath_t> grad_q,
      Matrix<opmath_t> grad_k,
      Matrix<opmath_t> grad_v,
      bool add_q) const {
    const bool add = at.i > 0;
    Matrix<const operand_t> grad_output;
    if (e_ > 0) {
      grad_output = load<operand_t>(
          grad_output_.at(at.b, at.i), at.rows, e_, tiles.grad_output);
    }
    const auto attn = load_attn(tiles, at);
    if (has_scores()) {
      grad_scores(tiles, at, grad_output);
    }
    // Behind the last key and the last row, packed operands are zeros.
    const int64_t keys = packs ? round_up<int64_t>(at.keys, 32) : at.keys;
    const Matrix<const operand_t> scores = tiles.scores;
    if (has_q()) {
      // grad_q <- grad_q + grad_scores @ k
      product<operand_t>(
          {at.rows, d_, keys},
          attn_tile::rows<operand_t>(scores),
          k,
          grad_q,
          add_q);
    }
    if constexpr (packs) {
      const int64_t terms = round_up<int64_t>(at.rows, 32);
      if (has_k()) {
        // grad_k.T <- grad_k.T + q.T @ grad_scores
        load_rows_t(tiles, q_.at(at.b, at.i), at.rows, d_, tiles.q_t);
        pack(scores, at.rows, at.keys, tiles.pairs);
        product<operand_t>(
            {d_, at.keys, terms},
            attn_tile::rows<operand_t>(tiles.q_t),
            tiles.pairs,
            grad_k,
            add);
      }
      if (has_v()) {
        // grad_v.T <- grad_v.T + grad_output.T @ attn
        load_rows_t(tiles, grad_output, at.rows, e_, tiles.grad_output_t);
        pack(attn, at.rows, at.keys, tiles.pairs);
        product<operand_t>(
            {e_, at.keys, terms},
            attn_tile::rows<operand_t>(tiles.grad_output_t),
            tiles.pairs,
            grad_v,
            add);
      }
    } else {
      if (has_k()) {
        // grad_k <- grad_k + grad_scores.T @ q
        const auto q = load<operand_t>(q_.at(at.b, at.i), at.rows, d_, tiles.q);
        product<operand_t>(
            {at.keys, d_, at.rows},
            transposed<operand_t>(scores),
            q,
            grad_k,
            add);
      }
      if (has_v()) {
        // grad_v <- grad_v + attn.T @ grad_output
        product<operand_t>(
            {at.keys, e_, at.rows},
            transposed<operand_t>(attn),
            grad_output,
            grad_v,
            add);
      }
    }
  }

  // scores <- grad_attn * (1 - attn^2)
  void grad_scores(
      const Tiles& tiles,
      const Block& at,
      Matrix<const operand_t> grad_output) const {
    const auto& sums = tiles.sums;
    if (e_ > 0) {
      // grad_attn <- grad_output @ v.T
      product<operand_t>(
          {at.rows, at.keys, e_},
          attn_tile::rows<operand_t>(grad_output),
          tiles.v_t,
          sums,
          false);
    } else {
      std::fill_n(sums.data, at.rows * sums.stride, opmath_t(0));
    }
    if (grad_attn_.data != nullptr) {
      auto x = grad_attn_.at(at.b, at.i);
      x.data += at.j * grad_attn_.column;
      add_block<scalar_t, opmath_t>(
          x, grad_attn_.column, at.rows, at.keys, sums);
    }
    const int64_t end = packs ? round_up<int64_t>(at.keys, 32) : at.keys;
    const auto attn = attn_.at(at.b, at.i).from(0, at.j);
    for (const auto r : c10::irange(at.rows)) {
      grad_row(sums[r], attn[r], tiles.scores[r], at.keys, end);
    }
  }

  // A block of attn where it lies, or in another type
  Matrix<const operand_t> load_attn(const Tiles& tiles, const Block& at) const {
    const auto attn = attn_.at(at.b, at.i).from(0, at.j);
    if constexpr (std::is_same_v<scalar_t, operand_t>) {
      return attn;
    } else {
      for (const auto r : c10::irange(has_v() * at.rows)) {
        convert_row(attn[r], tiles.attn[r], at.keys);
      }
      return tiles.attn;
    }
  }

  Matrix<const operand_t> load_k(
      int64_t b,
      int64_t j,
      int64_t n,
      Matrix<operand_t> to) const {
    if (!has_q()) {
      return {};
    }
    if constexpr (packs) {
      pack(k_.at(b, j), n, d_, to);
      return to;
    } else {
      return load<operand_t>(k_.at(b, j), n, d_, to);
    }
  }

  // to (columns, rows) <- x (rows, columns) transposed, with zeros up to a
  // multiple of 32 rows
  void load_rows_t(
      const Tiles& tiles,
      Matrix<const BFloat16> x,
      int64_t rows,
      int64_t columns,
      Matrix<BFloat16> to) const {
    pack(x, rows, columns, tiles.pairs);
    transpose<float>(
        {reinterpret_cast<const float*>(tiles.pairs.data),
         tiles.pairs.stride / 2},
        round_up<int64_t>(rows, 32) / 2,
        columns,
        {reinterpret_cast<float*>(to.data), to.stride / 2});
  }

  int64_t padded_rows() const {
    return packs ? round_up<int64_t>(m_, 16) : m_;
  }
  // Which gradients are wanted; that of the scores is for grad_q and grad_k.
  bool has_q() const {
    return grad_q_.data != nullptr;
  }
  bool has_k() const {
    return grad_k_.data != nullptr;
  }
  bool has_v() const {
    return grad_v_.data != nullptr;
  }
  bool has_scores() const {
    return has_q() || has_k();
  }

  const Operand<const scalar_t> q_, k_, v_, grad_output_, grad_attn_, attn_;
  const Operand<scalar_t> grad_q_, grad_k_, grad_v_;
  const int64_t m_, n_, d_, e_, matrices_;
};

// Calls f with a number of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& attn, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, attn.scalar_type(), "attn_cpu", [&] {
        if constexpr (kHasVnni && std::is_same_v<scalar_t, BFloat16>) {
          // Packing is not worth it for few rows.
          if (attn.size(-2) > kFewRows && has_vnni_products()) {
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
  dispatch(attn, [&](auto number, auto operand) {
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
