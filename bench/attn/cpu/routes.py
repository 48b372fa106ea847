"""The ways to compute attn that are compared, and the things that each is timed at."""

from __future__ import annotations

import importlib
import sys

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.attn.cpu.cases import Case, torch_dtype
from bench.attn.cpu.kinds import CAST, GIVEN, MASKS, SHARED
from bench.attn.cpu.measure import Work
from bench.attn.reference import Attn, composition
from bench.machine import ROOT


def batched() -> dict[str, Attn]:
    """The other ways to a batch; SDPA makes the same products, but a softmax, and returns no attn."""

    def loop(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        outputs, weights = zip(*(torch.attn(*one) for one in zip(q, k, v)))
        return torch.stack(outputs), torch.stack(weights)

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        heads = q, k, v
        if q.dim() == 3:
            heads = q[None], k[None], v[None]
        elif q.dim() == 5:  # It has an option for groups, and no kernel for five dimensions.
            heads = q.flatten(1, 2), k[:, :, 0], v[:, :, 0]
        output = scaled_dot_product_attention(*heads, enable_gqa=q.dim() == 5)
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
    found[CAST] = in_float32
    return found | batched()


def in_float32(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What a user does whose processor multiplies 16 bits slowly."""
    output, attn = composition(q.float(), k.float(), v.float())
    return output.to(q.dtype), attn.to(q.dtype)


def works(attn: Attn, case: Case) -> Work:
    """One call for the case, on inputs whose scores are of order one.

    The backward of heads ends in gradients as a layer needs them, contiguous as its (B, N, H, D).
    """
    dtype, generator = torch_dtype(case.dtype), torch.Generator().manual_seed(case.n)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def operand(rows: int, columns: int, heads: int) -> Tensor:
        return make(case.batch, rows, heads, columns) if case.heads else make(*case.lead, rows, columns)

    m, n, d, e, scale = case.shape[-2], case.n, case.d, case.e, max(case.d, 1) ** -0.25
    shared = case.shared or case.heads
    leaves = (operand(m, d, case.heads) * scale, operand(n, d, shared) * scale, operand(n, e, shared))
    kind, wanted = case.kind, (leaves[MASKS.index(case.kind)],) if case.kind in MASKS else leaves
    if kind == SHARED:
        q, k, v = leaves
        if attn in (composition, in_float32):
            return lambda: attn(q, k[0], v[0])
        mapped = torch.vmap(attn, in_dims=(0, None, None))
        return lambda: mapped(q, k[0], v[0])
    if not kind.startswith("forward"):
        for leaf in wanted:
            leaf.requires_grad_()
    q, k, v = as_heads(*leaves, case.heads // shared) if case.heads else leaves
    if kind == "forward":
        return lambda: attn(q, k, v)
    if kind == "forward AD":
        tangent = make(*q.shape)

        def dual() -> object:
            with forward_ad.dual_level():
                return attn(forward_ad.make_dual(q, tangent), k, v)[0]

        return dual
    output, weights = attn(q, k, v)
    grad = make(*output.shape)
    if kind == "both":
        return lambda: torch.autograd.grad(attn(q, k, v)[0], wanted, grad)
    if kind == "double backward":
        grad.requires_grad_()
        first = torch.autograd.grad(output, wanted, grad, create_graph=True)
        seeds = [torch.ones_like(t) for t in first]
        return lambda: torch.autograd.grad(first, (*leaves, grad), seeds, retain_graph=True)
    outputs: dict[Tensor, Tensor] = {} if kind == GIVEN[0] else {output: grad}
    outputs |= {weights: make(*weights.shape)} if kind in GIVEN else {}

    def backward() -> object:
        grads = torch.autograd.grad([*outputs], wanted, [*outputs.values()], retain_graph=True, allow_unused=True)
        return [grad.contiguous() for grad in grads] if case.heads else grads

    return backward


def as_heads(q: Tensor, k: Tensor, v: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, H, D) as (B, H, N, D); of queries in groups, (B, H, group, N, D) with k and v expanded."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if group == 1:
        return q, k, v
    k, v = (x.unsqueeze(2).expand(-1, -1, group, -1, -1) for x in (k, v))
    return q.unflatten(1, (-1, group)), k, v
