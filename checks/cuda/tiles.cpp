// attn's CUDA kernels and the host code that launches them, on CPU tensors: the
// kernels run in the emulator. For test_tiles.py to compare with float64; and
// which sizes the operator gives to them.
#include <ATen/native/cuda/AttnRule.h>
#include <ATen/native/cuda/AttnTiles.cuh>

#include <c10/core/CPUAllocator.h>
#include <torch/library.h>
#include <ATen/native/cuda/AttnLaunch.cuh>

using namespace at;
using namespace at::native::attn_fused;
using emulator::runtime;

namespace {

// Every tensor ends at a page that may not be touched, and begins as NaN.
struct GuardedAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    const auto free = [](void* memory) {
      delete static_cast<emulator::Guarded*>(memory);
    };
    auto* memory = new emulator::Guarded(bytes);
    return {memory->data(), memory, free, Device(kCPU)};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

// For one call: the device, the order of threads, and guarded tensors.
struct Session {
  Session(int64_t multiprocessors, int64_t seed, bool early) {
    runtime.device = static_cast<int8_t>(multiprocessors);
    runtime.seed = static_cast<unsigned>(seed);
    runtime.early = early;
    runtime.launches = 0;
    c10::SetCPUAllocator(&guarded_);
  }
  ~Session() {
    c10::SetCPUAllocator(usual_);
  }
  static inline GuardedAllocator guarded_; // its tensors live longer
  c10::Allocator* const usual_ = c10::GetCPUAllocator();
};

// Strided operands are copied by the host code itself.
Tensor guarded(const Tensor& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return t.is_contiguous() && address % 16 == 0 ? t.clone() : t;
}

std::tuple<Tensor, Tensor, int64_t> forward_of(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    int64_t multiprocessors,
    int64_t seed,
    bool early) {
  const Session session(multiprocessors, seed, early);
  const auto run =
      q.scalar_type() == kHalf ? run_forward<Half> : run_forward<BFloat16>;
  const auto results = run(guarded(q), guarded(k), guarded(v));
  return std::tuple_cat(results, std::tuple(runtime.launches));
}

std::tuple<Tensor, Tensor, Tensor, int64_t> backward_of(
    const Tensor& grad_output,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    int64_t multiprocessors,
    int64_t seed,
    bool early) {
  const Session session(multiprocessors, seed, early);
  const native::AttnBackwardArgs args{
      guarded(grad_output),
      Tensor(),
      guarded(q),
      guarded(k),
      guarded(v),
      guarded(attn),
      {true, true, true}};
  const auto run =
      q.scalar_type() == kHalf ? run_backward<Half> : run_backward<BFloat16>;
  const auto results = run(args);
  return std::tuple_cat(results, std::tuple(runtime.launches));
}

bool takes(ScalarType dtype, int64_t n, int64_t d, int64_t e, bool backward) {
  return serves(dtype, n, d, e, backward) && pays(n, d);
}

template <typename T>
void add_kernels() {
  runtime.add(&forward<T, 64>);
  runtime.add(&forward<T, 128>);
  runtime.add(&backward_rows<T>);
  runtime.add(&backward_cols<T>);
  runtime.add(&sum_parts<T>);
}

} // namespace

TORCH_LIBRARY(attn_tiles, m) {
  add_kernels<Half>();
  add_kernels<BFloat16>();
  m.def("forward", &forward_of);
  m.def("backward", &backward_of);
  m.def("takes", &takes);
}
