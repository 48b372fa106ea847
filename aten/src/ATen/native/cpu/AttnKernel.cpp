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

// For up to so many rows of q, tiles of k and v are read where they lie.
// bfloat16 is multiplied as float32 then, and where attn has fewer numbers.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int64_t kFewRows = 4;
#else
constexpr int64_t kFewRows = 16;
#endif
constexpr int64_t kFewNumbers = 512;

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
int64_t piece_begin(int64_t size, int64_t count, int64_t i) {
  return std::min(size, ceil_div<int64_t>(size, 16) * i / count * 16);
}

// A block of matrix b of attn, from (i, j)
struct Block {
  int64_t b, i, j, rows, keys;
};

// Other code in a thread configures AMX for itself.
template <typename operand_t>
struct ReleaseProducts {
  ~ReleaseProducts() {
    if (kVnni<operand_t> == 2) {
      cpublas::brgemm_release();
    }
  }
};

// attn (n) <- tanh(scores), copy <- attn, and zeros behind it
template <typename scalar_t, typename operand_t, typename opmath_t>
void tanh_row(
    const opmath_t* scores,
    scalar_t* attn,
    operand_t* copy,
    int64_t n) {
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
  std::fill(copy + n, copy + padded<operand_t>(n), operand_t(0));
}

// scores (n) <- grad_attn * (1 - attn^2), and zeros behind them
template <typename scalar_t, typename operand_t, typename opmath_t>
void grad_row(
    const opmath_t* grad_attn,
    const scalar_t* attn,
    operand_t* scores,
    int64_t n) {
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
  std::fill(scores + n, scores + padded<operand_t>(n), operand_t(0));
}

// sums <- sums + x
template <typename scalar_t, typename opmath_t>
void add_block(
    Matrix<const scalar_t> x,
    int64_t rows,
    int64_t columns,
    Matrix<opmath_t> sums) {
  for (const auto r : c10::irange(rows)) {
    for (const auto c : c10::irange(columns)) {
      sums[r][c] += static_cast<opmath_t>(*x.from(r, c).data);
    }
  }
}

// Rows of to <- rows of x
template <typename opmath_t, typename scalar_t>
void store(
    Matrix<const opmath_t> x,
    int64_t rows,
    int64_t columns,
    Matrix<scalar_t> to) {
  for (const auto r : c10::irange(rows)) {
    convert_row(x[r], to[r], columns);
  }
}

// What both kernels share: sizes, and how threads share the work.
template <typename scalar_t, typename operand_t>
struct Kernel {
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr bool packs = kVnni<operand_t> == 2;
  // Whether sums are stored as they are
  static constexpr bool direct = std::is_same_v<scalar_t, opmath_t>;

  Kernel(const Tensor& attn, int64_t d, int64_t e)
      : m(attn.size(-2)),
        n(attn.size(-1)),
        d(d),
        e(e),
        matrices(attn.numel() / (m * n)) {
    constexpr int64_t size = Vectorized<opmath_t>::size();
    in_place = !packs && m <= kFewRows && d % size == 0 && e % size == 0;
  }

  // How many parts of so many keys or more a matrix has at most: their sums
  // take no more than attn, but for a last part that is not whole.
  int64_t most_parts(int64_t keys, int64_t columns) const {
    const int64_t size = Tile<opmath_t>(0, columns).row * sizeof(opmath_t);
    return ceil_div<int64_t>(
        n, std::max<int64_t>(keys, size / sizeof(scalar_t)));
  }

  // Runs f for `count` matrices from `first`, cut into `groups` of rows and
  // `parts` of keys. f adds up rows of `result`. Where there are parts, each
  // has sums of its own. A part of all matrices comes before the next: heads
  // lie side by side, and few rows take most of their time to reach memory.
  template <typename F>
  void run_tasks(
      const F& f,
      const Operand<scalar_t>& result,
      int64_t columns,
      int64_t first,
      int64_t count,
      int64_t groups,
      int64_t parts,
      int64_t threads) const {
    const int64_t items = count * groups, tasks = items * parts;
    const int64_t units = ceil_div(ceil_div<int64_t>(m, 16), groups);
    const int64_t most = packs ? units * 16 : std::min(units * 16, m);
    const bool is_partial = parts > 1 && columns > 0;
    const auto group = [&](int64_t item) {
      const int64_t i = piece_begin(m, groups, item % groups);
      const int64_t end = piece_begin(m, groups, item % groups + 1);
      return Block{first + item / groups, i, 0, end - i, 0};
    };
    const Tile<opmath_t> partial(is_partial * tasks * most, columns);
    at::parallel_for(
        0, tasks, ceil_div(tasks, threads), [&](int64_t begin, int64_t end) {
          const ReleaseProducts<operand_t> guard;
          const typename F::Tiles tiles(f);
          const Tile<opmath_t> sums(is_partial || direct ? 0 : most, columns);
          for (const auto task : c10::irange(begin, end)) {
            Block at = group(task % items);
            at.j = piece_begin(n, parts, task / items);
            at.keys = piece_begin(n, parts, task / items + 1) - at.j;
            const auto to = result.at(at.b, at.i);
            if (is_partial) {
              f.run_block(tiles, at, partial.from(task * most));
            } else if constexpr (direct) {
              f.run_block(tiles, at, to);
            } else {
              f.run_block(tiles, at, sums);
              store<opmath_t>(sums, at.rows, columns, to);
            }
          }
        });
    const int64_t rows = is_partial ? items * most : 0;
    at::parallel_for(0, rows, 256, [&](int64_t begin, int64_t end) {
      for (const auto x : c10::irange(begin, end)) {
        const Block at = group(x / most);
        if (x % most >= at.rows) {
          continue;
        }
        for (const auto part : c10::irange(1, parts)) {
          vec::map2<opmath_t>(
              [](auto a, auto b) { return a + b; },
              partial[x],
              partial[x],
              partial[part * rows + x],
              columns);
        }
        opmath_t* sum = partial[x];
        convert_row(sum, result.at(at.b, at.i + x % most).data, columns);
      }
    });
  }

  const int64_t m, n, d, e, matrices;
  // Whether tiles of k and v are read where they lie
  bool in_place;
};

// attn <- tanh(q @ k.T), output <- attn @ v, a tile of keys at a time.
template <typename scalar_t, typename operand_t>
struct Forward : Kernel<scalar_t, operand_t> {
  using Base = Kernel<scalar_t, operand_t>;
  using Base::d, Base::e, Base::in_place, Base::m, Base::n, Base::matrices;
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr int64_t kRows = Base::packs ? 256 : 36; // of a block

  // The arrays of a thread
  struct Tiles {
    explicit Tiles(const Forward& f)
        : q(std::min(round_up<int64_t>(f.m, 16), kGroupRows), f.d),
          k(kKeys, f.d),
          k_t(round_up<int64_t>(f.d, 16), kKeys * kVnni<operand_t>),
          v(kKeys, f.e * kVnni<operand_t>),
          attn(kRows, kKeys),
          scores(kRows, kKeys) {}
    Tile<operand_t> q, k, k_t, v, attn;
    Tile<opmath_t> scores;
  };

  Forward(
      const Tensor& output,
      const Tensor& attn,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v)
      : Base(attn, q.size(-1), v.size(-1)),
        q_(q),
        k_(k),
        v_(v),
        output_(output),
        attn_(attn) {}

  void run() const {
    const int64_t threads = useful_threads(2. * matrices * m * n * (d + e));
    const int64_t groups = pieces(
        matrices, ceil_div(m, kGroupRows), ceil_div<int64_t>(m, 32), threads);
    const int64_t items = matrices * groups;
    const int64_t parts = in_place ? Base::most_parts(kKeys, e)
        : items < threads
        ? pieces(items, 1, Base::most_parts(kLeastKeys, e), threads)
        : 1;
    Base::run_tasks(*this, output_, e, 0, matrices, groups, parts, threads);
  }

  void run_block(const Tiles& tiles, const Block& at, Matrix<opmath_t> sums)
      const {
    const auto q = load(q_.at(at.b, at.i), at.rows, d, tiles.q);
    for (int64_t c = 0; c < at.keys; c += kKeys) {
      const int64_t j = at.j + c, keys = std::min(kKeys, at.keys - c);
      Right<scalar_t, operand_t> k{k_.at(at.b, j), keys, d};
      Right<scalar_t, operand_t> v{v_.at(at.b, j), keys, e};
      // The next tile, or the first one of the next group
      const int64_t first = c + keys < at.keys ? c + keys : 0;
      const int64_t b = at.b + (first == 0 && at.i + at.rows == m);
      const int64_t next =
          Base::packs || b == matrices ? 0 : std::min(kKeys, at.keys - first);
      const auto next_k = k_.at(b, at.j + first),
                 next_v = v_.at(b, at.j + first);
      if (!in_place) {
        k.load_t(tiles.k, tiles.k_t);
        v.load(tiles.v);
      }
      for (int64_t r = 0; r < at.rows; r += kRows) {
        const int64_t rows = std::min(kRows, at.rows - r);
        // scores <- q @ k.T, attn <- tanh(scores)
        k.product_t(rows, q.from(r), tiles.scores);
        const auto attn = attn_.at(at.b, at.i + r, j);
        for (const auto x : c10::irange(rows)) {
          tanh_row(tiles.scores[x], attn[x], tiles.attn[x], keys);
          // A few rows at a time, so that memory works while products do
          const int64_t begin = (r + x) * next / at.rows;
          const int64_t count = (r + x + 1) * next / at.rows - begin;
          prefetch(next_k.from(begin), count, d);
          prefetch(next_v.from(begin), count, e);
        }
        // output <- output + attn @ v
        v.product(rows, tiles.attn, sums.from(r), c > 0);
      }
    }
  }

  const Operand<const scalar_t> q_, k_, v_;
  const Operand<scalar_t> output_, attn_;
};

// The gradients, a tile of keys at a time: rows of grad_k and grad_v are sums
// over blocks of rows, and those of grad_q over tiles.
template <typename scalar_t, typename operand_t>
struct Backward : Kernel<scalar_t, operand_t> {
  using Base = Kernel<scalar_t, operand_t>;
  using Base::d, Base::e, Base::in_place, Base::m, Base::n, Base::matrices;
  using opmath_t = at::opmath_type<operand_t>;
  static constexpr bool packs = Base::packs, direct = Base::direct;
  static constexpr int64_t kRows = packs ? 128 : 64; // of a block
  // Where operands are packed, their rows are packed again for every tile. Wide
  // tiles also read attn in longer rows.
  static constexpr int64_t kTile = (packs ? 4 : 2) * kKeys;

  // The arrays of a thread
  struct Tiles {
    explicit Tiles(const Backward& f)
        : rows(kRows, std::max(f.d, f.e)),
          k(kTile, f.d * kVnni<operand_t>),
          v(kTile, f.e),
          v_t(round_up<int64_t>(f.e, 16), kTile * kVnni<operand_t>),
          attn(kRows, kTile),
          scores(kRows, kTile),
          pairs(packs * kRows / 2, 2 * std::max({f.d, f.e, kTile})),
          rows_t(packs * round_up<int64_t>(std::max(f.d, f.e), 16), kRows),
          sums(kRows, kTile),
          grad_k(sums_rows(f.d), packs ? kTile : f.d),
          grad_v(sums_rows(f.e), packs ? kTile : f.e),
          grad(packs * kTile, std::max(f.d, f.e)) {}
    // Products of packed operands give the transposes of grad_k and grad_v.
    static int64_t sums_rows(int64_t size) {
      return direct ? 0 : packs ? round_up<int64_t>(size, 16) : kTile;
    }
    Tile<operand_t> rows, k, v, v_t, attn, scores, pairs, rows_t;
    Tile<opmath_t> sums, grad_k, grad_v, grad;
  };

  Backward(const AttnGradients& grads, const AttnBackwardArgs& args)
      : Base(
            args.attn,
            grads.grad_q.defined()       ? grads.grad_q.size(-1)
                : grads.grad_k.defined() ? grads.grad_k.size(-1)
                                         : 0,
            args.grad_output.defined() ? args.grad_output.size(-1) : 0),
        q_(args.q),
        k_(args.k),
        v_(args.v),
        grad_output_(args.grad_output),
        grad_attn_(args.grad_attn),
        attn_(args.attn),
        grad_q_(grads.grad_q),
        grad_k_(grads.grad_k),
        grad_v_(grads.grad_v) {}

  // Every thread takes whole matrices, as many as every other. The keys of
  // those that are left are cut into parts, and those of few rows always.
  void run() const {
    const int64_t threads = useful_threads(4. * matrices * m * n * (d + e));
    const int64_t whole = in_place ? 0 : matrices / threads * threads;
    const int64_t rest = matrices - whole, columns = grad_q_ ? d : 0;
    const int64_t parts = in_place ? Base::most_parts(kKeys, d)
        : rest > 0 ? pieces(rest, 1, Base::most_parts(kLeastKeys, d), threads)
                   : 1;
    Base::run_tasks(*this, grad_q_, columns, 0, whole, 1, 1, threads);
    Base::run_tasks(*this, grad_q_, columns, whole, rest, 1, parts, threads);
  }

  // at: keys of a matrix, and all its rows
  void run_block(const Tiles& tiles, const Block& at, Matrix<opmath_t> grad_q)
      const {
    for (int64_t c = 0; c < at.keys; c += kTile) {
      const int64_t j = at.j + c, keys = std::min(kTile, at.keys - c);
      Right<scalar_t, operand_t> k{k_.at(at.b, j), keys, d};
      Right<scalar_t, operand_t> v{v_.at(at.b, j), keys, e};
      if (!in_place && grad_q_) {
        k.load(tiles.k);
      }
      if (!in_place && has_scores() && e > 0) {
        v.load_t(tiles.v, tiles.v_t);
      }
      Matrix<opmath_t> grad_k = tiles.grad_k, grad_v = tiles.grad_v;
      if constexpr (direct) {
        grad_k = grad_k_.at(at.b, j);
        grad_v = grad_v_.at(at.b, j);
      }
      for (int64_t i = 0; i < m; i += kRows) {
        const Block block{at.b, i, j, std::min(kRows, m - i), keys};
        const int64_t next = std::min(kRows, m - i - block.rows);
        if (!packs && next > 0) {
          prefetch(attn_.at(at.b, i + block.rows, j), next, keys);
        }
        if (has_scores()) {
          grad_scores(tiles, block, v);
        }
        if (grad_q_) {
          // grad_q <- grad_q + grad_scores @ k
          k.product(block.rows, tiles.scores, grad_q.from(i), c > 0);
        }
        if (grad_k_) {
          // grad_k <- grad_k + grad_scores.T @ q
          add_product(tiles, block, tiles.scores, q_, d, grad_k);
        }
        if (grad_v_) {
          // grad_v <- grad_v + attn.T @ grad_output
          const auto attn = load_attn(tiles, block);
          add_product(tiles, block, attn, grad_output_, e, grad_v);
        }
      }
      if (grad_k_ && !direct) {
        store_rows(tiles, grad_k, keys, d, grad_k_.at(at.b, j));
      }
      if (grad_v_ && !direct) {
        store_rows(tiles, grad_v, keys, e, grad_v_.at(at.b, j));
      }
    }
  }

  // scores <- grad_attn * (1 - attn^2)
  void grad_scores(
      const Tiles& tiles,
      const Block& at,
      const Right<scalar_t, operand_t>& v) const {
    const auto& sums = tiles.sums;
    if (e > 0) {
      // grad_attn <- grad_output @ v.T
      const auto grad_output = grad_output_.at(at.b, at.i);
      v.product_t(at.rows, load(grad_output, at.rows, e, tiles.rows), sums);
    } else {
      std::fill_n(sums.data, at.rows * sums.row, opmath_t(0));
    }
    if (grad_attn_) {
      const auto grad_attn = grad_attn_.at(at.b, at.i, at.j);
      add_block<scalar_t, opmath_t>(grad_attn, at.rows, at.keys, sums);
    }
    const auto attn = attn_.at(at.b, at.i, at.j);
    for (const auto r : c10::irange(at.rows)) {
      grad_row(sums[r], attn[r], tiles.scores[r], at.keys);
    }
  }

  // sums <- sums + x.T @ y, or its transpose if operands are packed, with a
  // block x of attn's shape and rows y of an operand
  void add_product(
      const Tiles& tiles,
      const Block& at,
      Matrix<const operand_t> x,
      const Operand<const scalar_t>& y,
      int64_t columns,
      Matrix<opmath_t> sums) const {
    Right<scalar_t, operand_t> right{y.at(at.b, at.i), at.rows, columns};
    if constexpr (packs) {
      const int64_t rows = padded<operand_t>(at.rows);
      const auto pairs = as_pairs(tiles.pairs);
      right.load(tiles.pairs);
      transpose<float>(pairs, rows / 2, columns, as_pairs(tiles.rows_t));
      pack(x, at.rows, at.keys, tiles.pairs);
      const Sizes sizes{columns, at.keys, rows};
      product(sizes, tiles.rows_t, tiles.pairs, sums, at.i > 0);
    } else {
      right.load(tiles.rows);
      right.product(at.keys, x.transposed(), sums, at.i > 0);
    }
  }

  // A block of attn where it lies, or in another type
  Matrix<const operand_t> load_attn(const Tiles& tiles, const Block& at) const {
    const auto attn = attn_.at(at.b, at.i, at.j);
    if constexpr (std::is_same_v<scalar_t, operand_t>) {
      return attn;
    } else {
      store<scalar_t, operand_t>(attn, at.rows, at.keys, tiles.attn);
      return tiles.attn;
    }
  }

  // Rows of a gradient <- sums, or their transpose if operands are packed
  void store_rows(
      const Tiles& tiles,
      Matrix<opmath_t> sums,
      int64_t rows,
      int64_t columns,
      Matrix<scalar_t> to) const {
    if constexpr (packs) {
      transpose<float>(sums, columns, rows, tiles.grad);
      sums = tiles.grad;
    }
    store<opmath_t>(sums, rows, columns, to);
  }

  bool has_scores() const {
    return grad_q_ || grad_k_;
  }

  const Operand<const scalar_t> q_, k_, v_, grad_output_, grad_attn_, attn_;
  const Operand<scalar_t> grad_q_, grad_k_, grad_v_;
};

// Calls f with a number of the inputs' type and one of the type that products
// read.
template <typename F>
void dispatch(const Tensor& attn, const F& f) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      kHalf, kBFloat16, attn.scalar_type(), "attn_cpu", [&] {
        if constexpr (kHasVnni && std::is_same_v<scalar_t, BFloat16>) {
          const int64_t m = attn.size(-2);
          if (m > kFewRows && m * attn.size(-1) >= kFewNumbers &&
              has_vnni_products()) {
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
