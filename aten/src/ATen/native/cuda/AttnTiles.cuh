// The fused kernels of attn, one pass over the N x N scores each, for any of
// the arithmetics in AttnFragments.cuh.
//
// A block owns kBlock rows of the result, walks over the rows that they meet,
// kWalk at a time, and keeps what it sums in registers:
//
//   forward         owns queries, walks over keys      output
//   backward_rows   owns queries, walks over keys      grad_q
//   backward_cols   owns keys, walks over queries      grad_k and grad_v
//
// blockIdx.x is the block of rows, blockIdx.y the part of the walk and
// blockIdx.z the slice of the result's columns. Parts are summed afterwards, in
// order, so results do not depend on the timing of blocks. Operands come as
// rows of whole 128-byte lines, zero beyond their own columns.
#pragma once

#include <ATen/native/cuda/AttnArgs.cuh>

#include <algorithm>

namespace at::native::attn_tile {

// Copies, ldmatrix and mma are there from compute capability 8.0 on; the host
// never launches these kernels below it.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ATTN_TILES
#endif

// Where position p of a walked tile lies in the matrix. A lane holds neighbours
// in pairs, so the rows of right and wide are laid down such that the pairs of
// kChunk / 2 tiles are kChunk neighbouring columns: one 16-byte access.
template <typename A>
ATTN_DEVICE int column_of(int p) {
  constexpr int chunk = Tile<A>::kChunk, run = 4 * chunk;
  return p / run * run + p % 8 / 2 * chunk + p % run / 8 * 2 + p % 2;
}

// Begins the copy of rows [first, first + kRows) of a matrix; zeros from end
// on.
template <int kRows, bool kInColumnOrder, typename A>
ATTN_DEVICE void load_rows(
    Tile<A> tile,
    Operand<A> from,
    int column,
    int lines,
    int64_t first,
    int64_t end) {
  const int chunk = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < kRows / (kThreads / 8); ++i) {
    const int r = threadIdx.x / 8 + i * (kThreads / 8);
    const int64_t row = first + (kInColumnOrder ? column_of<A>(r) : r);
    const bool valid = row < end;
    const auto* data = from.data + (valid ? row : 0) * from.lines * kLine<A> +
        column + chunk * Tile<A>::kChunk;
    for (int line = 0; line < lines; ++line) {
      copy_async(
          tile.chunk(r, line * 8 + chunk), data + line * kLine<A>, valid);
    }
  }
}

// The same for the block of an N x N matrix that begins at (row, column).
template <int kRows, int kColumns, typename A>
ATTN_DEVICE void load_block(
    Tile<A> tile,
    Square<A> from,
    int64_t row,
    int64_t column,
    int64_t row_end,
    int64_t column_end) {
  constexpr int chunk = Tile<A>::kChunk, chunks = kColumns / chunk;
  for (int i = threadIdx.x; i < kRows * chunks; i += kThreads) {
    const int64_t r = row + i / chunks, c = column + i % chunks * chunk;
    const bool valid = r < row_end && c < column_end;
    const auto* data =
        from.data + (valid ? r * from.row_stride + c * from.column_stride : 0);
    auto* to = tile.chunk(i / chunks, i % chunks);
    if (from.chunked) {
      copy_async(to, data, valid);
      continue;
    }
    for (int e = 0; e < chunk; ++e) {
      to[e] = valid && c + e < column_end ? data[e * from.column_stride]
                                          : typename A::scalar_t(0);
    }
  }
}

// What a lane reads or writes in one access.
template <typename A>
struct alignas(16) Chunk {
  static constexpr int kPairs = Tile<A>::kChunk / 2;
  typename A::Pair pair[kPairs];
};

// How many rows or columns there are from one on, as far as a block can see.
ATTN_DEVICE int left_of(int64_t end, int64_t begin) {
  return static_cast<int>(std::min<int64_t>(end - begin, 1 << 16));
}

// The pairs of this lane in a matrix of which this many rows and columns are
// there; zeros beyond them.
template <typename A, int kRows, int kTiles>
ATTN_DEVICE void load_pairs(
    typename A::Pair (&pairs)[kRows][kTiles][2],
    Square<A> from,
    int64_t row,
    int64_t column,
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
      if (from.chunked) {
        if (n > 0) {
          chunk = *reinterpret_cast<const Chunk<A>*>(x);
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2 * tiles; j += 2) {
          using acc_t = typename A::acc_t;
          chunk.pair[j / 2] = A::pair(
              j < n ? acc_t(x[j * from.column_stride]) : acc_t(0),
              j + 1 < n ? acc_t(x[(j + 1) * from.column_stride]) : acc_t(0));
        }
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        pairs[i / 2][t + j][i % 2] = chunk.pair[j];
      }
    }
  }
}

// Writes what load_pairs reads, to rows of this stride from data on.
template <typename A, int kRows, int kTiles>
ATTN_DEVICE void store_pairs(
    typename A::scalar_t* data,
    int64_t stride,
    bool chunked,
    const typename A::Pair (&pairs)[kRows][kTiles][2],
    int rows,
    int columns,
    int lane) {
  constexpr int tiles = Chunk<A>::kPairs;
  const int r = lane / 4, c = lane % 4 * Tile<A>::kChunk;
  data += r * stride + c;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; t += tiles) {
      auto* to = data + 8 * i * stride + 8 * t;
      const int n = r + 8 * i < rows ? columns - c - 8 * t : 0;
      Chunk<A> chunk;
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        chunk.pair[j] = pairs[i / 2][t + j][i % 2];
      }
      if (chunked) {
        if (n > 0) {
          store_streaming(to, chunk);
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < 2 * tiles; ++j) {
        if (j < n) {
          const auto p = chunk.pair[j / 2];
          to[j] = j % 2 ? A::high(p) : A::low(p);
        }
      }
    }
  }
}

// Writes a warp's sums from (row, column) on.
template <typename A, int kRows, int kTiles>
ATTN_DEVICE void store_result(
    Result<A> result,
    const typename A::acc_t (&sums)[kRows][kTiles][4],
    int64_t row,
    int column,
    int64_t n,
    int lane) {
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    const int64_t r = row + 8 * i + lane / 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int c = column + result_column<A>(t, lane);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        if (r < n && c + b < result.columns) {
          const auto x = sums[i / 2][t][i % 2 * 2 + b];
          if (result.parts) {
            result.parts[(blockIdx.y * n + r) * result.columns + c + b] = x;
          } else {
            result.data[r * result.columns + c + b] = x;
          }
        }
      }
    }
  }
}

// (attn's gradient) * (1 - attn^2), pair by pair, in the shape of scores
template <typename A, int kRows, int kTiles>
ATTN_DEVICE void times_tanh_derivative(
    typename A::acc_t (&scores)[kRows][kTiles][4],
    const typename A::Pair (&attn)[kRows][kTiles][2]) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto p = attn[i / 2 / kTiles][i / 2 % kTiles][i % 2];
    auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    const auto a0 = A::low(p), a1 = A::high(p);
    s[i % 2 * 2] *= (1 - a0) * (1 + a0);
    s[i % 2 * 2 + 1] *= (1 - a1) * (1 + a1);
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

// Zeros where there is no column: an infinity of left times the zeros beyond
// the last row of right is not a number, and must not reach the second product.
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

template <typename A, int kRows, int kTiles>
ATTN_DEVICE void to_pairs(
    typename A::Pair (&pairs)[kRows][kTiles][2],
    const typename A::acc_t (&scores)[kRows][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2] =
        A::pair(s[i % 2 * 2], s[i % 2 * 2 + 1]);
  }
}

// Shared memory: the owned tile, then two stages of the walked ones.
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

// Calls compute(stage, row) for every kWalk rows from begin to end, while load
// brings in those after them; stage is where in a tile of 2 * kWalk rows they
// are.
template <int kWalk, typename Load, typename Compute>
ATTN_DEVICE void
walk(int64_t begin, int64_t end, const Load& load, const Compute& compute) {
  int stage = 0;
  load(stage, begin);
  copy_commit();
  for (int64_t row = begin; row < end; row += kWalk) {
    if (row + kWalk < end) {
      load(stage ^ kWalk, row + kWalk);
      copy_commit();
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    block_barrier();
    compute(stage, row);
    block_barrier();
    stage ^= kWalk;
  }
}

// output = tanh(q @ k^T) @ v, and attn on the way
template <typename A, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads) forward(ForwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kBlock = 64 * kRows, kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * kRows;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBlock;
  const int64_t begin = blockIdx.y * args.part;
  const int64_t end = std::min<int64_t>(args.n, begin + args.part);
  const int slice = blockIdx.z * kWidth;
  const int columns = std::min<int>(kWidth, args.v.lines * kLine<A> - slice);
  const int depth = args.q.lines * kLine<A>;

  Storage<A> storage;
  const Tile<A> q = storage.tile(kBlock, depth);
  const Tile<A> k = storage.tile(2 * kWalk, depth);
  const Tile<A> v = storage.tile(2 * kWalk, kWidth);
  const auto load = [&](int stage, int64_t key) {
    load_rows<kWalk, true>(k.from(stage), args.k, 0, args.k.lines, key, args.n);
    load_rows<kWalk, true>(
        v.from(stage), args.v, slice, columns / kLine<A>, key, args.n);
  };
  load_rows<kBlock, false>(q, args.q, 0, args.q.lines, row, args.n);

  acc_t output[kRows][kWidth / 8][4] = {};
  walk<kWalk>(begin, end, load, [&](int stage, int64_t key) {
    for (int strip = 0; strip < kWalk; strip += A::kStrip) {
      acc_t scores[kRows][kTiles][4] = {};
      first_product(scores, q, warp_row, k, stage + strip, depth, lane);
#pragma unroll
      for (int i = 0; i < kRows * kTiles * 4; ++i) {
        acc_t& s = scores[i / 4 / kTiles][i / 4 % kTiles][i % 4];
        s = A::tanh(s);
      }
      if (key + kWalk > end) {
        mask_scores<A, true>(scores, strip, left_of(end, key), lane);
      }
      typename A::Pair attn[kRows][kTiles][2];
      to_pairs<A>(attn, scores);
      if (slice == 0) {
        store_pairs<A>(
            args.attn + (row + warp_row) * args.n + key + strip,
            args.n,
            args.chunked,
            attn,
            left_of(args.n, row + warp_row),
            left_of(end, key + strip),
            lane);
      }
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        second_product<A>(output, attn, t, v, stage + strip + 8 * t, 0, lane);
      }
    }
  });
  store_result(args.output, output, row + warp_row, slice, args.n, lane);
#endif
}

// grad_q = X @ k, X = (grad_attn + grad_output @ v^T) * (1 - attn^2)
template <typename A, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads)
    backward_rows(BackwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kBlock = 64 * kRows, kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * kRows;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBlock;
  const int64_t begin = blockIdx.y * args.part;
  const int64_t end = std::min<int64_t>(args.n, begin + args.part);
  const int slice = blockIdx.z * kWidth;
  const int columns = std::min<int>(kWidth, args.k.lines * kLine<A> - slice);
  const int depth = args.grad_output.lines * kLine<A>;

  Storage<A> storage;
  const Tile<A> grad_output = storage.tile(kBlock, depth);
  const Tile<A> v = storage.tile(2 * kWalk, depth);
  const Tile<A> k = storage.tile(2 * kWalk, kWidth);
  const auto load = [&](int stage, int64_t key) {
    load_rows<kWalk, true>(v.from(stage), args.v, 0, args.v.lines, key, args.n);
    load_rows<kWalk, true>(
        k.from(stage), args.k, slice, columns / kLine<A>, key, args.n);
  };
  load_rows<kBlock, false>(
      grad_output, args.grad_output, 0, args.grad_output.lines, row, args.n);

  acc_t grad_q[kRows][kWidth / 8][4] = {};
  walk<kWalk>(begin, end, load, [&](int stage, int64_t key) {
    for (int strip = 0; strip < kWalk; strip += A::kStrip) {
      typename A::Pair pairs[kRows][kTiles][2];
      acc_t scores[kRows][kTiles][4] = {};
      if (args.grad_attn.data) {
        load_pairs<A>(
            pairs,
            args.grad_attn,
            row + warp_row,
            key + strip,
            left_of(args.n, row + warp_row),
            left_of(end, key + strip),
            lane);
        add_pairs<A>(scores, pairs);
      }
      // On their way while the product is made.
      load_pairs<A>(
          pairs,
          args.attn,
          row + warp_row,
          key + strip,
          left_of(args.n, row + warp_row),
          left_of(end, key + strip),
          lane);
      first_product(
          scores, grad_output, warp_row, v, stage + strip, depth, lane);
      times_tanh_derivative<A>(scores, pairs);
      if (key + kWalk > end) {
        mask_scores<A, true>(scores, strip, left_of(end, key), lane);
      }
      to_pairs<A>(pairs, scores);
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        second_product<A>(grad_q, pairs, t, k, stage + strip + 8 * t, 0, lane);
      }
    }
  });
  store_result(args.grad_q, grad_q, row + warp_row, slice, args.n, lane);
#endif
}

// grad_k = X^T @ q and grad_v = attn^T @ grad_output
template <typename A, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads, 2)
    backward_cols(BackwardArgs<A> args) {
#ifdef ATTN_TILES
  constexpr int kBlock = 64 * kRows, kWalk = A::kWalk, kTiles = A::kStrip / 8;
  using acc_t = typename A::acc_t;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * kRows;
  const int64_t key = static_cast<int64_t>(blockIdx.x) * kBlock;
  const int64_t begin = blockIdx.y * args.part;
  const int64_t end = std::min<int64_t>(args.n, begin + args.part);
  const int slice = blockIdx.z * kWidth;
  const int columns = std::min<int>(kWidth, args.q.lines * kLine<A> - slice);
  const int depth = args.grad_output.lines * kLine<A>;
  // The second product reads whole slices of grad_output; v is as wide, as a
  // stride of its own makes this kernel spill.
  const int whole = (depth + kWidth - 1) / kWidth * kWidth;
  const bool has_grad_v = args.grad_v.columns > slice;

  Storage<A> storage;
  const Tile<A> v = storage.tile(kBlock, whole);
  const Tile<A> grad_output = storage.tile(2 * kWalk, whole);
  const Tile<A> q = storage.tile(2 * kWalk, kWidth);
  const Tile<A> attn = storage.tile(2 * kWalk, kBlock);
  const Tile<A> grad_attn = storage.tile(2 * kWalk, kBlock);
  const auto load = [&](int stage, int64_t row) {
    load_rows<kWalk, false>(
        grad_output.from(stage),
        args.grad_output,
        0,
        args.grad_output.lines,
        row,
        args.n);
    load_rows<kWalk, false>(
        q.from(stage), args.q, slice, columns / kLine<A>, row, args.n);
    load_block<kWalk, kBlock>(
        attn.from(stage), args.attn, row, key, args.n, args.n);
    if (args.grad_attn.data) {
      load_block<kWalk, kBlock>(
          grad_attn.from(stage), args.grad_attn, row, key, args.n, args.n);
    }
  };
  load_rows<kBlock, false>(v, args.v, 0, args.v.lines, key, args.n);

  acc_t grad_k[kRows][kWidth / 8][4] = {};
  acc_t grad_v[kRows][kWidth / 8][4] = {};
  walk<kWalk>(begin, end, load, [&](int stage, int64_t row) {
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
              strip + 8 * t,
              warp_row + 16 * m,
              lane);
        }
      };
      if (args.grad_attn.data) {
        load_pairs_of(grad_attn.from(stage));
        add_pairs<A>(scores, pairs);
      }
      first_product(
          scores, v, warp_row, grad_output, stage + strip, depth, lane);
      load_pairs_of(attn.from(stage));
      times_tanh_derivative<A>(scores, pairs);
      if (row + kWalk > end) {
        mask_scores<A, false>(scores, strip, left_of(end, row), lane);
      }
      if (has_grad_v) {
#pragma unroll
        for (int t = 0; t < kTiles; t += 2) {
          second_product<A>(
              grad_v,
              pairs,
              t,
              grad_output,
              stage + strip + 8 * t,
              slice,
              lane);
        }
      }
      to_pairs<A>(pairs, scores);
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        second_product<A>(grad_k, pairs, t, q, stage + strip + 8 * t, 0, lane);
      }
    }
  });
  store_result(args.grad_k, grad_k, key + warp_row, slice, args.n, lane);
  if (has_grad_v) {
    store_result(args.grad_v, grad_v, key + warp_row, slice, args.n, lane);
  }
#endif
}

// result (count elements) = the sum of its parts, first to last
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

template <typename A>
const void* kernel_of(Kernel kernel, int width) {
  const auto pointer = [](auto* function) {
    return reinterpret_cast<const void*>(function);
  };
  constexpr int rows = Shape<A>::kRows, most = Shape<A>::kMaxColsWidth;
  const bool narrow = width == 64;
  switch (kernel) {
    case Kernel::forward:
      return narrow ? pointer(&forward<A, 64, rows>)
                    : pointer(&forward<A, 128, rows>);
    case Kernel::backward_rows:
      return narrow ? pointer(&backward_rows<A, 64, rows>)
                    : pointer(&backward_rows<A, 128, rows>);
    case Kernel::backward_cols:
      return narrow
          ? pointer(&backward_cols<A, 64, Shape<A>::cols_rows(64)>)
          : pointer(&backward_cols<A, most, Shape<A>::cols_rows(most)>);
    case Kernel::sum_parts:
      return pointer(&sum_parts<A>);
  }
  return nullptr;
}

} // namespace at::native::attn_tile
