"""The FLOP formulas of attn, 2 M N (D + E) for each matrix, and of its backward, twice as many with all wanted."""

from math import prod  # fragment only

import torch
from torch.utils.flop_counter import register_flop_formula

aten = torch.ops.aten


@register_flop_formula(aten.attn)
def _attn_flop(q_shape, k_shape, v_shape, *args, out_shape=None, **kwargs) -> int:
    """Count flops for attn: q @ k.T and attn @ v."""
    *rows, d = q_shape
    *_, n, e = v_shape
    return 2 * prod(rows) * n * (d + e)


@register_flop_formula(aten._attn_backward)
def _attn_backward_flop(
    grad_output_shape,
    grad_attn_shape,
    q_shape,
    k_shape,
    v_shape,
    attn_shape,
    output_mask,
    out_shape=None,
    **kwargs,
) -> int:
    """Count flops for the products that the incoming gradients and output_mask need."""
    scores = grad_output_shape is not None or grad_attn_shape is not None
    width = 0
    if (output_mask[0] or output_mask[1]) and grad_output_shape is not None:
        width += grad_output_shape[-1]  # grad_output @ v^H
    if output_mask[0] and scores:
        width += k_shape[-1]  # grad_scores @ conj(k)
    if output_mask[1] and scores:
        width += q_shape[-1]  # grad_scores^T @ conj(q)
    if output_mask[2] and grad_output_shape is not None:
        width += grad_output_shape[-1]  # attn^H @ grad_output
    return 2 * prod(attn_shape) * width


flop_registry = {
    aten.attn: _attn_flop,
    aten._attn_backward: _attn_backward_flop,
}
