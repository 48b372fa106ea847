"""attn and its backward as the operators that they are composed of."""

import torch
from torch import Tensor
from torch._decomp import register_decomposition

aten = torch.ops.aten


@register_decomposition(aten.attn)
def attn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(torch.mm(q, k.t()))
    return torch.mm(attn, v), attn


@register_decomposition(aten._attn_backward)
def _attn_backward(
    grad_output: Tensor | None,
    grad_attn: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    attn: Tensor,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    grad_q = grad_k = grad_v = None
    if (output_mask[0] or output_mask[1]) and not (grad_output is None and grad_attn is None):
        grad = grad_attn
        if grad_output is not None:
            grad = torch.mm(grad_output, v.mH)
            if grad_attn is not None:
                grad = grad + grad_attn
        grad_scores = grad * ((1 - attn) * (1 + attn)).conj()
        if output_mask[0]:
            grad_q = torch.mm(grad_scores, k.conj())
        if output_mask[1]:
            grad_k = torch.mm(grad_scores.t(), q.conj())
    if output_mask[2] and grad_output is not None:
        grad_v = torch.mm(attn.mH, grad_output)
    return grad_q, grad_k, grad_v
