"""attn and its backward as the operators that they are composed of."""

import torch
from torch import Tensor
from torch._decomp import register_decomposition

aten = torch.ops.aten


def _check_attn_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    # A decomposition is also what meta and fake tensors run, so it refuses what the kernels refuse.
    def size(t: Tensor) -> str:
        return f"({', '.join(map(str, t.shape))})"

    def given(values: list) -> str:
        return "got q {}, k {}, v {}".format(*values)

    for name, t in (("q", q), ("k", k), ("v", v)):
        torch._check(
            t.dim() == 2,
            lambda: (
                f"attn: expected {name} to be 2-D, but got a {t.dim()}-D tensor of size {size(t)}"
            ),
        )
    torch._check(
        q.device == k.device and q.device == v.device,
        lambda: (
            f"attn: expected q, k and v to be on the same device, but {given([t.device for t in (q, k, v)])}"
        ),
    )
    torch._check(
        q.dtype == k.dtype and q.dtype == v.dtype,
        lambda: (
            f"attn: expected q, k and v to have the same dtype, but {given([t.dtype for t in (q, k, v)])}"
        ),
    )
    torch._check(
        q.dtype
        in (
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.complex64,
            torch.complex128,
        ),
        lambda: f"attn: expected floating point or complex inputs, but got {q.dtype}",
    )
    for t in (k, v):
        torch._check(
            q.shape[0] == t.shape[0],
            lambda: (
                f"attn: expected q, k and v to have the same number of rows, but {given([size(t) for t in (q, k, v)])}"
            ),
        )
    torch._check(
        q.shape[1] == k.shape[1],
        lambda: (
            "attn: expected q and k to have the same number of columns, "
            f"but got q {size(q)}, k {size(k)}"
        ),
    )


@register_decomposition(aten.attn)
def attn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _check_attn_inputs(q, k, v)
    attn = torch.tanh(torch.mm(q, k.t()))
    return torch.mm(attn, v), attn


@register_decomposition(aten._attn_backward)
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # All tensors but attn may be None: gradients that do not exist, and operands that
    # no wanted gradient needs.

    # Tensor.conj is composite, and what dispatches below autograd need not take it apart.
    def conj(t: Tensor) -> Tensor:
        return t.conj() if t.is_complex() else t

    grad_q = grad_k = grad_v = None
    if (output_mask[0] or output_mask[1]) and not (
        grad_output is None and grad_attn is None
    ):
        grad = grad_attn
        if grad_output is not None:
            grad = torch.mm(grad_output, conj(v.t()))
            if grad_attn is not None:
                grad = grad + grad_attn
        grad_scores = grad * conj((1 - attn) * (1 + attn))
        if output_mask[0]:
            grad_q = torch.mm(grad_scores, conj(k))
        if output_mask[1]:
            grad_k = torch.mm(grad_scores.t(), conj(q))
    if output_mask[2] and grad_output is not None:
        grad_v = torch.mm(conj(attn.t()), grad_output)
    return grad_q, grad_k, grad_v
