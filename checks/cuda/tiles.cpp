// Runs attn's CUDA kernels in the emulator, for test_tiles.py to compare
// with float64, and answers which sizes the operator gives to them.
#include <ATen/native/cuda/AttnRule.h>
#include <ATen/native/cuda/AttnTiles.cuh>

#include <memory>

using namespace at::native::attn_fused;
using emulator::Guarded;

namespace {

// Contiguous matrices of one run.
struct Problem {
  int64_t n;
  int64_t part; // rows of the walk in one part; a multiple of 64, or 0 for all
  const void *q, *k, *v, *grad_output;
  void *attn, *output, *grad_q, *grad_k, *grad_v;
  unsigned seed;
  int early; // whether background copies land at once or when waited for
};

template <typename T, int kWidth>
class Run {
 public:
  explicit Run(const Problem& problem)
      : p_(problem),
        part_(problem.part ? problem.part : problem.n),
        parts_((p_.n + part_ - 1) / part_) {}

  void forward() {
    auto* attn = allocate<T>(p_.n * p_.n);
    ForwardArgs<T> args{};
    args.q = copy(p_.q, kWidth);
    args.k = copy(p_.k, kWidth);
    args.v = copy(p_.v, kWidth);
    args.attn = attn;
    args.output = result();
    run(Kernel::forward, args, at::native::attn_fused::forward<T, kWidth>);
    std::memcpy(
        p_.attn, static_cast<const void*>(attn), p_.n * p_.n * sizeof(T));
    take(args.output, p_.output);
  }

  void rows() {
    BackwardArgs<T> args = backward_args();
    args.grad_q = result();
    run(Kernel::backward_rows, args, backward_rows<T, kWidth>);
    take(args.grad_q, p_.grad_q);
  }

  void cols() {
    BackwardArgs<T> args = backward_args();
    args.grad_k = result();
    args.grad_v = result();
    run(Kernel::backward_cols, args, backward_cols<T, kWidth>);
    take(args.grad_k, p_.grad_k);
    take(args.grad_v, p_.grad_v);
  }

 private:
  BackwardArgs<T> backward_args() {
    BackwardArgs<T> args{};
    args.grad_output = copy(p_.grad_output, kWidth);
    args.q = copy(p_.q, kWidth);
    args.k = copy(p_.k, kWidth);
    args.v = copy(p_.v, kWidth);
    args.attn = copy(p_.attn, p_.n);
    return args;
  }

  const T* copy(const void* data, int64_t columns) {
    auto* to = allocate<T>(p_.n * columns);
    std::memcpy(static_cast<void*>(to), data, p_.n * columns * sizeof(T));
    return to;
  }

  Result<T> result() {
    return {
        allocate<T>(p_.n * kWidth),
        parts_ > 1 ? allocate<float>(parts_ * p_.n * kWidth) : nullptr};
  }

  void take(Result<T> from, void* to) {
    const int64_t count = p_.n * kWidth;
    if (from.parts) {
      run({static_cast<unsigned>((count + kThreads - 1) / kThreads), 1, 1},
          0,
          [&] { sum_parts<T>(from, static_cast<int>(parts_), count); });
    }
    std::memcpy(to, static_cast<const void*>(from.data), count * sizeof(T));
  }

  template <typename Args, typename Function>
  void run(Kernel kernel, Args& args, const Function& function) {
    args.n = static_cast<int>(p_.n);
    args.part = static_cast<int>(part_);
    const int64_t block = 64 * rows_of(kernel, kWidth);
    const emulator::Index grid{
        static_cast<unsigned>((p_.n + block - 1) / block),
        static_cast<unsigned>(parts_),
        1};
    run(grid, shared_bytes(kernel, kWidth), [&] { function(args); });
  }

  template <typename Function>
  void run(
      emulator::Index grid,
      int64_t shared_bytes,
      const Function& function) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        const Guarded shared(shared_bytes);
        emulator::Block block(
            kThreads, {x, y, 0}, shared.data(), p_.seed++, p_.early);
        block.run(function);
      }
    }
  }

  template <typename Element>
  Element* allocate(int64_t count) {
    memory_.push_back(std::make_unique<Guarded>(count * sizeof(Element)));
    return reinterpret_cast<Element*>(memory_.back()->data());
  }

  Problem p_;
  int64_t part_, parts_;
  std::vector<std::unique_ptr<Guarded>> memory_;
};

template <typename T, int kWidth>
void run(const Problem& problem, int kernel) {
  Run<T, kWidth> run(problem);
  kernel == 0 ? run.forward() : kernel == 1 ? run.rows() : run.cols();
}

template <typename T>
void run(const Problem& problem, int kernel, int width) {
  width == 64 ? run<T, 64>(problem, kernel) : run<T, 128>(problem, kernel);
}

} // namespace

extern "C" void attn_tiles(
    const Problem* problem,
    int bfloat16,
    int kernel,
    int width) {
  bfloat16 ? run<c10::BFloat16>(*problem, kernel, width)
           : run<c10::Half>(*problem, kernel, width);
}

extern "C" int attn_takes(
    int dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    int backward) {
  return serves(static_cast<c10::ScalarType>(dtype), n, d, e) &&
      pays(n, d, backward);
}
