"""The ways to compute attn that are compared, and the things that each is timed at."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import torch
import torch.autograd.forward_ad as forward_ad

from bench.attn.cpu.measure import Work
from bench.attn.reference import Attn, composition
from bench.machine import ROOT

KINDS = ("forward", "backward", "both", "double backward", "forward AD")
MASKS = ("grad_q", "grad_k", "grad_v")
"""Backward where one input alone requires a gradient."""
GIVEN = ("of attn", "of both")
"""Backward where attn has a gradient, alone or beside output's."""


SHARED = "forward, shared k and v"
"""A batch of q against one k and v, which torch.attn serves by vmap."""
BATCHED = ("vmap", "loop", "SDPA")


def batched() -> dict[str, Attn]:
    """The other ways to a batch; SDPA makes the same products, but a softmax, and returns no attn."""

    def loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, weights = zip(*(torch.attn(*one) for one in zip(q, k, v)))
        return torch.stack(outputs), torch.stack(weights)

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        return output, output

    return {"loop": loop, "SDPA": sdpa}


def routes(others: bool) -> dict[str, Attn]:
    """By name: composition, torch.attn, vmap and, if wanted, the others, as far as this machine has what they need."""
    found: dict[str, Attn] = {"composition": composition, "torch.attn": torch.attn, "vmap": torch.vmap(torch.attn)}
    if not others:
        return found
    sys.path.insert(0, str(ROOT / "test"))
    tests = importlib.import_module("test_attn")
    found["Python Function"] = tests.python_attn
    try:
        found["C++ Function"] = tests.cpp_attn()
    except (OSError, RuntimeError) as error:
        print(f"C++ Function left out: {str(error).splitlines()[0]}")
    found["torch.compile"] = torch.compile(composition, dynamic=False)
    found["in float32"] = in_float32
    return found | batched()


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a user does whose processor multiplies 16 bits slowly."""
    output, attn = composition(q.float(), k.float(), v.float())
    return output.to(q.dtype), attn.to(q.dtype)


def works(attn: Attn, kind: str, shape: Sequence[int], d: int, e: int, dtype: torch.dtype) -> Work:
    """One call of the kind for attn of this shape, on inputs whose scores are of order one."""
    *lead, m, n = shape
    generator = torch.Generator().manual_seed(n)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    scale = max(d, 1) ** -0.25
    q, k, v = make(*lead, m, d) * scale, make(*lead, n, d) * scale, make(*lead, n, e)
    if kind == "forward":
        return lambda: attn(q, k, v)
    if kind == SHARED:
        if attn in (composition, in_float32):
            return lambda: attn(q, k[0], v[0])
        shared = torch.vmap(attn, in_dims=(0, None, None))
        return lambda: shared(q, k[0], v[0])
    grad, tangent = make(*lead, m, e), make(*lead, m, d)
    if kind == "forward AD":

        def dual() -> object:
            with forward_ad.dual_level():
                return attn(forward_ad.make_dual(q, tangent), k, v)[0]

        return dual
    wanted = ((q, k, v)[MASKS.index(kind)],) if kind in MASKS else (q, k, v)
    for t in wanted:
        t.requires_grad_()
    if kind == "both":
        return lambda: torch.autograd.grad(attn(q, k, v)[0], wanted, grad)
    output, weights = attn(q, k, v)
    if kind in GIVEN:
        outputs, grads = (
            ((weights,), (make(*shape),)) if kind == GIVEN[0] else ((output, weights), (grad, make(*shape)))
        )
        return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)
    if kind == "backward" or kind in MASKS:
        return lambda: torch.autograd.grad(output, wanted, grad, retain_graph=True)
    grad.requires_grad_()
    first = torch.autograd.grad(output, wanted, grad, create_graph=True)
    seeds = [torch.ones_like(t) for t in first]
    return lambda: torch.autograd.grad(first, (q, k, v, grad), seeds, retain_graph=True)
