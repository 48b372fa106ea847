// Launches attn's fused kernels on tensors.
#pragma once

#include <ATen/Context.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/native/cuda/AttnArgs.cuh>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace at::native::attn_fused {

// Returns ask(), which is called only once for each key.
template <typename Key, typename Ask>
auto ask_once(const Key& key, const Ask& ask) {
  static std::mutex mutex;
  static std::map<Key, decltype(ask())> answers;
  const std::lock_guard<std::mutex> lock(mutex);
  auto answer = answers.find(key);
  if (answer == answers.end()) {
    answer = answers.emplace(key, ask()).first;
  }
  return answer->second;
}

// How many blocks of a kernel run on the current device at once.
inline int64_t concurrent_blocks(const void* kernel, int64_t shared_bytes) {
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  const auto key =
      std::make_tuple(c10::cuda::current_device(), kernel, shared_bytes);
  const int blocks = ask_once(key, [&] {
    // The limit is the device's and not shared_bytes, because other threads
    // launch this kernel for other widths.
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        kernel,
        cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(device->sharedMemPerBlockOptin)));
    int blocks = 0;
    C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, kThreads, shared_bytes));
    return std::max<int>(blocks, 1);
  });
  return int64_t(blocks) * device->multiProcessorCount;
}

// Whether the kernels have bodies on the current device. PTX for an
// architecture before 8.0 runs on later devices too, but does nothing there.
template <typename A>
bool is_built() {
  return ask_once(c10::cuda::current_device(), [] {
    cudaFuncAttributes attributes{};
    C10_CUDA_CHECK(cudaFuncGetAttributes(
        &attributes, kernel_of<A>(Kernel::forward, 64, false)));
    return attributes.ptxVersion >= 80;
  });
}

template <typename A>
int lines_of(int64_t columns) {
  return static_cast<int>(at::ceil_div<int64_t>(columns, kLine<A>));
}

// Whether the kernels can run on the current device, for matrices of at most
// this many columns, with a gradient of attn or without.
template <typename A>
bool fits(int64_t columns, bool grad_attn) {
  const cudaDeviceProp* device = at::cuda::getCurrentDeviceProperties();
  const int lines = lines_of<A>(columns);
  const bool narrow = columns <= 64;
  const int64_t bytes = std::max<int64_t>(
      Shape<A>::rows_bytes(lines, narrow ? 64 : 128),
      Shape<A>::cols_bytes(
          lines, narrow ? 64 : Shape<A>::kMaxColsWidth, grad_attn));
  return device->major >= 8 && columns <= 256 &&
      bytes <= static_cast<int64_t>(device->sharedMemPerBlockOptin) &&
      is_built<A>();
}

// Calls f with a null pointer to the arithmetic whose kernels serve this dtype
// and these widths. Returns false if there is none.
template <typename F>
bool with_arithmetic(
    ScalarType dtype,
    int64_t columns,
    bool grad_attn,
    const F& f) {
  const auto try_with = [&](auto* arithmetic) {
    using A = std::remove_pointer_t<decltype(arithmetic)>;
    const bool fit = fits<A>(columns, grad_attn);
    if (fit) {
      f(arithmetic);
    }
    return fit;
  };
  const auto tf32_allowed = [] {
    return !NoTF32Guard::should_disable_tf32() &&
        globalContext().float32Precision(
            Float32Backend::CUDA, Float32Op::MATMUL) == Float32Precision::TF32;
  };
  switch (dtype) {
    case kHalf:
      return try_with(static_cast<HalfCores<c10::Half>*>(nullptr));
    case kBFloat16:
      return try_with(static_cast<HalfCores<c10::BFloat16>*>(nullptr));
    case kFloat:
      return tf32_allowed() ? try_with(static_cast<TF32Cores*>(nullptr))
                            : try_with(static_cast<FloatLanes*>(nullptr));
    case kDouble:
      return try_with(static_cast<DoubleCores*>(nullptr));
    default:
      return false;
  }
}

inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// A matrix as the kernels read it. It is copied only where its rows are not
// whole lines or not in order; `keep` owns the copy.
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

// How many rows of the walk to put into one part, so that the parts fill the
// device evenly. Each part needs this many blocks, of which `slots` run at
// once, and memory for this many columns of sums: in all at most a quarter of
// attn's memory, or 8 MiB.
template <typename A>
int64_t rows_of_part(
    int64_t n,
    int64_t blocks,
    int64_t slots,
    int64_t columns) {
  const int64_t attn_bytes = n * n * sizeof(typename A::scalar_t);
  const int64_t part_bytes = n * columns * sizeof(typename A::acc_t);
  const int64_t most = std::min<int64_t>(
      {n / (2 * A::kWalk),
       std::max<int64_t>(attn_bytes / 4, 8 << 20) / part_bytes,
       16});
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
  return at::ceil_div<int64_t>(at::ceil_div<int64_t>(n, best), A::kWalk) *
      A::kWalk;
}

// A matrix that a kernel fills, where its arguments name it, and the memory of
// its parts.
template <typename A>
struct Target {
  Result<A>& result;
  Tensor matrix;
  Tensor memory = {};

  void allocate(int64_t parts) {
    using acc_t = typename A::acc_t;
    result.data = matrix.mutable_data_ptr<typename A::scalar_t>();
    result.columns = static_cast<int>(matrix.size(1));
    if (parts > 1) {
      memory = at::empty(
          {parts, matrix.size(0), matrix.size(1)},
          matrix.options().dtype(c10::CppTypeToScalarType<acc_t>::value));
      result.parts = memory.mutable_data_ptr<acc_t>();
    }
  }
};

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
      at::cuda::getCurrentCUDAStream()));
}

// Runs one kernel and sums the parts of its results. `first` is the operand
// whose width is summed in the first product, `second` is the one that the
// second product reads, and `widest` is the most columns of such operands.
template <typename A, typename Args>
void run(
    Kernel id,
    Args& args,
    const Operand<A>& first,
    const Operand<A>& second,
    int64_t widest,
    std::vector<Target<A>> targets) {
  const bool cols = id == Kernel::backward_cols;
  const int width = widest <= 64 ? 64 : cols ? Shape<A>::kMaxColsWidth : 128;
  const int rows = 64 * (cols ? Shape<A>::cols_rows(width) : Shape<A>::kRows);
  int64_t shared = Shape<A>::rows_bytes(first.lines, width);
  if constexpr (std::is_same_v<Args, BackwardArgs<A>>) {
    if (cols) {
      shared = Shape<A>::cols_bytes(first.lines, width, args.grad_attn.data);
    }
  }
  int64_t columns = 0, all_columns = 0;
  for (const auto& target : targets) {
    columns = std::max<int64_t>(columns, target.matrix.size(1));
    all_columns += target.matrix.size(1);
  }
  const int64_t n = targets[0].matrix.size(0);
  const int64_t blocks = at::ceil_div<int64_t>(n, rows);
  const int64_t slices = at::ceil_div<int64_t>(columns, width);
  const void* kernel = kernel_of<A>(id, width, are_whole(width, first, second));
  const int64_t part = rows_of_part<A>(
      n, blocks * slices, concurrent_blocks(kernel, shared), all_columns);
  const int64_t parts = at::ceil_div<int64_t>(n, part);
  args.n = static_cast<int>(n);
  args.part = static_cast<int>(part);
  for (auto& target : targets) {
    target.allocate(parts);
  }
  launch(kernel, dim3(blocks, parts, slices), shared, args);
  for (auto& target : targets) {
    if (parts > 1) {
      const int64_t count = target.matrix.numel();
      launch(
          kernel_of<A>(Kernel::sum_parts, 64, false),
          dim3(at::ceil_div<int64_t>(count, kThreads)),
          0,
          target.result,
          static_cast<int>(parts),
          count);
    }
  }
}

// Fills output (N, E) and attn (N, N), both contiguous. N, D and E are not 0.
template <typename A>
void run_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  Tensor keep[3];
  ForwardArgs<A> args;
  args.q = operand<A>(q, keep[0]);
  args.k = operand<A>(k, keep[1]);
  args.v = operand<A>(v, keep[2]);
  args.attn = attn.mutable_data_ptr<typename A::scalar_t>();
  args.chunked = square<A>(attn).chunked;
  run<A>(
      Kernel::forward,
      args,
      args.q,
      args.v,
      v.size(1),
      {{args.output, output}});
}

// With X = (grad_attn + grad_output @ v^T) * (1 - attn^2), fills
//   grad_q = X @ k
//   grad_k = X^T @ q
//   grad_v = attn^T @ grad_output
// where they are defined; grad_v only together with grad_k. grad_output or
// grad_attn can be undefined, v too without grad_output.
template <typename A>
void run_backward(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  Tensor keep[4];
  BackwardArgs<A> args;
  args.grad_output = operand<A>(grad_output, keep[0]);
  args.v = operand<A>(grad_output.defined() ? v : Tensor(), keep[1]);
  args.attn = square<A>(attn);
  args.grad_attn = square<A>(grad_attn);
  if (grad_q.defined()) {
    args.k = operand<A>(k, keep[2]);
    run<A>(
        Kernel::backward_rows,
        args,
        args.grad_output,
        args.k,
        grad_q.size(1),
        {{args.grad_q, grad_q}});
  }
  if (grad_k.defined()) {
    args.q = operand<A>(q, keep[3]);
    int64_t widest = grad_k.size(1);
    if (grad_output.defined()) {
      widest = std::max<int64_t>(widest, grad_output.size(1));
    }
    std::vector<Target<A>> targets{{args.grad_k, grad_k}};
    if (grad_v.defined()) {
      targets.push_back({args.grad_v, grad_v});
    }
    run<A>(
        Kernel::backward_cols,
        args,
        args.grad_output,
        args.q,
        widest,
        std::move(targets));
  }
}

} // namespace at::native::attn_fused
