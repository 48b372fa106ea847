// Launches the tile kernels of attn on tensors.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/native/cuda/AttnArgs.cuh>
#include <ATen/native/cuda/AttnFused.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>

namespace at::native::attn_tile {

inline int device_attribute(cudaDeviceAttr attribute) {
  int value = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&value, attribute, c10::cuda::current_device()));
  return value;
}

inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

template <typename A>
int lines_of(int64_t columns) {
  return static_cast<int>(at::ceil_div<int64_t>(columns, kLine<A>));
}

// A matrix as the kernels read it. It is copied only where its rows are not
// whole lines, or not in order; keep owns the copy.
template <typename A>
Operand<A> operand(const Tensor& matrix, Tensor& keep) {
  if (!matrix.defined()) {
    return {};
  }
  const int lines = lines_of<A>(matrix.size(1));
  const int64_t padding = lines * kLine<A> - matrix.size(1);
  keep =
      padding ? at::constant_pad_nd(matrix, {0, padding}) : matrix.contiguous();
  if (!is_aligned(keep.const_data_ptr())) {
    keep = keep.clone();
  }
  return {keep.const_data_ptr<typename A::scalar_t>(), lines};
}

template <typename A>
Square<A> square(const Tensor& matrix) {
  if (!matrix.defined()) {
    return {};
  }
  constexpr int chunk = Tile<A>::kChunk;
  const bool chunked = matrix.size(0) % chunk == 0 && matrix.stride(1) == 1 &&
      matrix.stride(0) % chunk == 0 && is_aligned(matrix.const_data_ptr());
  return {
      matrix.const_data_ptr<typename A::scalar_t>(),
      matrix.stride(0),
      matrix.stride(1),
      chunked};
}

// How a kernel's work is laid out on the device: blocks of rows, parts of the
// walk, slices of columns.
struct Grid {
  int64_t blocks, parts, slices;
  int64_t part; // rows of the walk in one part
};

// As many parts as fill the device evenly, while the memory for them stays
// below a quarter of attn's (or 8 MiB).
inline Grid make_grid(
    const void* kernel,
    int64_t shared_bytes,
    int64_t n,
    int64_t block,
    int64_t slices,
    int64_t walk,
    int64_t attn_bytes,
    int64_t part_bytes) {
  // The most there is, not shared_bytes: other threads launch this kernel too,
  // for other widths.
  C10_CUDA_CHECK(cudaFuncSetAttribute(
      kernel,
      cudaFuncAttributeMaxDynamicSharedMemorySize,
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  int resident = 0;
  C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &resident, kernel, kThreads, shared_bytes));
  const double slots = static_cast<double>(std::max<int>(resident, 1)) *
      device_attribute(cudaDevAttrMultiProcessorCount);
  const int64_t blocks = at::ceil_div(n, block);
  const int64_t most = std::min<int64_t>(
      {n / (2 * walk),
       std::max<int64_t>(attn_bytes / 4, 8 << 20) / part_bytes,
       int64_t(16)});
  int64_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t parts = 1; parts <= most; ++parts) {
    // Time in units of a full device, and a little for each sum of parts.
    const double work = static_cast<double>(blocks * slices * parts);
    const double time = std::ceil(work / slots) * slots / work + 0.01 * parts;
    if (time < least) {
      least = time;
      best = parts;
    }
  }
  const int64_t part = at::ceil_div(at::ceil_div(n, best), walk) * walk;
  return {blocks, at::ceil_div(n, part), slices, part};
}

// A result of one launch; keep owns the memory of its parts.
template <typename A>
Result<A> result(const Tensor& matrix, const Grid& grid, Tensor& keep) {
  if (!matrix.defined()) {
    return {};
  }
  using acc_t = typename A::acc_t;
  Result<A> result{
      matrix.mutable_data_ptr<typename A::scalar_t>(),
      nullptr,
      static_cast<int>(matrix.size(1))};
  if (grid.parts > 1) {
    keep = at::empty(
        {grid.parts, matrix.size(0), matrix.size(1)},
        matrix.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
    result.parts = keep.mutable_data_ptr<acc_t>();
  }
  return result;
}

// The arguments have the types of the kernel's parameters.
template <typename... Args>
void launch(const void* kernel, dim3 blocks, int64_t shared, Args... args) {
  void* pointers[] = {&args...};
  C10_CUDA_CHECK(cudaLaunchKernel(
      kernel,
      blocks,
      dim3(kThreads),
      pointers,
      shared,
      c10::cuda::getCurrentCUDAStream()));
}

inline dim3 blocks_of(const Grid& grid) {
  return dim3(
      static_cast<unsigned>(grid.blocks),
      static_cast<unsigned>(grid.parts),
      static_cast<unsigned>(grid.slices));
}

template <typename A>
void finish(const Result<A>& result, const Grid& grid, int64_t n) {
  if (!result.parts) {
    return;
  }
  const int64_t count = n * result.columns;
  launch(
      kernel_of<A>(Kernel::sum_parts, 64, false),
      dim3(static_cast<unsigned>(at::ceil_div<int64_t>(count, kThreads))),
      0,
      result,
      static_cast<int>(grid.parts),
      count);
}

// Whether the kernels that were built have bodies; from PTX for an architecture
// before 8.0 they run on later devices, and do nothing.
template <typename A>
bool is_built() {
  cudaFuncAttributes attributes{};
  C10_CUDA_CHECK(cudaFuncGetAttributes(
      &attributes, kernel_of<A>(Kernel::forward, 64, false)));
  return attributes.ptxVersion >= 80;
}

template <typename A>
bool fits(int64_t columns, bool grad_attn) {
  const int lines = lines_of<A>(columns);
  const bool narrow = columns <= 64;
  const int64_t bytes = std::max<int64_t>(
      Shape<A>::rows_bytes(lines, narrow ? 64 : 128),
      Shape<A>::cols_bytes(
          lines, narrow ? 64 : Shape<A>::kMaxColsWidth, grad_attn));
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
      columns <= 256 &&
      bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) &&
      is_built<A>();
}

template <typename A>
void fused_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  const int64_t n = q.size(0), e = v.size(1);
  const int width = e <= 64 ? 64 : 128;
  Tensor keep[4];
  ForwardArgs<A> args;
  args.q = operand<A>(q, keep[0]);
  args.k = operand<A>(k, keep[1]);
  args.v = operand<A>(v, keep[2]);
  const void* kernel =
      kernel_of<A>(Kernel::forward, width, are_whole(width, args.q, args.v));
  args.attn = attn.mutable_data_ptr<typename A::scalar_t>();
  args.chunked = square<A>(attn).chunked;
  args.n = static_cast<int>(n);
  const int64_t shared = Shape<A>::rows_bytes(args.q.lines, width);
  const Grid grid = make_grid(
      kernel,
      shared,
      n,
      64 * Shape<A>::kRows,
      at::ceil_div<int64_t>(e, width),
      A::kWalk,
      attn.nbytes(),
      n * e * sizeof(typename A::acc_t));
  args.part = static_cast<int>(grid.part);
  args.output = result<A>(output, grid, keep[3]);
  launch(kernel, blocks_of(grid), shared, args);
  finish(args.output, grid, n);
}

template <typename A>
void fused_backward_q(
    const Tensor& grad_q,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  const int64_t n = k.size(0), d = k.size(1);
  const int width = d <= 64 ? 64 : 128;
  Tensor keep[4];
  BackwardArgs<A> args;
  args.grad_output = operand<A>(grad_output, keep[0]);
  args.k = operand<A>(k, keep[1]);
  args.v = operand<A>(grad_output.defined() ? v : Tensor(), keep[2]);
  const void* kernel = kernel_of<A>(
      Kernel::backward_rows, width, are_whole(width, args.grad_output, args.k));
  args.attn = square<A>(attn);
  args.grad_attn = square<A>(grad_attn);
  args.n = static_cast<int>(n);
  const int64_t shared = Shape<A>::rows_bytes(args.grad_output.lines, width);
  const Grid grid = make_grid(
      kernel,
      shared,
      n,
      64 * Shape<A>::kRows,
      at::ceil_div<int64_t>(d, width),
      A::kWalk,
      attn.nbytes(),
      n * d * sizeof(typename A::acc_t));
  args.part = static_cast<int>(grid.part);
  args.grad_q = result<A>(grad_q, grid, keep[3]);
  launch(kernel, blocks_of(grid), shared, args);
  finish(args.grad_q, grid, n);
}

template <typename A>
void fused_backward_kv(
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& v,
    const Tensor& attn) {
  const int64_t n = q.size(0), d = q.size(1);
  const int64_t e = grad_v.defined() ? grad_v.size(1) : 0;
  const int64_t widest =
      std::max<int64_t>(d, grad_output.defined() ? grad_output.size(1) : 0);
  const int width = widest <= 64 ? 64 : Shape<A>::kMaxColsWidth;
  Tensor keep[5];
  BackwardArgs<A> args;
  args.grad_output = operand<A>(grad_output, keep[0]);
  args.q = operand<A>(q, keep[1]);
  args.v = operand<A>(grad_output.defined() ? v : Tensor(), keep[2]);
  const void* kernel = kernel_of<A>(
      Kernel::backward_cols, width, are_whole(width, args.grad_output, args.q));
  args.attn = square<A>(attn);
  args.grad_attn = square<A>(grad_attn);
  args.n = static_cast<int>(n);
  const int64_t shared =
      Shape<A>::cols_bytes(args.grad_output.lines, width, grad_attn.defined());
  const Grid grid = make_grid(
      kernel,
      shared,
      n,
      64 * Shape<A>::cols_rows(width),
      at::ceil_div<int64_t>(std::max<int64_t>(d, e), width),
      A::kWalk,
      attn.nbytes(),
      n * (d + e) * sizeof(typename A::acc_t));
  args.part = static_cast<int>(grid.part);
  args.grad_k = result<A>(grad_k, grid, keep[3]);
  args.grad_v = result<A>(grad_v, grid, keep[4]);
  launch(kernel, blocks_of(grid), shared, args);
  finish(args.grad_k, grid, n);
  finish(args.grad_v, grid, n);
}

} // namespace at::native::attn_tile
