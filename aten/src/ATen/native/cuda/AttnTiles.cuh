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
// blocks. Every operand is kWidth columns wide: 64 or 128.
#pragma once

#include <ATen/native/cuda/AttnArgs.cuh>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

namespace at::native::attn_fused {

// cp.async, ldmatrix and mma need compute capability 8.0. The host does not
// launch these kernels on older devices.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ATTN_TILES
#endif

constexpr int kTiles = kStrip / 8; // tiles of scores beside each other
static_assert(kTiles == kChunk / 2); // one access of a lane, by column_of

// A warp's scores of 16 * kRows rows, in float32 and as pairs.
template <int kRows>
using Scores = float[kRows][kTiles][4];
template <int kRows>
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
// edge what lies outside of the matrix becomes zeros; elsewhere the matrix must
// be chunked.
template <int kRows, int kColumns, bool kEdge, typename T>
ATTN_DEVICE void load_block(
    Tile<T> tile,
    Square<T> from,
    int row,
    int column,
    int n) {
  constexpr int chunks = kColumns / kChunk, step = kThreads / chunks;
  const int own = threadIdx.x / chunks, c = threadIdx.x % chunks;
  row += own;
  column += c * kChunk;
  const int rows = n - row, columns = n - column;
  const T* data =
      from.data + row * from.row_stride + column * from.column_stride;
#pragma unroll(kEdge ? 1 : kRows)
  for (int r = 0; r < kRows; r += step) {
    const T* x = data + r * from.row_stride;
    T* to = tile.chunk(own + r, c);
    if (kEdge && !from.chunked) {
      for (int e = 0; e < kChunk; ++e) {
        to[e] = r < rows && e < columns ? x[e * from.column_stride] : T(0);
      }
    } else {
      const bool valid = !kEdge || (r < rows && columns > 0);
      copy_async(to, valid ? x : from.data, valid);
    }
  }
}

// The pairs that a lane loads in one access.
struct alignas(16) Chunk {
  Pair pair[kChunk / 2];
};

// Loads this lane's pairs of the block at (row, column) of a matrix. At an edge
// the matrix has only this many rows and columns from there on, and pairs
// outside of it become zeros; elsewhere the matrix must be chunked.
template <bool kEdge, typename T, int kRows>
ATTN_DEVICE void load_pairs(
    Pairs<kRows>& pairs,
    Square<T> from,
    int row,
    int column,
    int rows,
    int columns,
    int lane) {
  const int r = lane / 4, c = lane % 4 * kChunk;
  const T* data = from.data + (row + r) * from.row_stride +
      (column + c) * from.column_stride;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    const T* x = data + 8 * i * from.row_stride;
    const int n = r + 8 * i < rows ? columns - c : 0;
    Chunk chunk{};
    if (kEdge && !from.chunked) {
#pragma unroll
      for (int j = 0; j < kChunk; j += 2) {
        chunk.pair[j / 2] = pack(
            T(),
            j < n ? float(x[j * from.column_stride]) : 0.f,
            j + 1 < n ? float(x[(j + 1) * from.column_stride]) : 0.f);
      }
    } else if (!kEdge || n > 0) {
      chunk = *reinterpret_cast<const Chunk*>(x);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      pairs[i / 2][t][i % 2] = chunk.pair[t];
    }
  }
}

// Stores this lane's pairs to the block at `data`, as load_pairs loads them.
template <bool kEdge, typename T, int kRows>
ATTN_DEVICE void store_pairs(
    T* data,
    int stride,
    bool chunked,
    const Pairs<kRows>& pairs,
    int rows,
    int columns,
    int lane) {
  const int r = lane / 4, c = lane % 4 * kChunk;
  data += int64_t(r) * stride + c;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    T* to = data + int64_t(8 * i) * stride;
    const int n = r + 8 * i < rows ? columns - c : 0;
    const auto pair = [&](int t) { return pairs[i / 2][t][i % 2]; };
    if (kEdge && !chunked) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (j < n) {
          to[j] = j % 2 ? high<T>(pair(j / 2)) : low<T>(pair(j / 2));
        }
      }
    } else if (!kEdge || n > 0) {
      store_streaming(to, {pair(0), pair(1), pair(2), pair(3)});
    }
  }
}

// Sets every score to f(score, the element of `pairs` in its place).
template <typename T, int kRows, typename Function>
ATTN_DEVICE void update(
    Scores<kRows>& scores,
    const Pairs<kRows>& pairs,
    const Function& f) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto p = pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2];
    float* s = &scores[i / 2 / kTiles][i / 2 % kTiles][i % 2 * 2];
    const float x0 = low<T>(p), x1 = high<T>(p);
    s[0] = f(s[0], x0);
    s[1] = f(s[1], x1);
  }
}

ATTN_DEVICE float times_tanh_derivative(float x, float tanh) {
  return x * std::fma(-tanh, tanh, 1.f);
}

// Sets the scores beyond the last column to zero. They can be NaN, which must
// not reach the second product: an infinity of `left` has been multiplied by
// the zeros beyond the last row of `right`.
template <bool kInColumnOrder, int kRows>
ATTN_DEVICE void mask_scores(
    Scores<kRows>& scores,
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

template <typename T, bool kExchanged = false, int kRows>
ATTN_DEVICE void to_pairs(Pairs<kRows>& pairs, const Scores<kRows>& scores) {
#pragma unroll
  for (int i = 0; i < kRows * kTiles * 2; ++i) {
    const auto& s = scores[i / 2 / kTiles][i / 2 % kTiles];
    pairs[i / 2 / kTiles][i / 2 % kTiles][i % 2] =
        pack(T(), s[i % 2 * 2 + kExchanged], s[i % 2 * 2 + !kExchanged]);
  }
}

// One block's share of the work: its rows and its part of the walk.
template <typename T, int kWidth, int kRows>
struct Place {
  static constexpr int kBlock = 64 * kRows;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16 * kRows;
  const int first = blockIdx.x * kBlock;
  const int begin, end; // of the walk

  ATTN_DEVICE Place(int n, int part)
      : begin(blockIdx.y * part), end(std::min<int>(n, begin + part)) {}

  // The columns of an operand. Without the reference nvcc makes other machine
  // code than the one that was measured on an H100.
  ATTN_DEVICE int depth(const T* const& operand) const {
    return kWidth;
  }

  ATTN_DEVICE bool is_inside(const ForwardArgs<T>& args) const {
    return args.chunked && first + kBlock <= args.n;
  }
  ATTN_DEVICE bool is_inside(const BackwardArgs<T>& args) const {
    return args.attn.chunked && !args.grad_attn.data &&
        first + kBlock <= args.n;
  }

  // Calls compute(edge, stage, row) for every kWalk rows of the walk, while
  // load(edge, stage, row) brings in the next ones. `stage` is where these rows
  // lie in a tile of 2 * kWalk rows. `edge` says that this step checks for the
  // edges of the matrices and for layouts that are not chunked. A block that is
  // inside chunked matrices runs a loop without checks first.
  template <typename Load, typename Compute>
  ATTN_DEVICE void walk(bool inside, const Load& load, const Compute& compute)
      const {
    const int end = this->end;
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
      const float (&sums)[kRows][kWidth / 8][4],
      int n) const {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const int r = first + warp_row + 8 * i + lane / 4;
#pragma unroll
      for (int t = 0; t < kWidth / 8; ++t) {
        const int c = 8 * t + lane % 4 * 2;
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

// attn = tanh(q @ k^T), output = attn @ v
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth == 64 ? 3 : 2)
    forward(ForwardArgs<T> args) {
#ifdef ATTN_TILES
  constexpr int kRows = rows_of(Kernel::forward, kWidth);
  const Place<T, kWidth, kRows> at(args.n, args.part);
  constexpr int kBlock = at.kBlock;
  const int lane = at.lane, depth = at.depth(args.q);

  const Tile<T> q{reinterpret_cast<T*>(shared_memory()), depth};
  const Tile<T> k = q.from(kBlock), v = k.from(2 * kWalk);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, kWidth, Order::columns, edge>(
        k.from(stage), args.k, key, args.n);
    load_rows<kWalk, kWidth, Order::exchanged, edge>(
        v.from(stage), args.v, key, args.n);
  };
  load_rows<kBlock, kWidth, Order::rows, true>(q, args.q, at.first, args.n);

  float output[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Scores<kRows> scores = {};
      first_product(scores, q.from(at.warp_row), k.from(stage + strip), lane);
#pragma unroll
      for (int i = 0; i < kRows * kTiles * 4; ++i) {
        float& s = scores[i / 4 / kTiles][i / 4 % kTiles][i % 4];
        s = tanh_approximate(s);
      }
      if (edge && key + kWalk > at.end) {
        mask_scores<true>(scores, strip, at.end - key, lane);
      }
      Pairs<kRows> attn;
      to_pairs<T>(attn, scores);
      const int row = at.first + at.warp_row, columns = at.end - key - strip;
      T* to = args.attn + int64_t(row) * args.n + (key + strip);
      store_pairs<edge>(
          to, args.n, args.chunked, attn, args.n - row, columns, lane);
      // The store and the mma need these pairs in different registers. Pairs
      // with neighbours exchanged, to match the rows of v, are new values that
      // the compiler makes once. It would copy the same values for every mma.
      to_pairs<T, true>(attn, scores);
      second_product(output, attn, v.from(stage + strip), lane);
    }
  };
  at.walk(at.is_inside(args), load, compute);
  at.store(args.output, output, args.n);
#endif
}

// grad_q = X @ k, X = (grad_attn + grad_output @ v^T) * (1 - attn^2)
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth == 64 ? 3 : 2)
    backward_rows(BackwardArgs<T> args) {
#ifdef ATTN_TILES
  constexpr int kRows = rows_of(Kernel::backward_rows, kWidth);
  const Place<T, kWidth, kRows> at(args.n, args.part);
  constexpr int kBlock = at.kBlock;
  const int lane = at.lane, depth = at.depth(args.grad_output);

  const Tile<T> grad_output{reinterpret_cast<T*>(shared_memory()), depth};
  const Tile<T> v = grad_output.from(kBlock), k = v.from(2 * kWalk);
  const auto load = [&](auto edge, int stage, int key) {
    load_rows<kWalk, kWidth, Order::columns, edge>(
        v.from(stage), args.v, key, args.n);
    load_rows<kWalk, kWidth, Order::columns, edge>(
        k.from(stage), args.k, key, args.n);
  };
  load_rows<kBlock, kWidth, Order::rows, true>(
      grad_output, args.grad_output, at.first, args.n);

  float grad_q[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int key) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Pairs<kRows> pairs;
      Scores<kRows> scores = {};
      const auto load_pairs_of = [&](const Square<T>& from) {
        const int row = at.first + at.warp_row, columns = at.end - key - strip;
        load_pairs<edge>(
            pairs, from, row, key + strip, args.n - row, columns, lane);
      };
      if (edge && args.grad_attn.data) {
        load_pairs_of(args.grad_attn);
        update<T>(scores, pairs, std::plus<>());
      }
      // These loads run while the product is computed.
      load_pairs_of(args.attn);
      first_product(
          scores, grad_output.from(at.warp_row), v.from(stage + strip), lane);
      update<T>(scores, pairs, times_tanh_derivative);
      if (edge && key + kWalk > at.end) {
        mask_scores<true>(scores, strip, at.end - key, lane);
      }
      to_pairs<T>(pairs, scores);
      second_product(grad_q, pairs, k.from(stage + strip), lane);
    }
  };
  at.walk(at.is_inside(args), load, compute);
  at.store(args.grad_q, grad_q, args.n);
#endif
}

// grad_k = X^T @ q and grad_v = attn^T @ grad_output
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    backward_cols(BackwardArgs<T> args) {
#ifdef ATTN_TILES
  constexpr int kRows = rows_of(Kernel::backward_cols, kWidth);
  const Place<T, kWidth, kRows> at(args.n, args.part);
  constexpr int kBlock = at.kBlock;
  const int lane = at.lane, depth = at.depth(args.grad_output);
  const bool has_grad_v = args.grad_v.columns > 0;

  const Tile<T> v{reinterpret_cast<T*>(shared_memory()), depth};
  const Tile<T> grad_output = v.from(kBlock), q = grad_output.from(2 * kWalk);
  const Tile<T> attn{q.from(2 * kWalk).data, kBlock};
  const Tile<T> grad_attn = attn.from(2 * kWalk);
  const auto load = [&](auto edge, int stage, int row) {
    load_rows<kWalk, kWidth, Order::rows, edge>(
        grad_output.from(stage), args.grad_output, row, args.n);
    load_rows<kWalk, kWidth, Order::rows, edge>(
        q.from(stage), args.q, row, args.n);
    load_block<kWalk, kBlock, edge>(
        attn.from(stage), args.attn, row, at.first, args.n);
    if (edge && args.grad_attn.data) {
      load_block<kWalk, kBlock, edge>(
          grad_attn.from(stage), args.grad_attn, row, at.first, args.n);
    }
  };
  load_rows<kBlock, kWidth, Order::rows, true>(v, args.v, at.first, args.n);

  float grad_k[kRows][kWidth / 8][4] = {};
  float grad_v[kRows][kWidth / 8][4] = {};
  const auto compute = [&](auto edge, int stage, int row) {
#pragma unroll 1
    for (int strip = 0; strip < kWalk; strip += kStrip) {
      Scores<kRows> scores = {};
      Pairs<kRows> pairs;
      const auto load_pairs_of = [&](const Tile<T>& tile) {
#pragma unroll
        for (int i = 0; i < kRows * kTiles / 2; ++i) {
          const int m = i / (kTiles / 2), t = i % (kTiles / 2) * 2;
          uint32_t x[4];
          load_matrices_transposed(
              x, by_rows(tile, 8 * t, at.warp_row + 16 * m, lane));
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            pairs[m][t + w / 2][w % 2] = x[w];
          }
        }
      };
      if (edge && args.grad_attn.data) {
        load_pairs_of(grad_attn.from(stage + strip));
        update<T>(scores, pairs, std::plus<>());
      }
      first_product(
          scores, v.from(at.warp_row), grad_output.from(stage + strip), lane);
      load_pairs_of(attn.from(stage + strip));
      update<T>(scores, pairs, times_tanh_derivative);
      if (edge && row + kWalk > at.end) {
        mask_scores<false>(scores, strip, at.end - row, lane);
      }
      if (has_grad_v) {
        second_product(grad_v, pairs, grad_output.from(stage + strip), lane);
      }
      to_pairs<T>(pairs, scores);
      second_product(grad_k, pairs, q.from(stage + strip), lane);
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
  const auto either = [&](auto* narrow, auto* wide) {
    return reinterpret_cast<const void*>(width == 64 ? narrow : wide);
  };
  const void* const kernels[] = {
      either(&forward<T, 64>, &forward<T, 128>),
      either(&backward_rows<T, 64>, &backward_rows<T, 128>),
      either(&backward_cols<T, 64>, &backward_cols<T, 128>),
      either(&sum_parts<T>, &sum_parts<T>)};
  return kernels[static_cast<int>(kernel)];
}

} // namespace at::native::attn_fused
