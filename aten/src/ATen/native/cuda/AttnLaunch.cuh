// Launches attn's fused kernels on tensors of the sizes that they take.
#pragma once

#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/native/attn.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/native/cuda/AttnArgs.cuh>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/empty.h>
#endif

#include <algorithm>
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
auto ask_once(const Key& key, const Ask& ask) {
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
  return ask_once(key, [&] {
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int blocks = 0;
    C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, kThreads, shared));
    return std::max<int64_t>(blocks, 1) *
        at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  });
}

// Whether the kernels can run on the current device. PTX for an architecture
// before 8.0 runs on later devices too, but does nothing there.
inline bool run_here() {
  return ask_once(c10::cuda::current_device(), [] {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(
        &attributes, kernel_of<c10::Half>(Kernel::forward, 64)));
    return at::cuda::getCurrentDeviceProperties()->major >= 8 &&
        attributes.ptxVersion >= 80;
  });
}

// Every device from 8.0 on gives a block 99 KiB of shared memory.
static_assert(shared_bytes(Kernel::forward, 128) <= 99 << 10);
static_assert(shared_bytes(Kernel::backward_rows, 64) <= 99 << 10);
static_assert(shared_bytes(Kernel::backward_cols, 64) <= 99 << 10);

// A matrix as the kernels read it: copied if it is not contiguous and aligned.
inline Tensor operand(const Tensor& matrix) {
  const Tensor result = matrix.contiguous();
  const auto address = reinterpret_cast<uintptr_t>(result.const_data_ptr());
  return address % 16 == 0 ? result : result.clone();
}

// How many rows of the walk to put into one part, so that the parts fill the
// device evenly. Each part needs this many blocks, of which `slots` run at
// once, and memory for this many columns of sums: in all at most a quarter of
// attn's memory, or 8 MiB.
inline int64_t rows_of_part(
    int64_t n,
    int64_t blocks,
    int64_t slots,
    int64_t columns) {
  const int64_t part_bytes = n * columns * static_cast<int64_t>(sizeof(float));
  const int64_t memory = std::max<int64_t>(n * n * 2 / 4, 8 << 20);
  const int64_t most =
      std::min<int64_t>({n / (2 * kWalk), memory / part_bytes, 16});
  int64_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t parts = 1; parts <= most; ++parts) {
    // In units of a full device. Each part costs a little for its sum.
    const double work = static_cast<double>(blocks * parts) / slots;
    const double time = std::ceil(work) / work + 0.01 * parts;
    if (time < least) {
      least = time;
      best = parts;
    }
  }
  return at::ceil_div<int64_t>(at::ceil_div<int64_t>(n, best), kWalk) * kWalk;
}

// The arguments have the types of the kernel's parameters.
template <typename... Args>
void launch(const void* kernel, dim3 blocks, int shared, Args... args) {
  void* pointers[] = {&args...};
  C10_CUDA_CHECK(cudaLaunchKernel(
      kernel,
      blocks,
      dim3(kThreads),
      pointers,
      shared,
      at::cuda::getCurrentCUDAStream()));
}

// A result in a kernel's arguments, and the matrix that it fills.
template <typename T>
using Target = std::pair<Result<T>*, Tensor>;

// Runs one kernel and sums the parts of its results.
template <typename T, typename Args>
void run(Kernel id, Args& args, const std::vector<Target<T>>& targets) {
  const int64_t n = targets[0].second.size(0);
  const int width = static_cast<int>(targets[0].second.size(1));
  const int shared = shared_bytes(id, width);
  const int64_t blocks = at::ceil_div<int64_t>(n, kBlock);
  const void* kernel = kernel_of<T>(id, width);
  const int64_t part = rows_of_part(
      n, blocks, concurrent_blocks(kernel, shared), targets.size() * width);
  const int parts = static_cast<int>(at::ceil_div<int64_t>(n, part));
  args.n = static_cast<int>(n);
  args.part = static_cast<int>(part);
  std::vector<Tensor> memory;
  for (const auto& [result, matrix] : targets) {
    *result = {matrix.template mutable_data_ptr<T>(), nullptr};
    if (parts > 1) {
      memory.push_back(
          at::empty({parts, n, width}, matrix.options().dtype(kFloat)));
      result->parts = memory.back().mutable_data_ptr<float>();
    }
  }
  launch(kernel, dim3(blocks, parts), shared, args);
  const void* sum = kernel_of<T>(Kernel::sum_parts, 64);
  const dim3 sum_blocks(at::ceil_div<int64_t>(n * width, kThreads));
  for (const auto& [result, matrix] : targets) {
    if (parts > 1) {
      launch(sum, sum_blocks, 0, *result, parts, n * width);
    }
  }
}

template <typename T>
std::tuple<Tensor, Tensor> run_forward(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = operand(q_), k = operand(k_), v = operand(v_);
  Tensor attn = at::empty({q.size(0), q.size(0)}, q.options());
  Tensor output = at::empty(v.sizes(), v.options());
  ForwardArgs<T> args{};
  args.q = q.const_data_ptr<T>();
  args.k = k.const_data_ptr<T>();
  args.v = v.const_data_ptr<T>();
  args.attn = attn.mutable_data_ptr<T>();
  run<T>(Kernel::forward, args, {{&args.output, output}});
  return std::make_tuple(std::move(output), std::move(attn));
}

// All three gradients, from grad_output alone.
template <typename T>
std::tuple<Tensor, Tensor, Tensor> run_backward(
    const AttnBackwardArgs& inputs) {
  const Tensor grad_output = operand(inputs.grad_output), q = operand(inputs.q),
               k = operand(inputs.k), v = operand(inputs.v),
               attn = operand(inputs.attn);
  Tensor grad_q = at::empty(q.sizes(), q.options());
  Tensor grad_k = at::empty(k.sizes(), k.options());
  Tensor grad_v = at::empty(v.sizes(), v.options());
  BackwardArgs<T> args{};
  args.grad_output = grad_output.const_data_ptr<T>();
  args.q = q.const_data_ptr<T>();
  args.k = k.const_data_ptr<T>();
  args.v = v.const_data_ptr<T>();
  args.attn = attn.const_data_ptr<T>();
  run<T>(Kernel::backward_rows, args, {{&args.grad_q, grad_q}});
  run<T>(
      Kernel::backward_cols,
      args,
      {{&args.grad_k, grad_k}, {&args.grad_v, grad_v}});
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native::attn_fused
