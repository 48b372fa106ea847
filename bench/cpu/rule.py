"""For which cases the CPU kernels run: the rule of AttnKernel.h itself, also for processors that are not at hand."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from bench.cpu.cases import Case
from bench.cpu.record import Record, kernels
from bench.cpu.routes import GIVEN
from fork import process
from fork.engine import toolchain

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "aten/src/ATen/native/cpu/AttnKernel.h"
PROGRAM = """
#include <ATen/native/cpu/AttnKernel.h>
#include <iostream>
#include <string>
using namespace at;
int main() {
  std::string processor, dtype;
  int64_t n, d, e, threads;
  bool backward;
  while (std::cin >> processor >> dtype >> n >> d >> e >> backward >> threads) {
    using P = native::AttnProcessor;
    const P p = processor == "X86" ? P::X86 : processor == "AVX2" ? P::AVX2
        : processor == "AVX512" ? P::AVX512 : processor == "MKL" ? P::AVX512_MKL
        : processor == "AMX" ? P::AMX : P::Unmeasured;
    const ScalarType t = dtype == "float32" ? kFloat : dtype == "float64" ? kDouble
        : dtype == "bfloat16" ? kBFloat16 : kHalf;
    std::cout << native::attn_is_fused(p, t, n, d, e, backward, threads) << ' '
              << native::attn_scratch(p, t, n, d, e, backward, threads) << '\\n';
  }
}
"""
# Processor, dtype, N, D, E, whether it is the backward, and threads, as attn_is_fused takes them.
Asked = tuple[str, str, int, int, int, int, int]


def answers(asked: Sequence[Asked]) -> list[bool]:
    """What the rule says."""
    return [runs for runs, _ in said(asked)]


def said(asked: Sequence[Asked]) -> list[tuple[bool, int]]:
    """Whether the kernels run, and the bytes of scratch that the rule thinks they need."""
    lines = "\n".join(" ".join(map(str, one)) for one in asked)
    words = process.run(["/bin/sh", "-c", f"echo '{lines}' | {_program()}"], "the rule does not run").split()
    return [(runs == "1", int(scratch)) for runs, scratch in zip(words[::2], words[1::2])]


def fused(record: Record, cases: Sequence[Case]) -> list[bool]:
    """Whether the kernels run for each case on the record's processor."""
    capability = {"DEFAULT": "X86"}.get(record.capability, record.capability)
    # MKL takes its paths for AVX-512 on Intel's processors alone.
    name = capability
    if capability == "AVX512" and "Intel" in record.processor:
        name = "AMX" if "AMX" in record.processor else "MKL"
    return answers([_asked(name, case, record.threads) for case in cases])


def present(record: Record) -> Record:
    """Without the results of other kernels than those at hand, and of cases that another rule composed or did not."""
    here = kernels("cpu", record.capability)
    same = [r for r in record.results if r.kernels == here]
    runs = fused(record, [r.case for r in same])
    kept = [r for r, now in zip(same, runs) if r.fused in (None, now)]
    return dataclasses.replace(record, results=kept, remark=record.remark if kept else "")


def _asked(processor: str, case: Case, threads: int) -> Asked:
    d = 0 if case.kind == "grad_v" else case.d
    e = 0 if case.kind == GIVEN[0] else case.e
    return processor, case.dtype, case.n, d, e, int(case.kind != "forward"), case.threads or threads


@cache
def _program() -> Path:
    made_of = f"{HEADER.read_text()}{PROGRAM}{torch.__version__}{torch.__file__}"
    made = ROOT / f"build/rule/{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        source, part = made.with_suffix(".cpp"), made.with_suffix(".part")
        source.write_text(PROGRAM)
        base = Path(torch.__file__).parent
        includes = [f"-I{ROOT / 'aten/src'}", "-isystem", str(base / "include")]
        libraries = [f"-L{base / 'lib'}", "-lc10", f"-Wl,-rpath,{base / 'lib'}"]
        command = [str(toolchain.cxx()), "-std=c++20", *includes, str(source), *libraries, "-o", str(part)]
        process.run(command, f"{source.name} does not compile")
        part.replace(made)
    return made
