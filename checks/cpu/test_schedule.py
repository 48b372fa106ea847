"""How threads share the work of the CPU kernels, by AttnSchedule.h itself: counts, not times."""

from __future__ import annotations

import itertools
import math

from checks.cpu.program import ask

PROGRAM = """
#include <ATen/native/cpu/AttnSchedule.h>
#include <iostream>
#include <mutex>
using namespace at::native::attn_tile;
struct Nothing {};
// Prints, for each thread, the rows and columns of its parts, one number for each schedule.
int main() {
  int64_t threads, matrices, size, units, least, most;
  double flop;
  while (std::cin >> threads >> matrices >> size >> flop >> units >> least >> most) {
    at::set_num_threads(threads);
    const Schedule s = schedule(matrices, flop, units, least, most);
    std::vector<double> work(threads);
    std::mutex lock;
    const auto add = [&](int64_t thread, int64_t numbers) {
      const std::lock_guard<std::mutex> held(lock);
      work.at(thread) += numbers;
    };
    each<Nothing>(s.whole, s.threads, [&](int64_t thread, int64_t) { add(thread, size); });
    each<Nothing>(s.rest * s.parts, s.threads, [&](int64_t thread, int64_t task) {
      const int64_t part = task % s.parts;
      add(thread, cut(size, 16, s.parts, part + 1) - cut(size, 16, s.parts, part));
    });
    std::cout << s.threads << ' ' << s.parts;
    for (const double each : work) {
      std::cout << ' ' << each;
    }
    std::cout << '\\n';
  }
}
"""
THREADS = (1, 2, 3, 8, 20, 64)
MATRICES = (1, 2, 3, 5, 9, 12, 100)
SIZES = (64, 100, 256, 300, 512, 1000, 1024, 2048, 4096)


def asked(backward: bool) -> list[tuple[int, int, int, float, int, int, int]]:
    """As the kernels ask, for M = N and D = E = 64."""
    questions = []
    for threads, matrices, size in itertools.product(THREADS, MATRICES, SIZES):
        flop = (4.0 if backward else 2.0) * size * size * (132 if backward else 144)
        least, most = (math.ceil(size / 1024), size // 64) if backward else (math.ceil(size / 64), math.ceil(size / 16))
        questions.append((threads, matrices, size, flop, math.ceil(size / 16), least, most))
    return questions


def test_threads_have_equal_work() -> None:
    """The busiest has at most 1.25 times the mean, where each has ten million operations."""
    uneven = {}
    for backward in (False, True):
        questions = asked(backward)
        for question, (threads, _, *shares) in zip(questions, ask(PROGRAM, "AttnSchedule.h", questions), strict=True):
            work = [float(share) for share in shares]
            assert sum(work) == question[1] * question[2], f"work that nobody does, or two: {question}"
            busy = [share for share in work if share]
            assert len(busy) <= int(threads)
            if question[1] * question[3] > 1e7 * question[0] and max(busy) > 1.25 * sum(busy) / len(busy):
                key = (backward, *question)
                uneven[key] = max(busy) * len(busy) / sum(busy)
    assert not uneven


def test_threads_that_have_work() -> None:
    """No thread is idle that could have a matrix of its own, or 64 columns of one, and much to do."""
    for backward in (False, True):
        questions = [q for q in asked(backward) if q[3] * q[1] > 1e9]
        for question, (_, _, *shares) in zip(questions, ask(PROGRAM, "AttnSchedule.h", questions), strict=True):
            threads, matrices, *_, most = question
            busy = sum(share != "0" for share in shares)
            assert busy >= 0.75 * min(threads, matrices * most), (backward, question)


def test_no_size_is_too_large_to_count() -> None:
    questions = [(t, 1, 10**9, 2.0**x, 10**8, 10**6, 10**7) for t in THREADS for x in (60, 100, 180)]
    for question, (threads, *_) in zip(questions, ask(PROGRAM, "AttnSchedule.h", questions), strict=True):
        assert int(threads) == question[0]
