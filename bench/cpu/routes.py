"""The ways to compute attn that are compared, and the things that each is timed at."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from bench.cpu.measure import Work
from bench.reference import Attn, composition

KINDS = ("forward", "backward", "both", "double backward", "forward AD")
MASKS = ("grad_q", "grad_k", "grad_v")
"""Backward where one input alone requires a gradient."""
GIVEN = ("of attn", "of both")
"""Backward where attn has a gradient, alone or beside output's."""


def routes(others: bool) -> dict[str, Attn]:
    """By name: composition, torch.attn and, if wanted, the others, as far as this machine has what they need."""
    found: dict[str, Attn] = {"composition": composition, "torch.attn": torch.attn}
    if not others:
        return found
    sys.path.insert(0, str(Path(__file__).parents[2] / "test"))
    tests = importlib.import_module("test_attn")
    found["Python Function"] = tests.python_attn
    try:
        found["C++ Function"] = tests.cpp_attn()
    except (OSError, RuntimeError) as error:
        print(f"C++ Function left out: {str(error).splitlines()[0]}")
    found["torch.compile"] = torch.compile(composition, dynamic=False)
    found["in float32"] = in_float32
    return found


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a user does whose processor multiplies 16 bits slowly."""
    output, attn = composition(q.float(), k.float(), v.float())
    return output.to(q.dtype), attn.to(q.dtype)


def works(attn: Attn, kind: str, n: int, d: int, e: int, dtype: torch.dtype) -> Work:
    """One call of the kind, on inputs whose scores are of order one."""
    generator = torch.Generator().manual_seed(n)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    scale = max(d, 1) ** -0.25
    q, k, v = make(n, d) * scale, make(n, d) * scale, make(n, e)
    if kind == "forward":
        return lambda: attn(q, k, v)
    grad, tangent = make(n, e), make(n, d)
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
        outputs, grads = ((weights,), (make(n, n),)) if kind == GIVEN[0] else ((output, weights), (grad, make(n, n)))
        return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True, allow_unused=True)
    if kind == "backward" or kind in MASKS:
        return lambda: torch.autograd.grad(output, wanted, grad, retain_graph=True)
    grad.requires_grad_()
    first = torch.autograd.grad(output, wanted, grad, create_graph=True)
    seeds = [torch.ones_like(t) for t in first]
    return lambda: torch.autograd.grad(first, (q, k, v, grad), seeds, retain_graph=True)


def jax_works(kind: str, n: int, d: int, e: int, dtype: torch.dtype) -> Work | None:
    """The same function under jax.jit; None where JAX is not installed or the kind or dtype is not compared."""
    try:
        jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    except ImportError:
        return None
    if kind not in ("forward", "both") or dtype != torch.float32:
        return None

    def attn(q: Any, k: Any, v: Any) -> tuple[object, object]:
        a = jnp.tanh(q @ k.T)
        return a @ v, a

    q, k, v, grad = (jnp.asarray(torch.randn(n, m).numpy()) for m in (d, d, e, e))
    if kind == "forward":
        forward = jax.jit(attn)
        return lambda: jax.block_until_ready(forward(q, k, v))
    backward = jax.jit(lambda *inputs: jax.vjp(lambda *x: attn(*x)[0], *inputs)[1](grad))
    return lambda: jax.block_until_ready(backward(q, k, v))
