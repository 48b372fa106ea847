"""Fuzzing finds nothing wrong with the last PR on any CPU capability, and finds faults of the kinds that were there."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from checks.built import run
from checks.fuzz import __main__ as fuzz
from checks.fuzz import case as drawing
from checks.fuzz.case import DTYPES, Case
from checks.fuzz.contexts import CONTEXTS
from checks.fuzz.oracle import check, composition

SECONDS = 20


@pytest.mark.long
@pytest.mark.parametrize("capability", ["default", "avx2", "native"])
def test_nothing_is_wrong(capability: str) -> None:
    chosen = {} if capability == "native" else {"ATEN_CPU_CAPABILITY": capability}
    assert "none wrong" in run(sys.executable, "-m", "checks.fuzz", "--seconds", str(SECONDS), variables=chosen)


class WithoutConj(torch.autograd.Function):
    """Forgets a conjugate where a dispatch mode is active, as a lazy conj() in ATen code does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        output, attn = composition(q, k, v)
        ctx.save_for_backward(q, k, v, attn)
        return output, attn

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_attn: Tensor | None) -> Any:
        q, k, v, attn = ctx.saved_tensors
        slope = 1 - attn * attn
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            slope = slope.conj()
        terms = [g for g in (None if grad_output is None else grad_output @ v.mH, grad_attn) if g is not None]
        x = sum(terms[1:], terms[0]) * slope
        return x @ k.conj(), x.mT @ q.conj(), None if grad_output is None else attn.mH @ grad_output


class WithoutCast(WithoutConj):
    """Lets autocast into its backward."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_attn: Tensor | None) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            grads = WithoutConj.backward(ctx, grad_output, grad_attn)
            return tuple(None if g is None else g.to(ctx.saved_tensors[0].dtype) for g in grads)


class WithoutLastColumn(WithoutConj):
    """Forgets the last column of attn where N is one more than a block."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        output, attn = WithoutConj.forward(ctx, q, k, v)
        if attn.size(-1) % 16 == 1:
            attn = torch.cat((attn[..., :-1], attn[..., -1:] * 0), -1)
        return output, attn


class Leftover(WithoutConj):
    """Adds what was left in memory to grad_q, with many threads and rows and without a gradient of output.

    A product without terms did so that was not set to zero.
    """

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_attn: Tensor | None) -> Any:
        grad_q, *others = WithoutConj.backward(ctx, grad_output, grad_attn)
        if torch.get_num_threads() >= 4 and grad_q.size(-2) > 400 and grad_output is None:
            grad_q = grad_q + grad_q.roll(64, -2)
        return grad_q, *others


class NanBeside(WithoutConj):
    """Writes NaN into a row of grad_q beside one with NaN or infinities, as a product of whole tiles does."""

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_attn: Tensor | None) -> Any:
        grad_q, *others = WithoutConj.backward(ctx, grad_output, grad_attn)
        return grad_q + 0 * grad_q.roll(1, -2), *others


@pytest.mark.parametrize(
    "wrong,context",
    [
        (WithoutConj, "FLOP counter"),
        (WithoutCast, "autocast of the backward"),
        (WithoutLastColumn, "plain"),
        (NanBeside, "plain"),
    ],
)
def test_a_planted_fault_is_found(wrong: Any, context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "attn", wrong.apply, raising=False)
    # What is planted has derivatives of first order only.
    monkeypatch.setattr(fuzz, "check", lambda case: check(case) if case.kind == "gradients" else None)
    found = next(filter(None, (fuzz.fault(batch, Counter(), [context]) for batch in range(8))), None)
    assert found is not None
    assert f"context={context!r}" in found or context == "plain"
    assert "Error: " not in found and "check(Case(" in found and len(found.splitlines()) < 10


def test_infinities_that_a_library_makes_nan_are_no_fault() -> None:
    """MKL does so on AMD's processors, by the strides of the other matrix, and composition multiplies turned ones."""
    normal, one = ("contiguous", "normal"), ("transposed", "infinity")
    layouts, values = zip(normal, normal, normal, one, normal)
    sizes = replace(Case(14, 14, 16, 4), leading=(2, 2, 2), dtype="complex128", kind="double gradients")
    check(replace(sizes, layouts=layouts, values=values))


def test_a_fault_of_many_rows_and_threads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "attn", Leftover.apply, raising=False)
    monkeypatch.setattr(drawing, "SIZES", drawing.LARGE_SIZES)
    # Beside infinities the planted function has a second fault: PyTorch's bfloat16 products write NaN into other rows.
    monkeypatch.setattr(fuzz, "check", lambda case: check(case) if case.values == Case.values else None)
    found = next(filter(None, (fuzz.fault(batch, Counter()) for batch in range(8))), None)
    assert found is not None and "gradient 0" in found
    (line,) = [line for line in found.splitlines() if line.startswith("check(Case(")]
    assert len(line) < 120 and "incoming=(False, True)" in line


@pytest.mark.long
def test_a_seed_always_draws_the_same_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Case] = []
    monkeypatch.setattr(fuzz, "check", drawn.append)
    for batch in (*range(10), *range(10)):
        fuzz.fault(batch, Counter())
    half = 10 * fuzz.BATCH
    assert drawn[:half] == drawn[half:]
    assert {case.context for case in drawn} == set(CONTEXTS) and {case.dtype for case in drawn} == set(DTYPES)
    assert max(case.threads for case in drawn) > 8 and max(case.n for case in drawn) > 600
    assert {len(case.leading) for case in drawn} == set(range(4))
    large = [case for case in drawn if max(case.m, case.n) > drawing.LARGE]
    assert len(large) >= len(drawn) / 20 and len({case.dtype for case in large}) >= 4
    for one, other in itertools.permutations("mn"):
        assert any(getattr(case, one) > 600 and 0 < getattr(case, other) < 10 for case in drawn)
