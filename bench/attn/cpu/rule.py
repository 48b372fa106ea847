"""For which cases the CPU kernels run: the rule of AttnRule.h itself, also for processors that are not at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bench.attn.cpu.cases import Case
from bench.attn.cpu.program import ask
from bench.attn.cpu.record import Record, kernels
from bench.attn.cpu.routes import GIVEN, SHARED

PROGRAM = """
#include <ATen/native/cpu/AttnRule.h>
#include <iostream>
#include <string>
using namespace at;
using namespace c10;
int main() {
  std::string processor, dtype;
  double matrices, m, n, d, e, threads;
  bool backward;
  while (std::cin >> processor >> dtype >> matrices >> m >> n >> d >> e >> backward >> threads) {
    using P = native::AttnProcessor;
    const P p = processor == "X86" ? P::X86 : processor == "AVX2" ? P::AVX2
        : processor == "AVX512" ? P::AVX512 : processor == "MKL" ? P::AVX512_MKL
        : processor == "AMX" ? P::AMX : P::Unmeasured;
    const ScalarType t = dtype == "float32" ? kFloat : dtype == "float64" ? kDouble
        : dtype == "bfloat16" ? kBFloat16 : kHalf;
    std::cout << native::attn_is_fused(p, t, matrices, m, n, d, e, backward, threads) << '\\n';
  }
}
"""
# Processor, dtype, matrices, M, N, D, E, whether it is the backward, and threads, as attn_is_fused takes.
Asked = tuple[str, str, int, int, int, int, int, int, int]


def answers(asked: Sequence[Asked]) -> list[bool]:
    """What the rule says."""
    return [words == ["1"] for words in ask(PROGRAM, "AttnRule.h", asked)]


def fused(record: Record, cases: Sequence[Case]) -> list[bool]:
    """Whether the kernels run for each case on the record's processor."""
    capability = {"DEFAULT": "X86"}.get(record.capability, record.capability)
    # MKL takes its paths for AVX-512 on Intel's processors alone.
    name = capability
    if capability == "AVX512" and "Intel" in record.processor:
        name = "AMX" if "AMX" in record.processor else "MKL"
    return answers([_asked(name, case, case.threads or record.threads) for case in cases])


def present(record: Record) -> Record:
    """Without results of earlier kernels, and without those of cases that the present rule decides otherwise."""
    here = kernels("cpu", record.capability)
    same = [r for r in record.results if r.kernels == here]
    runs = fused(record, [r.case for r in same])
    kept = [r for r, now in zip(same, runs) if r.fused in (None, now)]
    return dataclasses.replace(record, results=kept, remark=record.remark if kept else "")


def _asked(processor: str, case: Case, threads: int) -> Asked:
    d = 0 if case.kind == "grad_v" else case.d
    e = 0 if case.kind == GIVEN[0] else case.e
    m = case.batch * case.n if case.kind == SHARED else case.shape[-2]
    matrices = 1 if case.kind == SHARED else max(1, case.batch)
    backward = not case.kind.startswith("forward")
    return processor, case.dtype, matrices, m, case.n, d, e, int(backward), threads
