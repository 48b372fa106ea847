"""attn on heads by three Triton kernels: what torch.attn's own kernels have to be faster than.

One launch forward and two backward, of 16 bits and any width up to 128. The same algorithm, in Triton's instructions:
on Hopper those are wgmma.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton's interpreter runs the kernels on the CPU, but no inline assembly.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _rows(start, row, first, end, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """ROWS rows of a matrix, with zeros from `end` on."""
    r = first + tl.arange(0, ROWS)
    place = start + r[:, None].to(tl.int64) * row + tl.arange(0, WIDTH)[None, :]
    return tl.load(place, mask=r[:, None] < end, other=0.0)


@triton.jit
def _store_rows(start, row, first, end, values, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    r = first + tl.arange(0, ROWS)
    place = start + r[:, None].to(tl.int64) * row + tl.arange(0, WIDTH)[None, :]
    tl.store(place, values.to(start.dtype.element_ty), mask=r[:, None] < end)


@triton.jit
def _tanh(x, APPROXIMATE: tl.constexpr):
    if APPROXIMATE:
        asm: tl.constexpr = "tanh.approx.f32 $0, $1;"
        y = tl.inline_asm_elementwise(asm, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        y = 2 * tl.sigmoid(2 * x) - 1
    return y


@triton.jit
def _at(pointer, strides, b, h):
    return pointer + b * strides[0] + h * strides[1]


@triton.jit
def rival_forward(
    q, k, v, output, attn, qs, ks, vs, outs, H, M, N,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, APPROXIMATE: tl.constexpr,
):  # fmt: skip
    matrix, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    b, h = matrix // H, matrix % H
    k, v, attn = _at(k, ks, b, h), _at(v, vs, b, h), attn + matrix * M * N
    m = (first + tl.arange(0, ROWS))[:, None]
    queries = _rows(_at(q, qs, b, h), qs[2], first, M, ROWS, WIDTH)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for key in tl.range(0, N, KEYS):
        n = (key + tl.arange(0, KEYS))[None, :]
        inside = (m < M) & (n < N)
        scores = tl.dot(queries, _rows(k, ks[2], key, N, KEYS, WIDTH).T)
        # An infinity times the zeros beyond the last key is NaN.
        weights = tl.where(inside, _tanh(scores, APPROXIMATE), 0.0).to(queries.dtype)
        tl.store(attn + m.to(tl.int64) * N + n, weights, mask=inside)
        total = tl.dot(weights, _rows(v, vs[2], key, N, KEYS, WIDTH), total)
    _store_rows(_at(output, outs, b, h), outs[2], first, M, total, ROWS, WIDTH)


@triton.jit
def _scores_gradient(grad_output, values, attn, m, n, M, N):
    """Of a block of scores, beside attn there."""
    inside = (m < M) & (n < N)
    weights = tl.load(attn + m.to(tl.int64) * N + n, mask=inside, other=0.0)
    wide = weights.to(tl.float32)
    x = tl.where(inside, tl.dot(grad_output, values.T) * (1 - wide * wide), 0.0)
    return x.to(weights.dtype), weights


@triton.jit
def rival_backward_q(
    g, k, v, attn, grad_q, gs, ks, vs, gqs, H, M, N,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    matrix, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    b, h = matrix // H, matrix % H
    k, v, attn = _at(k, ks, b, h), _at(v, vs, b, h), attn + matrix * M * N
    m = (first + tl.arange(0, ROWS))[:, None]
    grads = _rows(_at(g, gs, b, h), gs[2], first, M, ROWS, WIDTH)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for key in tl.range(0, N, KEYS):
        n = (key + tl.arange(0, KEYS))[None, :]
        x, _ = _scores_gradient(grads, _rows(v, vs[2], key, N, KEYS, WIDTH), attn, m, n, M, N)
        total = tl.dot(x, _rows(k, ks[2], key, N, KEYS, WIDTH), total)
    _store_rows(_at(grad_q, gqs, b, h), gqs[2], first, M, total, ROWS, WIDTH)


@triton.jit
def rival_backward_kv(
    g, q, v, attn, grad_k, grad_v, gs, qs, vs, gks, gvs, H, M, N,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    matrix, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * KEYS
    b, h = matrix // H, matrix % H
    g, q, attn = _at(g, gs, b, h), _at(q, qs, b, h), attn + matrix * M * N
    n = (first + tl.arange(0, KEYS))[None, :]
    values = _rows(_at(v, vs, b, h), vs[2], first, N, KEYS, WIDTH)
    total_k = tl.zeros([KEYS, WIDTH], tl.float32)
    total_v = tl.zeros([KEYS, WIDTH], tl.float32)
    for row in tl.range(0, M, ROWS):
        m = (row + tl.arange(0, ROWS))[:, None]
        grads = _rows(g, gs[2], row, M, ROWS, WIDTH)
        x, weights = _scores_gradient(grads, values, attn, m, n, M, N)
        total_k = tl.dot(x.T, _rows(q, qs[2], row, M, ROWS, WIDTH), total_k)
        total_v = tl.dot(weights.T, grads, total_v)
    _store_rows(_at(grad_k, gks, b, h), gks[2], first, N, total_k, KEYS, WIDTH)
    _store_rows(_at(grad_v, gvs, b, h), gvs[2], first, N, total_v, KEYS, WIDTH)


def _blocks(rows: int, width: int) -> dict[str, Any]:
    few = 16 if rows <= 16 else 64 if rows <= 64 or width > 64 else 128
    return {"ROWS": few, "KEYS": 64, "WIDTH": width, "num_warps": 4 if few < 128 else 8, "num_stages": 3}


def _strides(*tensors: Tensor) -> list[tuple[int, ...]]:
    return [t.stride()[:3] for t in tensors]


class Rival(torch.autograd.Function):
    """q, k and v of (B, H, rows, D), D a power of two, with rows anywhere; results in the layout of the operands."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        (b, h, m, d), n = q.shape, k.shape[2]
        output, attn = torch.empty_like(q), q.new_empty(b, h, m, n)
        blocks = _blocks(m, d)
        approximate = q.dtype == torch.bfloat16 and not INTERPRETED
        grid = triton.cdiv(m, blocks["ROWS"]), b * h
        tensors = q, k, v, output
        rival_forward[grid](*tensors, attn, *_strides(*tensors), h, m, n, APPROXIMATE=approximate, **blocks)
        ctx.save_for_backward(q, k, v, attn)
        ctx.mark_non_differentiable(attn)
        return output, attn

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        q, k, v, attn = ctx.saved_tensors
        (b, h, m, d), n = q.shape, k.shape[2]
        grad_q, grad_k, grad_v = map(torch.empty_like, (q, k, v))
        blocks = _blocks(m, d) | {"num_stages": 2}
        rows, keys = triton.cdiv(m, blocks["ROWS"]), triton.cdiv(n, blocks["KEYS"])
        strides = _strides(g, k, v, grad_q)
        rival_backward_q[rows, b * h](g, k, v, attn, grad_q, *strides, h, m, n, **blocks)
        strides = _strides(g, q, v, grad_k, grad_v)
        rival_backward_kv[keys, b * h](g, q, v, attn, grad_k, grad_v, *strides, h, m, n, **blocks)
        return grad_q, grad_k, grad_v


def rival(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    output, attn = Rival.apply(q, k, v)
    return output, attn
