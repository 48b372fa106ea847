// As much of CUDA's runtime and of PyTorch's around it as attn's host code
// calls: devices are numbers, and a launch runs its blocks in the emulator.
#pragma once

#include <c10/util/Exception.h>
#include <ATen/native/cuda/AttnIntrinsics.cuh>

#include <map>
#include <utility>

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct cudaFuncAttributes {
  int ptxVersion;
};

struct cudaDeviceProp {
  int major, multiProcessorCount;
};

#define C10_CUDA_CHECK(call) \
  TORCH_CHECK((call) == cudaSuccess, "the runtime refuses ", #call)

namespace emulator {

using Kernel = std::function<void(void**)>;

struct Runtime {
  int8_t device = 0; // has as many multiprocessors as its number
  unsigned seed = 0;
  bool early = false; // background copies land at once
  int64_t launches = 0;
  std::vector<int64_t> only; // blocks, by x, that run; all if it is empty
  std::map<const void*, Kernel> kernels;
  // Bytes of shared memory that a kernel may have on a device
  std::map<std::pair<int8_t, const void*>, int> allowed;

  template <typename... Args>
  void add(void (*kernel)(Args...)) {
    kernels[reinterpret_cast<const void*>(kernel)] = [kernel](void** args) {
      const auto call = [&]<size_t... i>(std::index_sequence<i...>) {
        kernel(*static_cast<Args*>(args[i])...);
      };
      call(std::index_sequence_for<Args...>());
    };
  }
};

inline Runtime runtime;

} // namespace emulator

inline cudaError_t cudaFuncSetAttribute(const void* kernel, int, int bytes) {
  emulator::runtime.allowed[{emulator::runtime.device, kernel}] = bytes;
  return bytes <= 99 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void*) {
  to->ptxVersion = 80;
  return cudaSuccess;
}

inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks,
    const void*,
    int,
    size_t) {
  *blocks = 1;
  return cudaSuccess;
}

inline cudaError_t cudaLaunchKernel(
    const void* kernel,
    dim3 grid,
    dim3 threads,
    void** args,
    size_t shared,
    cudaStream_t) {
  auto& r = emulator::runtime;
  const size_t allowed = std::max(48 << 10, r.allowed[{r.device, kernel}]);
  if (!r.kernels.count(kernel) || shared > allowed || !grid.x || !grid.y ||
      grid.x > INT32_MAX || grid.y > 65535 || threads.x % 32 ||
      threads.x > 1024) {
    return cudaErrorInvalidValue;
  }
  r.launches++;
  std::vector<int64_t> blocks = r.only;
  for (unsigned x = 0; r.only.empty() && x < grid.x; ++x) {
    blocks.push_back(x);
  }
  for (unsigned y = 0; y < grid.y; ++y) {
    for (const auto chosen : blocks) {
      const auto x = static_cast<unsigned>(chosen);
      const emulator::Guarded memory(shared);
      emulator::Block block(
          threads.x, {x, y, 0}, memory.data(), r.seed++, r.early);
      block.run([&] { r.kernels[kernel](args); });
    }
  }
  return cudaSuccess;
}

namespace c10::cuda {
inline int8_t current_device() {
  return emulator::runtime.device;
}
} // namespace c10::cuda

namespace at::cuda {

inline const cudaDeviceProp* getCurrentDeviceProperties() {
  static thread_local cudaDeviceProp properties;
  properties = {9, emulator::runtime.device};
  return &properties;
}

inline cudaStream_t getCurrentCUDAStream() {
  return nullptr;
}

} // namespace at::cuda
