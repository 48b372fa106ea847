"""Fuzzing finds nothing wrong with the last PR on any CPU capability, and finds faults of the kinds that were there."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.fuzz.__main__ import fault
from checks.fuzz.case import DTYPES, LARGE, drawn
from checks.fuzz.contexts import CONTEXTS
from checks.fuzz.oracle import composition
from fork.engine import base as bases
from fork.engine.pipeline import Fork, build, environment
from fork.series import Series

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 20


@pytest.mark.parametrize("capability", ["default", "avx2", "native"])
def test_nothing_is_wrong(capability: str) -> None:
    series = Series.load(ROOT)
    site = build(Fork(series, series.prs[-1], bases.installed(), "auto", ROOT / "build"))
    # Threads that wait without work must not take the processor from those that have some.
    variables = environment(site, Path(sys.executable)) | {"OMP_WAIT_POLICY": "passive"}
    if capability != "native":
        variables["ATEN_CPU_CAPABILITY"] = capability
    command = [sys.executable, "-m", "checks.fuzz", "--seconds", str(SECONDS)]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none wrong" in done.stdout


class WithoutConj(torch.autograd.Function):
    """Forgets a conjugate where a dispatch mode is active, as a lazy conj() in ATen code does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(True)
        output, attn = composition(q, k, v)
        ctx.save_for_backward(q, k, v, attn)
        return output, attn

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_attn: Tensor) -> Any:
        q, k, v, attn = ctx.saved_tensors
        slope = 1 - attn * attn
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            slope = slope.conj()
        x = (grad_output @ v.mH + grad_attn) * slope
        return x @ k.conj(), x.mT @ q.conj(), attn.mH @ grad_output


class WithoutCast(WithoutConj):
    """Lets autocast into its backward."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_attn: Tensor) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return tuple(g.to(grad_attn.dtype) for g in WithoutConj.backward(ctx, grad_output, grad_attn))


class WithoutLastColumn(WithoutConj):
    """Forgets the last column of attn where N is one more than a block."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        output, attn = WithoutConj.forward(ctx, q, k, v)
        if attn.size(1) % 16 == 1:
            attn = torch.cat((attn[:, :-1], attn[:, -1:] * 0), 1)
        return output, attn


class Leftover(WithoutConj):
    """Adds what was left in memory to grad_q, with many threads and rows and without a gradient of output.

    A product without terms did so that was not set to zero.
    """

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_attn: Tensor) -> Any:
        grad_q, *others = WithoutConj.backward(ctx, grad_output, grad_attn)
        if torch.get_num_threads() >= 8 and len(grad_attn) > 500 and not grad_output.any():
            grad_q = grad_q + grad_q.roll(64, 0)
        return grad_q, *others


@pytest.mark.parametrize(
    "wrong,context",
    [(WithoutConj, "FLOP counter"), (WithoutCast, "autocast of the backward"), (WithoutLastColumn, "plain")],
)
def test_a_planted_fault_is_found(wrong: Any, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "attn", wrong.apply, raising=False)
    cases = (case for seed in range(1000) if (case := drawn(seed, [context])).kind == "gradients")
    found = next(filter(None, (fault(case, Counter()) for case in cases)), None)
    assert found is not None
    assert f"context={context!r}" in found or context == "plain"
    assert "check(Case(" in found and len(found.splitlines()) < 10


def test_a_fault_of_many_rows_and_threads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "attn", Leftover.apply, raising=False)
    large = (case for seed in range(20_000) if (case := drawn(seed)).n > LARGE)
    found = next(filter(None, (fault(case, Counter()) for case in large)), None)
    assert found is not None and "gradient 0" in found
    (line,) = [line for line in found.splitlines() if line.startswith("check(Case(")]
    assert len(line) < 120 and "incoming=(False, True)" in line


def test_a_seed_always_draws_the_same_case() -> None:
    cases = [drawn(seed) for seed in range(2000)]
    assert cases == [drawn(seed) for seed in range(2000)]
    assert {case.context for case in cases} == set(CONTEXTS) and {case.dtype for case in cases} == set(DTYPES)
    assert max(case.threads for case in cases) > 16 and max(case.n for case in cases) > 1000
