// attn's fused kernels: each passes once over the N x N scores.
//
// A block owns rows of its result. It walks over the rows of the other side,
// kWalk at a time, and keeps the sums of its result in registers:
//
//   forward         owns queries, walks over keys      output
//   backward_rows   owns queries, walks over keys      grad_q
//   backward_cols   owns keys, walks over queries      grad_k and grad_v
//
// blockIdx.x is the block of rows and blockIdx.y the part of the walk.
// sum_parts adds the parts in order, so results do not depend on the timing of
// blocks. Every operand is kWidth columns wide: 64, forward also 128.
#pragma once

#include <ATen/native/cuda/AttnArgs.cuh>

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace at::native::attn_fused {

// cp.async, ldmatrix and mma need compute capability 8.0. The host does not
// launch these kernels on older devices.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ATTN_TILES
#endif

constexpr int kTiles = kStrip / 8; // tiles of scores beside each other
static_assert(kTiles == kChunk / 2); // one access of a lane, by column_of

// A warp's scores, in float32 and as pairs.
using Scores = float[kRows][kTiles][4];
using Pairs = Pair[kRows][kTiles][2];

// The column of attn that stands at position p of a walked tile. A lane holds
// one pair of neighbouring positions in each 16 x 8 tile. Walked rows are
// stored in such an order that its pairs in kChunk / 2 tiles are kChunk
// neighbouring columns of attn, which it accesses as 16 bytes.
ATTN_DEVICE int column_of(int p) {
  constexpr int run = 4 * kChunk;
  return p / run * run + p % 8 / 2 * kChunk + p % run / 8 * 2 + p % 2;
}

// The order of the rows of a tile: as in the matrix, by column_of, or by
// column_of with every two neighbours exchanged.
enum class Order { rows, columns, exchanged };

// Starts to copy rows [first, first + kRows) of a matrix to a tile. At an edge
// the rows from `end` on become zeros.
template <int kRows, int kWidth, Order kOrder, bool kEdge, typename T>
ATTN_DEVICE void load_rows(Tile<T> tile, const T* from, int first, int end) {
  constexpr int step = kThreads / 8;
  const auto order = [](int r) {
    return kOrder == Order::rows ? r : column_of(r);
  };
  const int chunk = threadIdx.x % 8, own = threadIdx.x / 8;
  first += order(own) ^ (kOrder == Order::exchanged);
  const int left = kEdge ? end - first : kRows;
  const T* data = from + static_cast<int64_t>(first) * kWidth + chunk * kChunk;
#pragma unroll
  for (int i = 0; i < kRows / step; ++i) {
    const int r = order(i * step); // own and i * step share no bits
#pragma unroll
    for (int line = 0; line < kWidth / kLine; ++line) {
      const bool valid = !kEdge || r < left;
      copy_async(
          tile.chunk(own + i * step, line * 8 + chunk),
          valid ? data + (r * kWidth + line * kLine) : from,
          valid);
    }
  }
}

// Starts to copy the block at (row, column) of an N x N matrix to a tile. At an
// edge what lies outside of the matrix becomes zeros.
template <int kRows, int kColumns, bool kEdge, typename T>
ATTN_DEVICE void load_block(
    Tile<T> tile,
    const T* from,
    int row,
    int column,
    int n) {
  constexpr int chunks = kColumns / kChunk, step = kThreads / chunks;
  const int own = threadIdx.x / chunks, c = threadIdx.x % chunks;
  row += own;
  column += c * kChunk;
  const T* data = from + int64_t(row) * n + column;
#pragma unroll
  for (int r = 0; r < kRows; r += step) {
    const bool valid = !kEdge || (row + r < n && column < n);
    copy_async(
        tile.chunk(own + r, c), valid ? data + int64_t(r) * n : from, valid);
  }
}

// The pairs that a lane loads in one access.
struct alignas(16) Chunk {
  Pair pair[kChunk / 2];
};

// Loads this lane's pairs of a block at `data`, whose rows are `stride` apart.
// At an edge there are only this many rows and columns from there on, and pairs
// outside of them become zeros.
template <bool kEdge, typename T>
ATTN_DEVICE void load_pairs(
    Pairs& pairs,
    const T* data,
    int stride,
    int rows,
    int columns,
    int lane) {
  const int r = lane / 4, c = lane % 4 * kChunk;
  data += int64_t(r) * stride + c;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    Chunk chunk{};
    if (!kEdge || (r + 8 * i < rows && c < columns)) {
      chunk = *reinterpret_cast<const Chunk*>(data + int64_t(8 * i) * stride);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      pairs[i / 2][t][i % 2] = chunk.pair[t];
    }
  }
}

// Stores this lane's pairs to a block, as load_pairs loads them.
template <bool kEdge, typename T>
ATTN_DEVICE void store_pairs(
    T* data,
    int stride,
    const Pairs& pairs,
    int rows,
    int columns,
    int lane) {
  const int r = lane / 4, c = lane % 4 * kChunk;
  data += int64_t(r) * stride + c;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    const auto pair = [&](int t) { return pairs[i / 2][t][i % 2]; };
    if (!kEdge || (r + 8 * i < rows && c < columns)) {
      store_streaming(
          data + int64_t(8 * i) * stride, {pair(0), pair(1), pair(2), pair(3)});
    }
  }
}

// Multiplies every score by 1 - attn^2, with attn in the same place of `pairs`.
template <typename T>
ATTN_DEVICE void times_tanh_derivative(Scores& scores, const Pairs& pairs) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto attn = pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2];
    float* s = &scores[i / 2 / kTiles][i / 2 % kTiles][i % 2 * 2];
    const float a0 = low<T>(attn), a1 = high<T>(attn);
    s[0] *= std::fma(-a0, a0, 1.f);
    s[1] *= std::fma(-a1, a1, 1.f);
  }
}

// Sets the scores beyond the last column to zero. They can be NaN, which must
// not reach the second product: an infinity of `left` has been multiplied by
// the zeros beyond the last row of `right`.
template <bool kInColumnOrder>
ATTN_DEVICE void mask_scores(
    Scores& scores,
    int position,
    int columns,
    int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int p = position + 8 * t + lane % 4 * 2;
    const int column = kInColumnOrder ? column_of(p) : p;
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) {
      if (column + i % 2 >= columns) {
        scores[i / 4][t][i % 4] = 0;
      }
    }
  }
}

template <typename T, bool kExchanged = false>
ATTN_DEVICE void to_pairs(Pairs& pairs, const Scores& scores) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2] =
        pack(T(), s[i % 2 * 2 + kExchanged], s[i % 2 * 2 + !kExchanged]);
  }
}

// One block's share of the work: its rows and its part of the walk.
template <typename T, int kWidth>
struct Share {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16 * kRows;
  const int first = blockIdx.x * kBlock;
  const int n;
  const int begin, end; // of the walk

  ATTN_DEVICE Share(int n, int part)
      : n(n), begin(blockIdx.y * part), end(std::min<int>(n, begin + part)) {}

  // Calls compute(edge, stage, row) for every kWalk rows of the walk, while
  // load(edge, stage, row) brings in the next ones. `stage` is where these rows
  // lie in a tile of 2 * kWalk rows. `edge` says that this step checks for the
  // edges of the matrices. A block whose rows all exist runs a loop without
  // checks first.
  template <typename Load, typename Compute>
  ATTN_DEVICE void walk(const Load& load, const Compute& compute) const {
    const int end = this->end;
    const bool inside = first + kBlock <= n;
    int stage = 0;
    int row = begin;
    load(std::true_type(), stage, row);
    copy_commit();
    const auto step = [&](auto edge) {
      copy_wait();
      __syncthreads();
      if (!edge || row + kWalk < end) {
        load(edge, stage ^ kWalk, row + kWalk);
        copy_commit();
      }
      compute(edge, stage, row);
      stage ^= kWalk;
      row += kWalk;
    };
    while (inside && row + 2 * kWalk <= end) {
      step(std::false_type());
    }
    while (row < end) {
      step(std::true_type());
    }
  }

  // Writes a warp's sums to its rows of a result.
  ATTN_DEVICE void store(
      Result<T> result,
      const float (&sums)[kRows][kWidth / 8][4]) const {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const int r = first + warp_row + 8 * i + lane / 4;
#pragma unroll
      for (int t = 0; t < kWidth / 8; ++t) {
        const int c = 8 * t + lane % 4 * 2;
        const float* x = &sums[i / 2][t][i % 2 * 2];
        if (r < n && result.parts) {
          const int64_t row = int64_t(blockIdx.y) * n + r;
          float* to = result.parts + row * kWidth + c;
          to[0] = x[0];
          to[1] = x[1];
        } else if (r < n) {
          T* to = result.data + int64_t(r) * kWidth + c;
          to[0] = x[0];
          to[1] = x[1];
        }
      }
    }
  }
};

// attn = tanh(q @ k^T), output = attn @ v
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth == 64 ? 3 : 2)
    forward(ForwardArgs<T> args) {
#ifdef ATTN_TILES
  const Share<T, kWidth> share(args.n, args.part);
  const int lane = share.lane;

  const Tile<T> q{reinterpret_cast<T*>(shared_memory()), kWidth};
  const Tile<T> k = q.from(kBlock), v = k.from(2 * kWalk);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, kWidth, Order::columns, edge>(
        k.from(stage), args.k, key, args.n);
    load_rows<kWalk, kWidth, Order::exchanged, edge>(
        v.from(stage), args.v, key, args.n);
  };
  load_rows<kBlock, kWidth, Order::rows, true>(q, args.q, share.first, args.n);

  float output[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Scores scores = {};
      first_product(
          scores, q.from(share.warp_row), k.from(stage + strip), lane);
#pragma unroll
      for (int i = 0; i < kRows * kTiles * 4; ++i) {
        float& s = scores[i / 4 / kTiles][i / 4 % kTiles][i % 4];
        s = tanh_approximate(s);
      }
      if (edge && key + kWalk > share.end) {
        mask_scores<true>(scores, strip, share.end - key, lane);
      }
      Pairs attn;
      to_pairs<T>(attn, scores);
      const int row = share.first + share.warp_row,
                columns = share.end - key - strip;
      T* to = args.attn + int64_t(row) * args.n + (key + strip);
      store_pairs<edge>(to, args.n, attn, args.n - row, columns, lane);
      // The store and the mma need these pairs in different registers. Pairs
      // with neighbours exchanged, to match the rows of v, are new values that
      // the compiler makes once. It would copy the same values for every mma.
      to_pairs<T, true>(attn, scores);
      second_product(output, attn, v.from(stage + strip), lane);
    }
  };
  share.walk(load, compute);
  share.store(args.output, output);
#endif
}

// grad_q = X @ k, X = (grad_output @ v^T) * (1 - attn^2)
template <typename T>
__global__ void __launch_bounds__(kThreads, 3)
    backward_rows(BackwardArgs<T> args) {
#ifdef ATTN_TILES
  constexpr int kWidth = 64;
  const Share<T, kWidth> share(args.n, args.part);
  const int lane = share.lane;

  const Tile<T> grad_output{reinterpret_cast<T*>(shared_memory()), kWidth};
  const Tile<T> v = grad_output.from(kBlock), k = v.from(2 * kWalk);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, kWidth, Order::columns, edge>(
        v.from(stage), args.v, key, args.n);
    load_rows<kWalk, kWidth, Order::columns, edge>(
        k.from(stage), args.k, key, args.n);
  };
  load_rows<kBlock, kWidth, Order::rows, true>(
      grad_output, args.grad_output, share.first, args.n);

  float grad_q[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Pairs pairs;
      Scores scores = {};
      // These loads run while the product is computed.
      const int row = share.first + share.warp_row,
                columns = share.end - key - strip;
      const T* from = args.attn + int64_t(row) * args.n + (key + strip);
      load_pairs<edge>(pairs, from, args.n, args.n - row, columns, lane);
      first_product(
          scores,
          grad_output.from(share.warp_row),
          v.from(stage + strip),
          lane);
      times_tanh_derivative<T>(scores, pairs);
      if (edge && key + kWalk > share.end) {
        mask_scores<true>(scores, strip, share.end - key, lane);
      }
      to_pairs<T>(pairs, scores);
      second_product(grad_q, pairs, k.from(stage + strip), lane);
    }
  };
  share.walk(load, compute);
  share.store(args.grad_q, grad_q);
#endif
}

// grad_k = X^T @ q and grad_v = attn^T @ grad_output
template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    backward_cols(BackwardArgs<T> args) {
#ifdef ATTN_TILES
  constexpr int kWidth = 64;
  const Share<T, kWidth> share(args.n, args.part);
  const int lane = share.lane;

  const Tile<T> v{reinterpret_cast<T*>(shared_memory()), kWidth};
  const Tile<T> grad_output = v.from(kBlock), q = grad_output.from(2 * kWalk);
  const Tile<T> attn{q.from(2 * kWalk).data, kBlock};
  const auto load = [&](auto edge, int stage, int row) {
    load_rows<kWalk, kWidth, Order::rows, edge>(
        grad_output.from(stage), args.grad_output, row, args.n);
    load_rows<kWalk, kWidth, Order::rows, edge>(
        q.from(stage), args.q, row, args.n);
    load_block<kWalk, kBlock, edge>(
        attn.from(stage), args.attn, row, share.first, args.n);
  };
  load_rows<kBlock, kWidth, Order::rows, true>(v, args.v, share.first, args.n);

  float grad_k[kRows][kWidth / 8][4] = {};
  float grad_v[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int row) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Scores scores = {};
      Pairs pairs;
      first_product(
          scores,
          v.from(share.warp_row),
          grad_output.from(stage + strip),
          lane);
#pragma unroll
      for (int i = 0; i < kRows * kTiles / 2; ++i) {
        const int m = i / (kTiles / 2), t = i % (kTiles / 2) * 2;
        const Tile<T> tile = attn.from(stage + strip);
        uint32_t x[4];
        load_matrices_transposed(
            x, by_rows(tile, 8 * t, share.warp_row + 16 * m, lane));
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          pairs[m][t + w / 2][w % 2] = x[w];
        }
      }
      times_tanh_derivative<T>(scores, pairs);
      if (edge && row + kWalk > share.end) {
        mask_scores<false>(scores, strip, share.end - row, lane);
      }
      second_product(grad_v, pairs, grad_output.from(stage + strip), lane);
      to_pairs<T>(pairs, scores);
      second_product(grad_k, pairs, q.from(stage + strip), lane);
    }
  };
  share.walk(load, compute);
  share.store(args.grad_k, grad_k);
  share.store(args.grad_v, grad_v);
#endif
}

// Sums the parts of a result of `count` elements, from first to last.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_parts(Result<T> result, int parts, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) {
    float sum = result.parts[i];
    for (int p = 1; p < parts; ++p) {
      sum += result.parts[p * count + i];
    }
    result.data[i] = sum;
  }
}

template <typename T>
const void* kernel_of(Kernel kernel, int width) {
  const auto address = [](auto* function) {
    return reinterpret_cast<const void*>(function);
  };
  switch (kernel) {
    case Kernel::forward:
      return address(width == 64 ? &forward<T, 64> : &forward<T, 128>);
    case Kernel::backward_rows:
      return address(&backward_rows<T>);
    case Kernel::backward_cols:
      return address(&backward_cols<T>);
    case Kernel::sum_parts:
      return address(&sum_parts<T>);
  }
  return nullptr;
}

} // namespace at::native::attn_fused
