// Runs what clang makes of `#pragma omp parallel` on GCC's OpenMP, which is the
// wheel's. With clang's own runtime, the kernels would have threads beside
// torch's, and torch.set_num_threads would not reach them.
#include <array>
#include <cstdarg>
#include <cstdlib>
#include <tuple>

extern "C" {
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
int omp_get_thread_num();

// What a region takes by reference follows the number of its thread, twice.
using Body = void (*)(int*, int*, ...);
__attribute__((visibility("hidden"))) void __kmpc_fork_call(
    void*,
    int,
    Body,
    ...);
}

namespace {

struct Region {
  Body body;
  std::array<void*, 8> taken{};
};

// A body ignores the pointers beyond those that it takes.
void run(void* data) {
  const auto& region = *static_cast<Region*>(data);
  int number = omp_get_thread_num();
  std::apply(
      [&](auto... taken) { region.body(&number, &number, taken...); },
      region.taken);
}

} // namespace

void __kmpc_fork_call(void* /*location*/, int count, Body body, ...) {
  Region region{body};
  if (count > static_cast<int>(region.taken.size())) {
    std::abort();
  }
  va_list taken;
  va_start(taken, body);
  for (int i = 0; i < count; ++i) {
    region.taken[i] = va_arg(taken, void*);
  }
  va_end(taken);
  GOMP_parallel(run, &region, /*threads=*/0, /*flags=*/0);
}
