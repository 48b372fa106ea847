// Runs attn's CUDA tile kernels in the emulator, for test_cuda_tiles.py to
// compare with float64.
#include <ATen/native/cuda/AttnTiles.cuh>

#include <memory>

using namespace at::native::attn_fused;
using emulator::Guarded;

namespace {

// Matrices of one run, each row-major and without padding; a null one is
// absent.
struct Problem {
  int64_t n, d, e;
  int64_t part; // rows of the walk in one part; a multiple of 64, or 0 for all
  int64_t grad_attn_row_stride, grad_attn_column_stride;
  const void *q, *k, *v, *grad_output, *grad_attn;
  void *attn, *output, *grad_q, *grad_k, *grad_v;
  unsigned seed;
  int early; // whether background copies land at once or when waited for
};

template <typename A>
class Run {
  using scalar_t = typename A::scalar_t;
  using acc_t = typename A::acc_t;

 public:
  explicit Run(const Problem& problem)
      : p_(problem),
        part_(problem.part ? problem.part : problem.n),
        parts_((p_.n + part_ - 1) / part_) {}

  // In whole lines, zeros beyond the columns, as the launcher makes them.
  Operand<A> operand(const void* data, int64_t columns) {
    if (!data) {
      return {};
    }
    const int lines = static_cast<int>((columns + kLine<A> - 1) / kLine<A>);
    auto* padded = allocate<scalar_t>(p_.n * lines * kLine<A>);
    std::memset(static_cast<void*>(padded), 0, p_.n * lines * 128);
    for (int64_t r = 0; r < p_.n; ++r) {
      std::memcpy(
          static_cast<void*>(padded + r * lines * kLine<A>),
          static_cast<const scalar_t*>(data) + r * columns,
          columns * sizeof(scalar_t));
    }
    return {padded, lines};
  }

  Square<A> square(
      const void* data,
      int64_t row_stride,
      int64_t column_stride) {
    if (!data) {
      return {};
    }
    const int64_t count = (p_.n - 1) * (row_stride + column_stride) + 1;
    auto* copy = allocate<scalar_t>(count);
    std::memcpy(static_cast<void*>(copy), data, count * sizeof(scalar_t));
    const bool chunked = p_.n % Tile<A>::kChunk == 0 && column_stride == 1 &&
        row_stride % Tile<A>::kChunk == 0;
    return {copy, row_stride, column_stride, chunked};
  }

  Result<A> result(int64_t columns) {
    return {
        allocate<scalar_t>(p_.n * columns),
        parts_ > 1 ? allocate<acc_t>(parts_ * p_.n * columns) : nullptr,
        static_cast<int>(columns)};
  }

  void take(Result<A> from, void* to) {
    const int64_t count = p_.n * from.columns;
    if (from.parts) {
      run({static_cast<unsigned>((count + kThreads - 1) / kThreads), 1, 1},
          0,
          [&] { sum_parts<A>(from, static_cast<int>(parts_), count); });
    }
    std::memcpy(
        to, static_cast<const void*>(from.data), count * sizeof(scalar_t));
  }

  template <typename Kernel>
  void run(emulator::Index grid, int64_t shared_bytes, const Kernel& kernel) {
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          const Guarded shared(shared_bytes);
          emulator::Block block(
              kThreads, {x, y, z}, shared.data(), p_.seed++, p_.early);
          block.run(kernel);
        }
      }
    }
  }

  // The kernel for whole operands where that is the one to launch.
  template <int kWidth, typename Kernel>
  void run_either(
      bool whole,
      emulator::Index grid,
      int64_t shared_bytes,
      const Kernel& kernel) {
    if constexpr (kWidth <= A::kWidestWhole) {
      if (whole) {
        return run(grid, shared_bytes, [&] { kernel(std::true_type()); });
      }
    }
    run(grid, shared_bytes, [&] { kernel(std::false_type()); });
  }

  template <int kWidth>
  void forward() {
    const Operand<A> q = operand(p_.q, p_.d), k = operand(p_.k, p_.d),
                     v = operand(p_.v, p_.e);
    auto* attn = allocate<scalar_t>(p_.n * p_.n);
    const ForwardArgs<A> args{
        q,
        k,
        v,
        attn,
        p_.n % Tile<A>::kChunk == 0,
        result(p_.e),
        static_cast<int>(p_.n),
        static_cast<int>(part_)};
    constexpr int kRows = Shape<A>::kRows;
    run_either<kWidth>(
        are_whole<A>(kWidth, q, v),
        grid(64 * kRows, kWidth, p_.e),
        Shape<A>::rows_bytes(q.lines, kWidth),
        [&](auto whole) {
          at::native::attn_fused::forward<A, kWidth, kRows, whole>(args);
        });
    std::memcpy(
        p_.attn,
        static_cast<const void*>(attn),
        p_.n * p_.n * sizeof(scalar_t));
    take(args.output, p_.output);
  }

  BackwardArgs<A> backward_args() {
    BackwardArgs<A> args;
    args.grad_output = operand(p_.grad_output, p_.e);
    args.q = operand(p_.q, p_.d);
    args.k = operand(p_.k, p_.d);
    args.v = operand(p_.grad_output ? p_.v : nullptr, p_.e);
    args.attn = square(p_.attn, p_.n, 1);
    args.grad_attn = square(
        p_.grad_attn, p_.grad_attn_row_stride, p_.grad_attn_column_stride);
    args.n = static_cast<int>(p_.n);
    args.part = static_cast<int>(part_);
    return args;
  }

  template <int kWidth>
  void rows() {
    BackwardArgs<A> args = backward_args();
    args.grad_q = result(p_.d);
    constexpr int kRows = Shape<A>::kRows;
    run_either<kWidth>(
        are_whole<A>(kWidth, args.grad_output, args.k),
        grid(64 * kRows, kWidth, p_.d),
        Shape<A>::rows_bytes(args.grad_output.lines, kWidth),
        [&](auto whole) { backward_rows<A, kWidth, kRows, whole>(args); });
    take(args.grad_q, p_.grad_q);
  }

  template <int kWidth>
  void cols() {
    BackwardArgs<A> args = backward_args();
    args.grad_k = result(p_.d);
    if (p_.grad_v) {
      args.grad_v = result(p_.e);
    }
    constexpr int kRows = Shape<A>::cols_rows(kWidth);
    run_either<kWidth>(
        are_whole<A>(kWidth, args.grad_output, args.q),
        grid(64 * kRows, kWidth, std::max(p_.d, p_.grad_v ? p_.e : 0)),
        Shape<A>::cols_bytes(
            args.grad_output.lines, kWidth, args.grad_attn.data),
        [&](auto whole) { backward_cols<A, kWidth, kRows, whole>(args); });
    take(args.grad_k, p_.grad_k);
    if (p_.grad_v) {
      take(args.grad_v, p_.grad_v);
    }
  }

 private:
  emulator::Index grid(int64_t block, int64_t width, int64_t columns) const {
    return {
        static_cast<unsigned>((p_.n + block - 1) / block),
        static_cast<unsigned>(parts_),
        static_cast<unsigned>((columns + width - 1) / width)};
  }

  template <typename T>
  T* allocate(int64_t count) {
    memory_.push_back(std::make_unique<Guarded>(count * sizeof(T)));
    return reinterpret_cast<T*>(memory_.back()->data());
  }

  Problem p_;
  int64_t part_, parts_;
  std::vector<std::unique_ptr<Guarded>> memory_;
};

template <typename A>
void run(const Problem& problem, int kernel, int width) {
  Run<A> run(problem);
  const bool narrow = width == 64;
  if (kernel == 0) {
    narrow ? run.template forward<64>() : run.template forward<128>();
  } else if (kernel == 1) {
    narrow ? run.template rows<64>() : run.template rows<128>();
  } else {
    narrow ? run.template cols<64>()
           : run.template cols<Shape<A>::kMaxColsWidth>();
  }
}

} // namespace

extern "C" void attn_tiles(
    const Problem* problem,
    int arithmetic,
    int kernel,
    int width) {
  switch (arithmetic) {
    case 0:
      return run<HalfCores<c10::Half>>(*problem, kernel, width);
    case 1:
      return run<HalfCores<c10::BFloat16>>(*problem, kernel, width);
    case 2:
      return run<TF32Cores>(*problem, kernel, width);
    case 3:
      return run<FloatLanes>(*problem, kernel, width);
    default:
      return run<DoubleCores>(*problem, kernel, width);
  }
}
