// attn's CUDA kernels and the host code that launches them, on CPU tensors: the
// kernels run in the emulator. For test_tiles.py to compare with float64; and
// which sizes the operator gives to them.
#include <ATen/native/cuda/AttnRule.h>
#include <ATen/native/cuda/AttnTiles.cuh>

#include <c10/core/CPUAllocator.h>
#include <torch/library.h>
#include <ATen/native/cuda/AttnLaunch.cuh>

#include <numeric>

using namespace at;
using namespace at::native::attn_fused;
using emulator::runtime;

// In the operator's own source this has its place; here, for strides without
// expanded dimensions and sizes of 1.
Tensor native::attn_empty_like(const Tensor& like, int64_t columns) {
  std::vector<int64_t> order(like.dim()), strides(like.dim()), sizes;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end() - 1, [&](int64_t a, int64_t b) {
    return like.stride(a) > like.stride(b);
  });
  sizes = like.sizes().vec();
  sizes.back() = columns;
  int64_t stride = 1;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    strides[*i] = stride;
    stride *= sizes[*i];
  }
  return at::empty_strided(sizes, strides, like.options());
}

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
  Session(
      int64_t multiprocessors,
      int64_t seed,
      bool early,
      std::vector<int64_t> only) {
    runtime.device = static_cast<int8_t>(multiprocessors);
    runtime.seed = static_cast<unsigned>(seed);
    runtime.early = early;
    runtime.only = std::move(only);
    runtime.launches = 0;
    c10::SetCPUAllocator(&guarded_);
  }
  ~Session() {
    c10::SetCPUAllocator(usual_);
  }
  static inline GuardedAllocator guarded_; // its tensors live longer
  c10::Allocator* const usual_ = c10::GetCPUAllocator();
};

// A tensor of these strides in guarded memory.
Tensor sparse(std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  const Session session(1, 0, false, {});
  return at::empty_strided(sizes, strides, kHalf);
}

// A copy in guarded memory with the same strides: what lies between its rows is
// NaN. What begins at an odd place, or is sparse, stays where it is.
Tensor guarded(const Tensor& t) {
  if (!t.defined() || t.storage().nbytes() > emulator::Guarded::kSparse ||
      reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16) {
    return t;
  }
  auto sizes = t.sizes().vec();
  for (int64_t i = 0; i < t.dim(); ++i) {
    sizes[i] = t.stride(i) ? t.size(i) : 1;
  }
  const auto copy = at::empty_strided(sizes, t.strides(), t.options());
  copy.copy_(t.as_strided(sizes, t.strides()));
  return copy.expand(t.sizes());
}

std::tuple<Tensor, Tensor, int64_t> forward_of(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    int64_t multiprocessors,
    int64_t seed,
    bool early,
    std::vector<int64_t> only) {
  const Session session(multiprocessors, seed, early, std::move(only));
  const auto run =
      q.scalar_type() == kHalf ? run_forward<Half> : run_forward<BFloat16>;
  const auto results = run(guarded(q), guarded(k), guarded(v));
  return std::tuple_cat(results, std::tuple(runtime.launches));
}

// A gradient that is not wanted is empty.
std::tuple<Tensor, Tensor, Tensor, int64_t> backward_of(
    const Tensor& grad_output,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const c10::List<bool>& mask,
    int64_t multiprocessors,
    int64_t seed,
    bool early,
    std::vector<int64_t> only) {
  const Session session(multiprocessors, seed, early, std::move(only));
  const native::AttnBackwardArgs args{
      guarded(grad_output),
      Tensor(),
      guarded(q),
      guarded(k),
      guarded(v),
      guarded(attn),
      {mask[0], mask[1], mask[2]}};
  const auto run =
      q.scalar_type() == kHalf ? run_backward<Half> : run_backward<BFloat16>;
  const auto results = run(args);
  return std::tuple_cat(results, std::tuple(runtime.launches));
}

// What the rule says: 0 composed, 1 kernels if they are forced, 2 kernels.
int64_t rule(
    ScalarType dtype,
    int64_t dims,
    int64_t matrices,
    int64_t m,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward,
    int64_t capability) {
  const int major = static_cast<int>(capability);
  const AttnCall call{backward, major, dtype, dims, matrices, m, n, d, e};
  return can_use_kernels(call) ? 1 + are_kernels_faster(call) : 0;
}

template <typename T>
void add_kernels() {
  runtime.add(&attn_forward_kernel<T, 64>);
  runtime.add(&attn_forward_kernel<T, 128>);
  runtime.add(&attn_backward_q_kernel<T>);
  runtime.add(&attn_backward_kv_kernel<T>);
  runtime.add(&attn_sum_parts_kernel<T>);
}

} // namespace

TORCH_LIBRARY(attn_tiles, m) {
  add_kernels<Half>();
  add_kernels<BFloat16>();
  m.def("forward", &forward_of);
  m.def("backward", &backward_of);
  m.def("sparse", &sparse);
  m.def("rule", &rule);
}
