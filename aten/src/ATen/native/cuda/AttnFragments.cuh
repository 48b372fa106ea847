// How a warp holds tiles of float16 or bfloat16 in registers and multiplies
// them on tensor cores, with sums in float32.
//
// Results are 16 x 8 tiles, spread over the warp in the layout of mma. With
// group = lane / 4 and member = lane % 4, a lane holds
//
//     c[0] and c[1] in row group, at positions 2 * member and 2 * member + 1
//     c[2] and c[3] in row group + 8, at the same positions
//
// so every Pair of neighbours in a row lies in one lane. There are two
// products:
//
//     first product    scores += left (rows x depth) @ right (rows x depth)^T
//     second product   result += pairs (16 x 16) @ wide (16 x columns)
//
// left, right and wide are in shared memory. The pairs are the scores, which
// stay in the registers in which the first product leaves them.
#pragma once

#include <ATen/native/cuda/AttnIntrinsics.cuh>

namespace at::native::attn_fused {

constexpr int kChunk = 8; // elements of 16 bytes, which one access moves
constexpr int kLine = 64; // elements of 128 bytes
constexpr int kStep = 64; // rows that a block takes in one step
constexpr int kStrip = 32; // of them, those that are scored at once

ATTN_DEVICE int lane() {
  return threadIdx.x % 32;
}

// Two neighbours in a row.
using Pair = uint32_t;

template <typename T>
ATTN_DEVICE float low(Pair pair) {
  return static_cast<float>(T(static_cast<uint16_t>(pair), T::from_bits()));
}

template <typename T>
ATTN_DEVICE float high(Pair pair) {
  return low<T>(pair >> 16);
}

// A tile in shared memory. Its rows are whole lines of 128 bytes. The 16-byte
// chunks of a line are permuted so that a warp's accesses have no bank
// conflict.
template <typename T>
struct Tile {
  T* data;
  int stride;

  ATTN_DEVICE T* chunk(int row, int index) const {
    return data + row * stride + (index ^ (row & 7)) * kChunk;
  }
  // The address of the chunk that is r rows and c chunks from (row, column),
  // where `row` is a multiple of 8 and `column` of more chunks than c. r and c
  // depend on the lane, so one register holds their part of the address. A
  // column flips bits of it, and a row adds to it.
  ATTN_DEVICE SharedAddress address(int row, int column, int r, int c) const {
    const int line = column / kLine, index = column / kChunk % 8;
    const SharedAddress own =
        shared_address(data + r * stride + (c ^ (r & 7)) * kChunk);
    return (own ^ (16 * index)) +
        (row * stride + line * kLine) * static_cast<int>(sizeof(T));
  }
  // The tile without its first `row` rows, a multiple of 8.
  ATTN_DEVICE Tile from(int row) const {
    return {data + row * stride, stride};
  }
};

// Operands are four registers, each of which holds an 8-row x 16-byte matrix,
// spread over the warp. This is the address that each lane gives ldmatrix for a
// block of 16 rows and 32 bytes. The four matrices arrive as top left, bottom
// left, top right, bottom right.
template <typename T>
ATTN_DEVICE SharedAddress by_columns(Tile<T> tile, int row, int column) {
  return tile.address(row, column, lane() % 16, lane() / 16);
}

// The same block; the matrices arrive as top left, top right, bottom left,
// bottom right.
template <typename T>
ATTN_DEVICE SharedAddress by_rows(Tile<T> tile, int row, int column) {
  const int r = lane() / 16 * 8 + lane() % 8;
  return tile.address(row, column, r, lane() / 8 % 2);
}

// scores (16 * kRows x 8 * kTiles) += left @ right^T
template <typename T, int kRows, int kTiles>
ATTN_DEVICE void first_product(
    float (&scores)[kRows][kTiles][4],
    Tile<T> left,
    Tile<T> right) {
  for (int from = 0; from < left.stride; from += kLine) {
#pragma unroll(4)
    for (int d = 0; d < kLine; d += 16) {
      uint32_t a[kRows][4];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        load_matrices(a[m], by_columns(left, 16 * m, from + d));
      }
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t b[4];
        load_matrices(b, by_rows(right, 8 * t, from + d));
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          mma(T(), scores[m][t], a[m], b[0], b[1]);
          mma(T(), scores[m][t + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// result (16 * kRows x 8 * kTiles) += pairs (16 * kRows x 8 * kPairs) @ wide
template <typename T, int kRows, int kTiles, int kPairs>
ATTN_DEVICE void second_product(
    float (&result)[kRows][kTiles][4],
    const Pair (&pairs)[kRows][kPairs][2],
    Tile<T> wide) {
#pragma unroll
  for (int t = 0; t < kPairs; t += 2) {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, by_columns(wide, 8 * t, 8 * n));
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const auto& p = pairs[m];
        const uint32_t a[] = {p[t][0], p[t][1], p[t + 1][0], p[t + 1][1]};
        mma(T(), result[m][n], a, b[0], b[1]);
        mma(T(), result[m][n + 1], a, b[2], b[3]);
      }
    }
  }
}

} // namespace at::native::attn_fused
