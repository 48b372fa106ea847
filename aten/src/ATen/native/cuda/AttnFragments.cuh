// How a warp holds tiles in registers and multiplies them, in each arithmetic.
//
// Results are 16 x 8 tiles, spread over the warp in the layout that all mma
// instructions share. With group = lane / 4 and member = lane % 4, a lane holds
//
//     c[0] and c[1] in row group, at positions 2 * member and 2 * member + 1
//     c[2] and c[3] in row group + 8, at the same positions
//
// so every Pair of neighbours in a row lies in one lane. An arithmetic provides
// two products:
//
//     first product    scores += left (rows x depth) @ right (rows x depth)^T
//     second product   result += pairs (16 x 16) @ wide (16 x columns)
//
// left, right and wide are in shared memory. The pairs are the scores, which
// stay in the registers in which the first product leaves them.
#pragma once

#include <ATen/native/cuda/AttnIntrinsics.cuh>

#include <cmath>

namespace at::native::attn_fused {

// A tile in shared memory. Its rows are whole lines of 128 bytes. The 16-byte
// chunks of a line are permuted so that a warp's accesses have no bank
// conflict.
template <typename Arithmetic>
struct Tile {
  using scalar_t = typename Arithmetic::scalar_t;
  static constexpr int kChunk = 16 / sizeof(scalar_t);
  scalar_t* data;
  int stride;

  ATTN_DEVICE scalar_t* chunk(int row, int index) const {
    return data + row * stride + (index ^ Arithmetic::swizzle(row)) * kChunk;
  }
  // The address of the chunk that is r rows and c chunks from (row, column),
  // where `row` is a multiple of 8 and `column` of more chunks than c. r and c
  // depend on the lane, so one register holds their part of the address. A
  // column flips bits of it, and a row adds to it.
  ATTN_DEVICE SharedAddress address(int row, int column, int r, int c) const {
    const int line = column / (8 * kChunk), index = column / kChunk % 8;
    const SharedAddress own = shared_address(
        data + r * stride + (c ^ Arithmetic::swizzle(r)) * kChunk);
    return (own ^ (16 * index)) +
        (row * stride + line * 8 * kChunk) * static_cast<int>(sizeof(scalar_t));
  }
  // The tile without its first `row` rows, a multiple of 8.
  ATTN_DEVICE Tile from(int row) const {
    return {data + row * stride, stride};
  }
  // The element that is r rows and c columns from (row, column), both multiples
  // of 8.
  ATTN_DEVICE scalar_t load(int row, int column, int r, int c) const {
    scalar_t x;
    load_shared(
        x,
        address(row, column, r, c / kChunk) +
            c % kChunk * static_cast<int>(sizeof(scalar_t)));
    return x;
  }
};

// Four registers of operands: each is an 8-row x 16-byte matrix, spread over
// the warp.
struct Matrices {
  uint32_t word[4];
};

// The address that each lane gives ldmatrix for a block of 16 rows and 32
// bytes. The four matrices arrive as top left, bottom left, top right, bottom
// right.
template <typename Arithmetic>
ATTN_DEVICE SharedAddress
by_columns(Tile<Arithmetic> tile, int row, int column, int lane) {
  return tile.address(row, column, lane % 16, lane / 16);
}

// The same block; the matrices arrive as top left, top right, bottom left,
// bottom right.
template <typename Arithmetic>
ATTN_DEVICE SharedAddress
by_rows(Tile<Arithmetic> tile, int row, int column, int lane) {
  return tile.address(row, column, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// Shared by float16, bfloat16 and TensorFloat-32: ldmatrix loads the operands
// of the first product. Self::prepare makes what it loads fit for mma.
template <typename T, typename Self>
struct MatrixOperands {
  using Left = Matrices;
  using Right = Matrices;
  static constexpr int kStrip = 32; // rows of right that are scored at once
  static constexpr bool kTensorCores = true;
  static constexpr int kUnroll = 4; // steps of the first product

  ATTN_DEVICE static int swizzle(int row) {
    return row & 7;
  }
  ATTN_DEVICE static Left load_left(
      Tile<Self> tile,
      int row,
      int depth,
      int lane) {
    Left x;
    load_matrices(x.word, by_columns(tile, row, depth, lane));
    Self::prepare(x);
    return x;
  }
  // Sixteen rows: words 0 and 1 belong to the first eight, 2 and 3 to the rest.
  ATTN_DEVICE static Right load_right(
      Tile<Self> tile,
      int row,
      int depth,
      int lane) {
    Right x;
    load_matrices(x.word, by_rows(tile, row, depth, lane));
    Self::prepare(x);
    return x;
  }
  ATTN_DEVICE static void multiply(
      float (&c0)[4],
      float (&c1)[4],
      const Left& left,
      const Right& right) {
    mma(T(), c0, left.word, right.word[0], right.word[1]);
    mma(T(), c1, left.word, right.word[2], right.word[3]);
  }
};

// float16 and bfloat16 on tensor cores, accumulated in float32.
template <typename T>
struct HalfCores : MatrixOperands<T, HalfCores<T>> {
  using scalar_t = T;
  using acc_t = float;
  using Pair = uint32_t;
  using Wide = Matrices;
  static constexpr int kDepth = 16; // of one step of the first product
  static constexpr int kWalk = 64; // rows of right that a block takes at a time
  // The widest operands that have kernels for exactly that width. Such kernels
  // pay where the instructions around a product take as long as the product.
  static constexpr int kWidestWhole = 128;

  ATTN_DEVICE static Pair pair(float low, float high) {
    return pack(T(), low, high);
  }
  ATTN_DEVICE static float low(Pair pair) {
    return static_cast<float>(T(static_cast<uint16_t>(pair), T::from_bits()));
  }
  ATTN_DEVICE static float high(Pair pair) {
    return low(pair >> 16);
  }
  ATTN_DEVICE static float tanh(float x) {
    return tanh_approximate(x);
  }
  ATTN_DEVICE static void prepare(Matrices&) {}
  ATTN_DEVICE static Wide load_wide(
      Tile<HalfCores> tile,
      int row,
      int column,
      int lane) {
    Wide x;
    load_matrices_transposed(x.word, by_columns(tile, row, column, lane));
    return x;
  }
  ATTN_DEVICE static void multiply_pairs(
      float (&c0)[4],
      float (&c1)[4],
      const Pair (&p0)[2],
      const Pair (&p1)[2],
      const Wide& wide) {
    HalfCores::multiply(c0, c1, Matrices{{p0[0], p0[1], p1[0], p1[1]}}, wide);
  }
  // The pairs of the transposed 16 x 16 block at (row, column) of a tile.
  ATTN_DEVICE static void load_transposed(
      Pair (&p0)[2],
      Pair (&p1)[2],
      Tile<HalfCores> tile,
      int row,
      int column,
      int lane) {
    uint32_t word[4];
    load_matrices_transposed(word, by_rows(tile, row, column, lane));
    p0[0] = word[0];
    p0[1] = word[1];
    p1[0] = word[2];
    p1[1] = word[3];
  }
};

// Shared by float32 and float64: elements are read one by one, and a pair is
// two of them.
template <typename T, typename Self>
struct FullPrecision {
  using scalar_t = T;
  using acc_t = T;
  struct alignas(2 * sizeof(T)) Pair {
    T low;
    T high;
  };

  ATTN_DEVICE static Pair pair(T low, T high) {
    return {low, high};
  }
  ATTN_DEVICE static T low(Pair pair) {
    return pair.low;
  }
  ATTN_DEVICE static T high(Pair pair) {
    return pair.high;
  }
  ATTN_DEVICE static T tanh(T x) {
    return std::tanh(x);
  }
  ATTN_DEVICE static void load_transposed(
      Pair (&p0)[2],
      Pair (&p1)[2],
      Tile<Self> tile,
      int row,
      int column,
      int lane) {
    const int group = lane / 4, member = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto load = [&](int r, int odd) {
        return tile.load(r, column + 8 * half, 2 * member + odd, group);
      };
      p0[half] = {load(row, 0), load(row, 1)};
      p1[half] = {load(row + 8, 0), load(row + 8, 1)};
    }
  }
};

// float32 in TensorFloat-32 on tensor cores.
//
// The second product sums over the positions in another order than they have in
// the tile, so that no lane needs the pairs of another: member m passes
// position 2 * m to the mma as number m, and position 2 * m + 1 as number m
// + 4. load_wide reads the rows of `wide` in the same order.
struct TF32Cores : FullPrecision<float, TF32Cores>,
                   MatrixOperands<float, TF32Cores> {
  struct Wide {
    Matrices eight[2]; // eight rows each, arranged as in Right
  };
  static constexpr int kDepth = 8;
  static constexpr int kWalk = 32;
  static constexpr int kWidestWhole = 0;

  ATTN_DEVICE static void prepare(Matrices& x) {
#pragma unroll
    for (uint32_t& word : x.word) {
      word = to_tf32(word);
    }
  }
  ATTN_DEVICE static Wide load_wide(
      Tile<TF32Cores> tile,
      int row,
      int column,
      int lane) {
    const int group = lane / 4, member = lane % 4;
    Wide x;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x.eight[eight].word[i] = to_tf32(float_bits(tile.load(
            row + 8 * eight, column + i / 2 * 8, 2 * member + i % 2, group)));
      }
    }
    return x;
  }
  ATTN_DEVICE static void multiply_pairs(
      float (&c0)[4],
      float (&c1)[4],
      const Pair (&p0)[2],
      const Pair (&p1)[2],
      const Wide& wide) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const Pair(&p)[2] = eight ? p1 : p0;
      Left left{
          {float_bits(p[0].low),
           float_bits(p[1].low),
           float_bits(p[0].high),
           float_bits(p[1].high)}};
      prepare(left);
      multiply(c0, c1, left, wide.eight[eight]);
    }
  }
};

// float64 on tensor cores, in the same order as TF32Cores. An mma sums over
// four positions.
struct DoubleCores : FullPrecision<double, DoubleCores> {
  struct Left {
    double value[2][2]; // [depth / 4][row / 8]
  };
  using Right = Left;
  struct Wide {
    double value[2][2][2]; // [row / 8][even or odd row][column / 8]
  };
  static constexpr int kDepth = 8;
  static constexpr int kWalk = 16;
  static constexpr int kStrip = 16;
  static constexpr bool kTensorCores = true;
  static constexpr int kUnroll = 2; // steps of the first product
  static constexpr int kWidestWhole = 0;

  // Half a warp reads two chunks of each of four rows at once. They are
  // neighbouring rows or every second row; both ways each gets a different pair
  // of chunks.
  ATTN_DEVICE static int swizzle(int row) {
    return ((row ^ (row >> 2 & 1)) & 3) << 1;
  }
  ATTN_DEVICE static Left load_left(
      Tile<DoubleCores> tile,
      int row,
      int depth,
      int lane) {
    const int group = lane / 4, member = lane % 4;
    Left x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x.value[i / 2][i % 2] =
          tile.load(row + i % 2 * 8, depth, group, member + i / 2 * 4);
    }
    return x;
  }
  ATTN_DEVICE static Right load_right(
      Tile<DoubleCores> tile,
      int row,
      int depth,
      int lane) {
    return load_left(tile, row, depth, lane);
  }
  ATTN_DEVICE static Wide load_wide(
      Tile<DoubleCores> tile,
      int row,
      int column,
      int lane) {
    const int group = lane / 4, member = lane % 4;
    Wide x;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x.value[i / 4][i / 2 % 2][i % 2] = tile.load(
          row + i / 4 * 8, column + i % 2 * 8, 2 * member + i / 2 % 2, group);
    }
    return x;
  }
  ATTN_DEVICE static void multiply(
      double (&c0)[4],
      double (&c1)[4],
      const Left& left,
      const Right& right) {
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      const double(&a)[2] = left.value[four];
      mma(c0, a[0], a[1], right.value[four][0]);
      mma(c1, a[0], a[1], right.value[four][1]);
    }
  }
  ATTN_DEVICE static void multiply_pairs(
      double (&c0)[4],
      double (&c1)[4],
      const Pair (&p0)[2],
      const Pair (&p1)[2],
      const Wide& wide) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const Pair(&p)[2] = eight ? p1 : p0;
      mma(c0, p[0].low, p[1].low, wide.value[eight][0][0]);
      mma(c1, p[0].low, p[1].low, wide.value[eight][0][1]);
      mma(c0, p[0].high, p[1].high, wide.value[eight][1][0]);
      mma(c1, p[0].high, p[1].high, wide.value[eight][1][1]);
    }
  }
};

// float32 without tensor cores. Every lane multiplies its own rows and columns,
// which it reads from shared memory four elements at a time. In the second
// product the four lanes of a group share their pairs by shuffles.
struct FloatLanes : FullPrecision<float, FloatLanes> {
  struct alignas(16) Four {
    float value[4];
  };
  struct Left {
    Four row[2]; // rows group and group + 8
  };
  struct Right {
    Four row[2][2]; // [row / 8][row 2 * member or 2 * member + 1]
  };
  static constexpr int kDepth = 4;
  static constexpr int kWalk = 32;
  static constexpr int kStrip = 32;
  static constexpr bool kTensorCores = false;
  static constexpr int kUnroll = 1;
  static constexpr int kWidestWhole = 64;

  ATTN_DEVICE static int swizzle(int row) {
    return row & 7;
  }
  // This lane's four columns in tiles n and n + 1 of row `row` + r. `row` is a
  // multiple of 8 and `column` of 32. The swizzle is written out here, so that
  // it is known at compile time: in registers it would make this kernel spill.
  ATTN_DEVICE static Four load_wide(
      Tile<FloatLanes> tile,
      int row,
      int r,
      int column,
      int n,
      int lane) {
    const float* from = tile.data + (row + r) * tile.stride + column +
        4 * ((lane % 4) ^ (r & 3));
    return *reinterpret_cast<const Four*>(from + ((8 * n) ^ (4 * (r & 4))));
  }
  ATTN_DEVICE static Four load(
      Tile<FloatLanes> tile,
      int row,
      int column,
      int r) {
    Four x;
    load_shared(x.value, tile.address(row, column, r, 0));
    return x;
  }
  ATTN_DEVICE static Left load_left(
      Tile<FloatLanes> tile,
      int row,
      int depth,
      int lane) {
    const int group = lane / 4;
    return {{load(tile, row, depth, group), load(tile, row + 8, depth, group)}};
  }
  ATTN_DEVICE static Right load_right(
      Tile<FloatLanes> tile,
      int row,
      int depth,
      int lane) {
    const int first = 2 * (lane % 4);
    return {
        {{load(tile, row, depth, first), load(tile, row, depth, first + 1)},
         {load(tile, row + 8, depth, first),
          load(tile, row + 8, depth, first + 1)}}};
  }
  ATTN_DEVICE static void multiply(
      float (&c0)[4],
      float (&c1)[4],
      const Left& left,
      const Right& right) {
#pragma unroll
    for (int d = 0; d < 4; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = left.row[i / 2].value[d];
        c0[i] += a * right.row[0][i % 2].value[d];
        c1[i] += a * right.row[1][i % 2].value[d];
      }
    }
  }
};

// The column of the result in which c[0] and c[2] of a lane's tile lie. In
// FloatLanes a lane owns four neighbouring columns, split over two tiles.
template <typename Arithmetic>
ATTN_DEVICE int result_column(int tile, int lane) {
  const int member = lane % 4;
  return Arithmetic::kTensorCores ? 8 * tile + 2 * member
                                  : tile / 2 * 16 + 4 * member + tile % 2 * 2;
}

// scores (16 * kRows x 8 * kTiles) += left @ right^T
template <typename Arithmetic, int kRows, int kTiles>
ATTN_DEVICE void first_product(
    typename Arithmetic::acc_t (&scores)[kRows][kTiles][4],
    Tile<Arithmetic> left,
    Tile<Arithmetic> right,
    int depth,
    int lane) {
  constexpr int line = 8 * Tile<Arithmetic>::kChunk;
  for (int from = 0; from < depth; from += line) {
#pragma unroll(Arithmetic::kUnroll)
    for (int d = 0; d < line; d += Arithmetic::kDepth) {
      typename Arithmetic::Left a[kRows];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        a[m] = Arithmetic::load_left(left, 16 * m, from + d, lane);
      }
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        const auto b = Arithmetic::load_right(right, 8 * t, from + d, lane);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          Arithmetic::multiply(scores[m][t], scores[m][t + 1], a[m], b);
        }
      }
    }
  }
}

// result (16 * kRows x 8 * kTiles) += pairs (16 * kRows x 8 * kPairs) @ wide,
// for the columns of `wide` from `column` on. If it has fewer columns than the
// result, the other columns of the result are meaningless and are not stored.
template <typename Arithmetic, int kRows, int kTiles, int kPairs>
ATTN_DEVICE void second_product(
    typename Arithmetic::acc_t (&result)[kRows][kTiles][4],
    const typename Arithmetic::Pair (&pairs)[kRows][kPairs][2],
    Tile<Arithmetic> wide,
    int column,
    int lane) {
#pragma unroll
  for (int t = 0; t < kPairs; t += 2) {
    if constexpr (Arithmetic::kTensorCores) {
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const auto b = Arithmetic::load_wide(wide, 8 * t, column + 8 * n, lane);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          Arithmetic::multiply_pairs(
              result[m][n], result[m][n + 1], pairs[m][t], pairs[m][t + 1], b);
        }
      }
    } else {
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        float a[kRows][2];
#pragma unroll
        for (int i = 0; i < 2 * kRows; ++i) {
          const auto p = pairs[i / 2][t + r / 8][i % 2];
          a[i / 2][i % 2] = quad_broadcast(r % 2 ? p.high : p.low, r / 2 % 4);
        }
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          const auto b = Arithmetic::load_wide(wide, 8 * t, r, column, n, lane);
#pragma unroll
          for (int i = 0; i < 8 * kRows; ++i) {
            result[i / 8][n + i / 4 % 2][i % 4] +=
                a[i / 8][i / 2 % 2] * b.value[i / 4 % 2 * 2 + i % 2];
          }
        }
      }
    }
  }
}

} // namespace at::native::attn_fused
