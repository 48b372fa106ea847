// How the threads of attn's CPU kernels share matrices, and parts of them.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstdint>

namespace at::native::attn_tile {

// Less work than this (FLOP) is not worth another thread.
constexpr double kThreadWork = 2e6;

// Each thread takes whole matrices, as many as every other. Those that are left
// are cut into parts, which all threads share.
struct Schedule {
  int64_t threads; // that have work
  int64_t whole; // matrices that one thread takes
  int64_t rest; // matrices that are cut
  int64_t parts; // of each of these
};

// `flop` is the work of one matrix, and `units` of its rows or columns the
// least that a part can have. It can be cut into at most `most` parts, and is
// never cut into fewer than `least`.
inline Schedule schedule(
    int64_t matrices,
    double flop,
    int64_t units,
    int64_t least,
    int64_t most) {
  const auto worth = [](double work, int64_t available) -> int64_t {
    return work < available * kThreadWork ? work / kThreadWork + 1 : available;
  };
  int64_t threads = worth(matrices * flop, at::get_num_threads());
  if (threads == 1 || worth(flop, 2) == 1 ||
      most < std::max<int64_t>(least, 2)) {
    threads = ceil_div(matrices, ceil_div(matrices, threads));
    return {threads, matrices, 0, 1};
  }
  most = std::max(least, worth(flop, most));
  const int64_t rest = matrices % threads;
  // The most units of one thread
  const auto busiest = [&](int64_t parts) {
    return ceil_div(rest * parts, threads) * ceil_div(units, parts);
  };
  int64_t parts = least;
  for (const auto more : c10::irange(least + 1, most + 1)) {
    // More parts have a price, so they must even the work out.
    parts = busiest(more) < 0.95 * busiest(parts) ? more : parts;
  }
  return {threads, matrices - rest, rest, parts};
}

// Where part i of `parts` begins, in rows or columns: multiples of `unit`.
inline int64_t cut(int64_t size, int64_t unit, int64_t parts, int64_t i) {
  return std::min(size, ceil_div(size, unit) * i / parts * unit);
}

// Calls f(thread, i) for all i < count, by at most `threads` threads, each of
// which holds a Guard meanwhile.
template <typename Guard, typename F>
void each(int64_t count, int64_t threads, const F& f) {
  at::parallel_for(
      0, count, ceil_div(count, threads), [&](int64_t first, int64_t last) {
        const Guard guard;
        const int64_t thread = at::get_thread_num();
        for (const auto i : c10::irange(first, last)) {
          f(thread, i);
        }
      });
}

} // namespace at::native::attn_tile
