// Launches attn's fused kernels on tensors of the sizes that they take.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/native/attn.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/irange.h>
#include <ATen/native/cuda/AttnArgs.cuh>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace at::native::attn_fused {

// Returns ask(), which is called only once for each key.
template <typename Key, typename Ask>
auto cached(const Key& key, const Ask& ask) {
  static std::mutex mutex;
  static std::map<Key, decltype(ask())> answers;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto answer = answers.find(key);
  return answer == answers.end() ? answers.emplace(key, ask()).first->second
                                 : answer->second;
}

// How many blocks of a kernel run on the current device at once.
inline int64_t concurrent_blocks(const void* kernel, int shared) {
  const auto key = std::make_pair(c10::cuda::current_device(), kernel);
  return cached(key, [&] {
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int blocks = 0;
    C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, kThreads, shared));
    return std::max<int64_t>(blocks, 1) *
        at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  });
}

// Whether the kernels run here: PTX for an architecture before 8.0 does
// nothing.
inline bool has_device_code() {
  return cached(c10::cuda::current_device(), [] {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(
        &attributes, kernel_of<c10::Half>(Kernel::forward, 64)));
    return attributes.ptxVersion >= 80;
  });
}

// Every device from 8.0 on gives a block 99 KiB of shared memory.
static_assert(shared_bytes(Kernel::forward, 128) <= 99 << 10);
static_assert(shared_bytes(Kernel::backward_kv, 64) <= 99 << 10);

// Whether the last stride is 1, rows are not too far apart for the kernels, and
// every row begins at a multiple of so many elements.
inline bool has_rows(const Tensor& t, int64_t multiple) {
  const int64_t size = t.element_size(), rows = t.dim() - 2;
  bool fits = t.size(-1) == 1 || t.stride(-1) == 1;
  for (const auto i : c10::irange(rows + 1)) {
    const int64_t stride = t.size(i) == 1 ? 0 : t.stride(i);
    fits = fits && stride % multiple == 0 &&
        (i < rows || stride * size < int64_t(1) << 31);
  }
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return fits && address % (multiple * size) == 0;
}

// An operand as the kernels read it: copied if it does not lie so.
inline Tensor operand(const Tensor& t) {
  return has_rows(t, kChunk) ? t : t.clone(at::MemoryFormat::Contiguous);
}

template <typename T>
Matrices<T> matrices(T* data, const Tensor& t) {
  const int64_t size = t.element_size();
  Matrices<T> result{data, static_cast<int>(t.stride(-2) * size), {}};
  std::copy(t.strides().begin(), t.strides().end() - 2, result.leading);
  return result;
}

// How many rows of the loop to put into one part, so that the parts fill the
// device evenly. Each part needs this many blocks, of which `slots` run at
// once, and memory for so many columns of sums: at most attn's / 4, or 8 MiB.
inline int rows_of_part(
    const Sizes& sizes,
    int64_t blocks,
    int64_t slots,
    int64_t columns) {
  const int64_t rows = int64_t(sizes.matrices) * sizes.own;
  const int64_t memory = std::max<int64_t>(rows * sizes.other / 2, 8 << 20);
  const int64_t part_bytes = rows * columns * int64_t(sizeof(float));
  const int64_t most =
      std::min<int64_t>({sizes.other / (2 * kStep), memory / part_bytes, 16});
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int parts = 1; parts <= most; ++parts) {
    // In units of a full device. Each part costs a little for its sum.
    const double work = static_cast<double>(blocks * parts) / slots;
    const double time = std::ceil(work) / work + 0.01 * parts;
    if (time < least) {
      least = time;
      best = parts;
    }
  }
  const int part = at::ceil_div(sizes.other, best);
  return at::ceil_div(part, kStep) * kStep;
}

// `args` has the type of the kernel's parameter.
template <typename A>
void launch(const void* kernel, dim3 blocks, int threads, int shared, A args) {
  void* pointer = &args;
  const auto stream = at::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cudaLaunchKernel(
      kernel, blocks, dim3(threads), &pointer, shared, stream));
}

// Runs one kernel on the operands of Args and sums the parts of its results.
template <typename T>
void run(
    Kernel id,
    const std::array<Tensor, 4>& operands,
    const std::vector<Tensor>& results) {
  const auto& [own, first, second, attn] = operands;
  const int width = static_cast<int>(own.size(-1));
  const int shared = shared_bytes(id, width);
  const void* kernel = kernel_of<T>(id, width);
  Args<T> args{};
  Sizes& sizes = args.sizes;
  sizes.dims = static_cast<int>(own.dim() - 2);
  std::copy(own.sizes().begin(), own.sizes().end() - 2, sizes.leading);
  sizes.own = static_cast<int>(own.size(-2));
  sizes.other = static_cast<int>(first.size(-2));
  const int64_t rows = own.numel() / width;
  sizes.matrices = static_cast<int>(rows / sizes.own);
  sizes.aligned = has_rows(attn, kChunk);
  args.own = matrices(own.const_data_ptr<T>(), own);
  args.first = matrices(first.const_data_ptr<T>(), first);
  args.second = matrices(second.const_data_ptr<T>(), second);
  // Only forward writes to it, and there it is new.
  args.attn = matrices(const_cast<T*>(attn.const_data_ptr<T>()), attn);
  const auto blocks = sizes.matrices * at::ceil_div(sizes.own, kBlock);
  sizes.part = rows_of_part(
      sizes, blocks, concurrent_blocks(kernel, shared), width * results.size());
  const int parts = at::ceil_div(sizes.other, sizes.part);
  std::vector<Tensor> sums;
  for (const auto i : c10::irange(results.size())) {
    auto& result = args.results[i];
    result.matrices = matrices(results[i].mutable_data_ptr<T>(), results[i]);
    if (parts > 1) {
      const auto options = own.options().dtype(kFloat);
      sums.push_back(at::empty({parts, rows, width}, options));
      result.parts = sums.back().mutable_data_ptr<float>();
    }
  }
  launch(kernel, dim3(blocks, parts), kThreads, shared, args);
  for (const auto i : c10::irange(sums.size())) {
    const SumArgs<T> sum{sizes, args.results[i], width, parts};
    launch(kernel_of<T>(Kernel::sum_parts, width), rows, width, 0, sum);
  }
}

template <typename T>
std::tuple<Tensor, Tensor> run_forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  Tensor output = attn_empty_like(q, v.size(-1));
  auto shape = q.sizes().vec();
  shape.back() = k.size(-2);
  Tensor attn = at::empty(shape, q.options());
  run<T>(Kernel::forward, {operand(q), operand(k), operand(v), attn}, {output});
  return std::make_tuple(std::move(output), std::move(attn));
}

// From grad_output alone; grad_v only with grad_k.
template <typename T>
std::tuple<Tensor, Tensor, Tensor> run_backward(const AttnBackwardArgs& args) {
  const Tensor grad_output = operand(args.grad_output), q = operand(args.q),
               k = operand(args.k), v = operand(args.v);
  const Tensor attn =
      has_rows(args.attn, 1) ? args.attn : args.attn.contiguous();
  Tensor grad_q, grad_k, grad_v;
  if (args.output_mask[0]) {
    grad_q = attn_empty_like(args.q, q.size(-1));
    run<T>(Kernel::backward_q, {grad_output, v, k, attn}, {grad_q});
  }
  if (args.output_mask[1]) {
    grad_k = attn_empty_like(args.k, k.size(-1));
    std::vector<Tensor> results{grad_k};
    if (args.output_mask[2]) {
      grad_v = attn_empty_like(args.v, v.size(-1));
      results.push_back(grad_v);
    }
    run<T>(Kernel::backward_kv, {v, grad_output, q, attn}, results);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native::attn_fused
