// attn's fused kernels: each passes once over the N x N scores, in any of the
// arithmetics of AttnFragments.cuh.
//
// A block owns kBlock rows of its result. It walks over the rows of the other
// side, kWalk at a time, and keeps the sums of its result in registers:
//
//   forward         owns queries, walks over keys      output
//   backward_rows   owns queries, walks over keys      grad_q
//   backward_cols   owns keys, walks over queries      grad_k and grad_v
//
// blockIdx.x is the block of rows, blockIdx.y the part of the walk and
// blockIdx.z the slice of the result's columns. sum_parts adds the parts in
// order, so results do not depend on the timing of blocks. The rows of an
// operand are whole lines of 128 bytes, filled up with zeros.
#pragma once

#include <ATen/native/cuda/AttnArgs.cuh>

#include <algorithm>

namespace at::native::attn_fused {

// cp.async, ldmatrix and mma need compute capability 8.0. The host does not
// launch these kernels on older devices.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ATTN_TILES
#endif

// The column of attn that stands at position p of a walked tile. A lane holds
// one pair of neighbouring positions in each 16 x 8 tile. Walked rows are
// stored in such an order that its pairs in kChunk / 2 tiles are kChunk
// neighbouring columns of attn, which it accesses as 16 bytes.
template <typename A>
ATTN_DEVICE int column_of(int p) {
  constexpr int chunk = Tile<A>::kChunk, run = 4 * chunk;
  return p / run * run + p % 8 / 2 * chunk + p % run / 8 * 2 + p % 2;
}

// The order of the rows of a tile: as in the matrix, by column_of, or by
// column_of with every two neighbours exchanged.
enum class Order { rows, columns, exchanged };

// Starts to copy rows [first, first + kRows) of a matrix to a tile. At an edge
// the rows from `end` on become zeros. kLines is the width of the matrix where
// it is known at compile time, and 0 elsewhere.
template <int kRows, Order kOrder, int kLines, bool kEdge, typename A>
ATTN_DEVICE void load_rows(
    Tile<A> tile,
    Operand<A> from,
    int column,
    int lines,
    int first,
    int end) {
  constexpr int step = kThreads / 8;
  const auto order = [](int r) {
    return kOrder == Order::rows ? r : column_of<A>(r);
  };
  const int chunk = threadIdx.x % 8, own = threadIdx.x / 8;
  const int stride = (kLines ? kLines : from.lines) * kLine<A>;
  first += order(own) ^ (kOrder == Order::exchanged);
  const int left = kEdge ? end - first : kRows;
  const auto* data = from.data + static_cast<int64_t>(first) * stride + column +
      chunk * (kLine<A> / 8);
#pragma unroll
  for (int i = 0; i < kRows / step; ++i) {
    const int r = order(i * step); // own and i * step share no bits
#pragma unroll(kLines ? kLines : 1)
    for (int line = 0; line < (kLines ? kLines : lines); ++line) {
      const bool valid = !kEdge || r < left;
      copy_async(
          tile.chunk(own + i * step, line * 8 + chunk),
          valid ? data + (r * stride + line * kLine<A>) : from.data,
          valid);
    }
  }
}

// Starts to copy the block at (row, column) of an N x N matrix to a tile. At an
// edge what lies outside of the matrix becomes zeros; elsewhere the matrix must
// be chunked.
template <int kRows, int kColumns, bool kEdge, typename A>
ATTN_DEVICE void load_block(
    Tile<A> tile,
    Square<A> from,
    int row,
    int column,
    int row_end,
    int column_end) {
  constexpr int chunk = Tile<A>::kChunk, chunks = kColumns / chunk;
  constexpr int step = kThreads / chunks;
  const int own = threadIdx.x / chunks, c = threadIdx.x % chunks;
  row += own;
  column += c * chunk;
  const int rows = row_end - row, columns = column_end - column;
  const auto* data =
      from.data + row * from.row_stride + column * from.column_stride;
#pragma unroll(kEdge ? 1 : kRows)
  for (int r = 0; r < kRows; r += step) {
    const auto* x = data + r * from.row_stride;
    auto* to = tile.chunk(own + r, c);
    if (kEdge && !from.chunked) {
      for (int e = 0; e < chunk; ++e) {
        to[e] = r < rows && e < columns ? x[e * from.column_stride]
                                        : typename A::scalar_t(0);
      }
    } else {
      const bool valid = !kEdge || (r < rows && columns > 0);
      copy_async(to, valid ? x : from.data, valid);
    }
  }
}

// The pairs that a lane reads or writes in one access.
template <typename A>
struct alignas(16) Chunk {
  static constexpr int kPairs = Tile<A>::kChunk / 2;
  typename A::Pair pair[kPairs];
};

// Loads this lane's pairs of the block at (row, column) of a matrix. At an edge
// the matrix has only this many rows and columns from there on, and pairs
// outside of it become zeros; elsewhere the matrix must be chunked.
template <typename A, bool kEdge, int kRows, int kTiles>
ATTN_DEVICE void load_pairs(
    typename A::Pair (&pairs)[kRows][kTiles][2],
    Square<A> from,
    int row,
    int column,
    int rows,
    int columns,
    int lane) {
  constexpr int tiles = Chunk<A>::kPairs;
  const int r = lane / 4, c = lane % 4 * Tile<A>::kChunk;
  const auto* data = from.data + (row + r) * from.row_stride +
      (column + c) * from.column_stride;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; t += tiles) {
      const auto* x =
          data + 8 * i * from.row_stride + 8 * t * from.column_stride;
      const int n = r + 8 * i < rows ? columns - c - 8 * t : 0;
      Chunk<A> chunk{};
      if (kEdge && !from.chunked) {
#pragma unroll
        for (int j = 0; j < 2 * tiles; j += 2) {
          using acc_t = typename A::acc_t;
          chunk.pair[j / 2] = A::pair(
              j < n ? acc_t(x[j * from.column_stride]) : acc_t(0),
              j + 1 < n ? acc_t(x[(j + 1) * from.column_stride]) : acc_t(0));
        }
      } else if (!kEdge || n > 0) {
        chunk = *reinterpret_cast<const Chunk<A>*>(x);
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        pairs[i / 2][t + j][i % 2] = chunk.pair[j];
      }
    }
  }
}

// Stores this lane's pairs to the block at `data`, as load_pairs loads them.
template <typename A, bool kEdge, int kRows, int kTiles>
ATTN_DEVICE void store_pairs(
    typename A::scalar_t* data,
    int stride,
    bool chunked,
    const typename A::Pair (&pairs)[kRows][kTiles][2],
    int rows,
    int columns,
    int lane) {
  constexpr int tiles = Chunk<A>::kPairs;
  const int r = lane / 4, c = lane % 4 * Tile<A>::kChunk;
  data += int64_t(r) * stride + c;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; t += tiles) {
      auto* to = data + int64_t(8 * i) * stride + 8 * t;
      const int n = r + 8 * i < rows ? columns - c - 8 * t : 0;
      Chunk<A> chunk;
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        chunk.pair[j] = pairs[i / 2][t + j][i % 2];
      }
      if (kEdge && !chunked) {
#pragma unroll
        for (int j = 0; j < 2 * tiles; ++j) {
          if (j < n) {
            const auto p = chunk.pair[j / 2];
            to[j] = j % 2 ? A::high(p) : A::low(p);
          }
        }
      } else if (!kEdge || n > 0) {
        store_streaming(to, chunk);
      }
    }
  }
}

// scores *= 1 - attn^2
template <typename A, int kRows, int kTiles>
ATTN_DEVICE void times_tanh_derivative(
    typename A::acc_t (&scores)[kRows][kTiles][4],
    const typename A::Pair (&attn)[kRows][kTiles][2]) {
  using acc_t = typename A::acc_t;
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto p = attn[i / 2 / kTiles][i / 2 % kTiles][i % 2];
    auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    const auto a0 = A::low(p), a1 = A::high(p);
    s[i % 2 * 2] *= std::fma(-a0, a0, acc_t(1));
    s[i % 2 * 2 + 1] *= std::fma(-a1, a1, acc_t(1));
  }
}

template <typename A, int kRows, int kTiles>
ATTN_DEVICE void add_pairs(
    typename A::acc_t (&scores)[kRows][kTiles][4],
    const typename A::Pair (&pairs)[kRows][kTiles][2]) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto p = pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2];
    auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    s[i % 2 * 2] += A::low(p);
    s[i % 2 * 2 + 1] += A::high(p);
  }
}

// Sets the scores beyond the last column to zero. They can be NaN, which must
// not reach the second product: an infinity of `left` has been multiplied by
// the zeros beyond the last row of `right`.
template <typename A, bool kInColumnOrder, int kRows, int kTiles>
ATTN_DEVICE void mask_scores(
    typename A::acc_t (&scores)[kRows][kTiles][4],
    int position,
    int columns,
    int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int p = position + 8 * t + lane % 4 * 2;
    const int column = kInColumnOrder ? column_of<A>(p) : p;
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) {
      if (column + i % 2 >= columns) {
        scores[i / 4][t][i % 4] = 0;
      }
    }
  }
}

template <typename A, bool kExchanged = false, int kRows, int kTiles>
ATTN_DEVICE void to_pairs(
    typename A::Pair (&pairs)[kRows][kTiles][2],
    const typename A::acc_t (&scores)[kRows][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2] =
        A::pair(s[i % 2 * 2 + kExchanged], s[i % 2 * 2 + !kExchanged]);
  }
}

// Hands out shared memory to tiles: one owned, then the walked ones, each for
// two stages.
template <typename A>
struct Storage {
  typename A::scalar_t* next =
      reinterpret_cast<typename A::scalar_t*>(shared_memory());

  ATTN_DEVICE Tile<A> tile(int rows, int columns) {
    const Tile<A> result{next, columns};
    next += rows * columns;
    return result;
  }
};

// Whether a step of the walk checks for the edges of the matrices and for
// layouts that are not chunked.
using Edge = std::true_type;
using Inside = std::false_type;

// One block's share of the work: its rows, its part of the walk and its slice
// of the columns. kWhole says that every operand is kWidth wide, which is then
// known at compile time.
template <typename A, int kWidth, int kRows, bool kWhole>
struct Place {
  static constexpr int kBlock = 64 * kRows;
  static constexpr int kLines = kWhole ? kWidth / kLine<A> : 0;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16 * kRows;
  const int first = blockIdx.x * kBlock;
  const int slice = kWhole ? 0 : blockIdx.z * kWidth;
  const int begin, end; // of the walk

  ATTN_DEVICE Place(int n, int part)
      : begin(blockIdx.y * part), end(std::min<int>(n, begin + part)) {}

  ATTN_DEVICE int depth(const Operand<A>& operand) const {
    return kWhole ? kWidth : operand.lines * kLine<A>;
  }
  // The lines of an operand that lie in the slice.
  ATTN_DEVICE int lines(const Operand<A>& operand) const {
    return std::min<int>(kWidth / kLine<A>, operand.lines - slice / kLine<A>);
  }

  ATTN_DEVICE bool is_inside(const ForwardArgs<A>& args) const {
    return args.chunked && first + kBlock <= args.n;
  }
  ATTN_DEVICE bool is_inside(const BackwardArgs<A>& args) const {
    return args.attn.chunked && !args.grad_attn.data &&
        first + kBlock <= args.n;
  }

  // Calls compute(edge, stage, row) for every kWalk rows of the walk, while
  // load(edge, stage, row) brings in the next ones. `stage` is where these rows
  // lie in a tile of 2 * kWalk rows. Kernels for whole operands have a second
  // loop without checks, which they run if the block is inside the matrices.
  template <typename Load, typename Compute>
  ATTN_DEVICE void walk(bool inside, const Load& load, const Compute& compute)
      const {
    constexpr int kWalk = A::kWalk;
    const int end = this->end;
    int stage = 0;
    int row = begin;
    load(Edge(), stage, row);
    copy_commit();
    const auto step = [&](auto edge) {
      copy_wait<0>();
      block_barrier();
      if (!edge || row + kWalk < end) {
        load(edge, stage ^ kWalk, row + kWalk);
        copy_commit();
      }
      compute(edge, stage, row);
      stage ^= kWalk;
      row += kWalk;
    };
    if constexpr (kWhole) {
      while (inside && row + 2 * kWalk <= end) {
        step(Inside());
      }
    }
    while (row < end) {
      step(Edge());
    }
  }

  // Writes a warp's sums to its rows and columns of a result.
  ATTN_DEVICE void store(
      Result<A> result,
      const typename A::acc_t (&sums)[kRows][kWidth / 8][4],
      int n) const {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const int r = first + warp_row + 8 * i + lane / 4;
#pragma unroll
      for (int t = 0; t < kWidth / 8; ++t) {
        const int c = slice + result_column<A>(t, lane);
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          if (r < n && c + b < result.columns) {
            const auto x = sums[i / 2][t][i % 2 * 2 + b];
            if (result.parts) {
              const int64_t row = int64_t(blockIdx.y) * n + r;
              result.parts[row * result.columns + c + b] = x;
            } else {
              result.data[int64_t(r) * result.columns + c + b] = x;
            }
          }
        }
      }
    }
  }
};

// How many blocks should fit on a multiprocessor, for the compiler's choice of
// registers.
template <typename A, int kWidth, bool kWhole>
constexpr int kResident =
    kWhole && kWidth == 64 && sizeof(typename A::scalar_t) == 2 ? 3 : 2;

// attn = tanh(q @ k^T), output = attn @ v
template <typename A, int kWidth, int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads, kResident<A, kWidth, kWhole>)
    forward(ForwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const Place<A, kWidth, kRows, kWhole> at(args.n, args.part);
  constexpr int kBlock = at.kBlock, kLines = at.kLines;
  const int lane = at.lane, depth = at.depth(args.q);

  Storage<A> storage;
  const Tile<A> q = storage.tile(kBlock, depth);
  const Tile<A> k = storage.tile(2 * kWalk, depth);
  const Tile<A> v = storage.tile(2 * kWalk, kWidth);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, Order::columns, kLines, edge>(
        k.from(stage), args.k, 0, args.k.lines, key, args.n);
    load_rows<kWalk, Order::exchanged, kLines, edge>(
        v.from(stage), args.v, at.slice, at.lines(args.v), key, args.n);
  };
  load_rows<kBlock, Order::rows, kLines, true>(
      q, args.q, 0, args.q.lines, at.first, args.n);

  acc_t output[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += A::kStrip) {
      acc_t scores[kRows][kTiles][4] = {};
      first_product(
          scores, q.from(at.warp_row), k.from(stage + strip), depth, lane);
#pragma unroll
      for (int i = 0; i < kRows * kTiles * 4; ++i) {
        acc_t& s = scores[i / 4 / kTiles][i / 4 % kTiles][i % 4];
        s = A::tanh(s);
      }
      if (edge && key + kWalk > at.end) {
        mask_scores<A, true>(scores, strip, at.end - key, lane);
      }
      typename A::Pair attn[kRows][kTiles][2];
      if (at.slice == 0) {
        to_pairs<A>(attn, scores);
        store_pairs<A, edge>(
            args.attn + int64_t(at.first + at.warp_row) * args.n +
                (key + strip),
            args.n,
            args.chunked,
            attn,
            args.n - at.first - at.warp_row,
            at.end - key - strip,
            lane);
      }
      // The store and the mma need these pairs in different registers. Pairs
      // with neighbours exchanged, to match the rows of v, are new values that
      // the compiler makes once. It would copy the same values for every mma.
      to_pairs<A, true>(attn, scores);
      second_product<A>(output, attn, v.from(stage + strip), 0, lane);
    }
  };
  at.walk(at.is_inside(args), load, compute);
  at.store(args.output, output, args.n);
#endif
}

// grad_q = X @ k, X = (grad_attn + grad_output @ v^T) * (1 - attn^2)
template <typename A, int kWidth, int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads, kResident<A, kWidth, kWhole>)
    backward_rows(BackwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const Place<A, kWidth, kRows, kWhole> at(args.n, args.part);
  constexpr int kBlock = at.kBlock, kLines = at.kLines;
  const int lane = at.lane, depth = at.depth(args.grad_output);

  Storage<A> storage;
  const Tile<A> grad_output = storage.tile(kBlock, depth);
  const Tile<A> v = storage.tile(2 * kWalk, depth);
  const Tile<A> k = storage.tile(2 * kWalk, kWidth);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, Order::columns, kLines, edge>(
        v.from(stage), args.v, 0, args.v.lines, key, args.n);
    load_rows<kWalk, Order::columns, kLines, edge>(
        k.from(stage), args.k, at.slice, at.lines(args.k), key, args.n);
  };
  load_rows<kBlock, Order::rows, kLines, true>(
      grad_output,
      args.grad_output,
      0,
      args.grad_output.lines,
      at.first,
      args.n);

  acc_t grad_q[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += A::kStrip) {
      typename A::Pair pairs[kRows][kTiles][2];
      acc_t scores[kRows][kTiles][4] = {};
      const auto load_pairs_of = [&](const Square<A>& from) {
        load_pairs<A, edge>(
            pairs,
            from,
            at.first + at.warp_row,
            key + strip,
            args.n - at.first - at.warp_row,
            at.end - key - strip,
            lane);
      };
      if (edge && args.grad_attn.data) {
        load_pairs_of(args.grad_attn);
        add_pairs<A>(scores, pairs);
      }
      // These loads run while the product is computed.
      load_pairs_of(args.attn);
      first_product(
          scores,
          grad_output.from(at.warp_row),
          v.from(stage + strip),
          depth,
          lane);
      times_tanh_derivative<A>(scores, pairs);
      if (edge && key + kWalk > at.end) {
        mask_scores<A, true>(scores, strip, at.end - key, lane);
      }
      to_pairs<A>(pairs, scores);
      second_product<A>(grad_q, pairs, k.from(stage + strip), 0, lane);
    }
  };
  at.walk(at.is_inside(args), load, compute);
  at.store(args.grad_q, grad_q, args.n);
#endif
}

// grad_k = X^T @ q and grad_v = attn^T @ grad_output
template <typename A, int kWidth, int kRows, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    backward_cols(BackwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const Place<A, kWidth, kRows, kWhole> at(args.n, args.part);
  constexpr int kBlock = at.kBlock, kLines = at.kLines;
  const int lane = at.lane, depth = at.depth(args.grad_output);
  // The second product reads whole slices of grad_output. v gets the same
  // stride, because with a second stride this kernel spills registers.
  const int whole = (depth + kWidth - 1) / kWidth * kWidth;
  const bool has_grad_v = args.grad_v.columns > at.slice;

  Storage<A> storage;
  const Tile<A> v = storage.tile(kBlock, whole);
  const Tile<A> grad_output = storage.tile(2 * kWalk, whole);
  const Tile<A> q = storage.tile(2 * kWalk, kWidth);
  const Tile<A> attn = storage.tile(2 * kWalk, kBlock);
  const Tile<A> grad_attn = storage.tile(2 * kWalk, kBlock);
  const auto load = [&](auto edge, int stage, int row) {
    load_rows<kWalk, Order::rows, kLines, edge>(
        grad_output.from(stage),
        args.grad_output,
        0,
        args.grad_output.lines,
        row,
        args.n);
    load_rows<kWalk, Order::rows, kLines, edge>(
        q.from(stage), args.q, at.slice, at.lines(args.q), row, args.n);
    load_block<kWalk, kBlock, edge>(
        attn.from(stage), args.attn, row, at.first, args.n, args.n);
    if (edge && args.grad_attn.data) {
      load_block<kWalk, kBlock, edge>(
          grad_attn.from(stage), args.grad_attn, row, at.first, args.n, args.n);
    }
  };
  load_rows<kBlock, Order::rows, kLines, true>(
      v, args.v, 0, args.v.lines, at.first, args.n);

  acc_t grad_k[kRows][kWidth / 8][4] = {};
  acc_t grad_v[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int row) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += A::kStrip) {
      acc_t scores[kRows][kTiles][4] = {};
      typename A::Pair pairs[kRows][kTiles][2];
      const auto load_pairs_of = [&](const Tile<A>& tile) {
#pragma unroll
        for (int i = 0; i < kRows * kTiles / 2; ++i) {
          const int m = i / (kTiles / 2), t = i % (kTiles / 2) * 2;
          A::load_transposed(
              pairs[m][t],
              pairs[m][t + 1],
              tile,
              8 * t,
              at.warp_row + 16 * m,
              lane);
        }
      };
      if (edge && args.grad_attn.data) {
        load_pairs_of(grad_attn.from(stage + strip));
        add_pairs<A>(scores, pairs);
      }
      first_product(
          scores,
          v.from(at.warp_row),
          grad_output.from(stage + strip),
          depth,
          lane);
      load_pairs_of(attn.from(stage + strip));
      times_tanh_derivative<A>(scores, pairs);
      if (edge && row + kWalk > at.end) {
        mask_scores<A, false>(scores, strip, at.end - row, lane);
      }
      if (has_grad_v) {
        second_product<A>(
            grad_v, pairs, grad_output.from(stage + strip), at.slice, lane);
      }
      to_pairs<A>(pairs, scores);
      second_product<A>(grad_k, pairs, q.from(stage + strip), 0, lane);
    }
  };
  at.walk(at.is_inside(args), load, compute);
  at.store(args.grad_k, grad_k, args.n);
  if (has_grad_v) {
    at.store(args.grad_v, grad_v, args.n);
  }
#endif
}

// Sums the parts of a result of `count` elements, from first to last.
template <typename A>
__global__ void __launch_bounds__(kThreads)
    sum_parts(Result<A> result, int parts, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) {
    typename A::acc_t sum = result.parts[i];
    for (int p = 1; p < parts; ++p) {
      sum += result.parts[p * count + i];
    }
    result.data[i] = sum;
  }
}

template <typename A, int kWidth, bool kWhole>
const void* kernel_of(Kernel kernel) {
  constexpr int rows = Shape<A>::kRows;
  constexpr int narrower = std::min<int>(kWidth, Shape<A>::kMaxColsWidth);
  const auto pointer = [](auto* function) {
    return reinterpret_cast<const void*>(function);
  };
  switch (kernel) {
    case Kernel::forward:
      return pointer(&forward<A, kWidth, rows, kWhole>);
    case Kernel::backward_rows:
      return pointer(&backward_rows<A, kWidth, rows, kWhole>);
    case Kernel::backward_cols:
      return pointer(
          &backward_cols<A, narrower, Shape<A>::cols_rows(narrower), kWhole>);
    case Kernel::sum_parts:
      return pointer(&sum_parts<A>);
  }
  return nullptr;
}

template <typename A, int kWidth>
const void* kernel_of(Kernel kernel, bool whole) {
  if constexpr (kWidth <= A::kWidestWhole) {
    if (whole) {
      return kernel_of<A, kWidth, true>(kernel);
    }
  }
  return kernel_of<A, kWidth, false>(kernel);
}

template <typename A>
const void* kernel_of(Kernel kernel, int width, bool whole) {
  return width == 64 ? kernel_of<A, 64>(kernel, whole)
                     : kernel_of<A, 128>(kernel, whole);
}

} // namespace at::native::attn_fused
