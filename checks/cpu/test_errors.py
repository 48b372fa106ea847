"""The rule of errors of test/test_attn_kernels.py finds faults that are planted in the composition."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from checks import ROOT

sys.path.append(str(ROOT / "test"))
KERNELS: Any = importlib.import_module("test_attn_kernels")

Draw = list[Tensor]


def composed(
    draw: Draw,
    *,
    slope: Callable[[Tensor], Tensor] = lambda a: (1 - a) * (1 + a),
    last: int | None = None,
    given: int = 1,
) -> list[Tensor]:
    """Without grad_v, which no fault touches."""
    q, k, v, grad_output, grad_attn = draw
    attn = torch.tanh(q @ k.t())
    grad = (grad_output @ v.t() + given * grad_attn) * slope(attn)
    return [attn[:, :last] @ v[:last], attn, grad[:, :last] @ k[:last], grad.t() @ q]


def chained(draw: Draw) -> list[Tensor]:
    """The sums of output in one chain."""
    output, attn, *rest = composed(draw)
    output = torch.zeros_like(output)
    for i in range(attn.size(1)):
        output += attn[:, i : i + 1] * draw[2][i]
    return [output, attn, *rest]


def is_broken(draws: list[Draw], run: Callable[[Draw], list[Tensor]], plain: Callable[..., Any]) -> bool:
    results = []
    for draw in draws:
        like = [torch.as_tensor(x) for x in plain(*draw)]
        sizes = KERNELS.magnitudes(*map(KERNELS.precise, draw))
        results.append((run(draw), like, KERNELS.reference(*draw), sizes))
    return any(
        KERNELS.broken_rule(name, torch.float32, [[part[i] for part in r] for r in results])
        for i, name in enumerate(KERNELS.NAMES[:4])
    )


@pytest.mark.parametrize(
    "fault", [{}, {"slope": lambda a: 1 - a}, {"last": -1}, {"given": 0}], ids=["none", "slope", "column", "grad_attn"]
)
def test_a_fault_breaks_the_rule(fault: dict[str, Any]) -> None:
    draws = [KERNELS.make_inputs(65, 20, 30, torch.float32, draw=i) for i in range(4)]
    assert is_broken(draws, lambda draw: composed(draw, **fault), KERNELS.composition) == bool(fault)


def test_one_long_chain_breaks_the_rule() -> None:
    # A BLAS may err as much as one chain does, so the chain is measured by the unit alone.
    draws = [[abs(t) for t in KERNELS.make_inputs(2000, 3, 8, torch.float32)]]
    assert not is_broken(draws, composed, KERNELS.composition)
    assert is_broken(draws, chained, KERNELS.reference)
