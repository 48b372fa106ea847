"""attn and its backward as the operators that they are composed of."""

import torch
from torch import Tensor
from torch._decomp import register_decomposition

aten = torch.ops.aten


_ATTN_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


# The last two sizes of each operand.
_ATTN_SIZES = {
    "grad_output": "ME",
    "grad_attn": "MN",
    "q": "MD",
    "k": "ND",
    "v": "NE",
    "attn": "MN",
}


def _check_attn_operands(op: str, **operands: Tensor | None) -> None:
    """Refuses what the kernels refuse; in their words what no kernel sees, a meta tensor beside others."""
    tensors = {name: t for name, t in operands.items() if t is not None}
    *names, last = tensors
    first = next(iter(tensors.values()))
    torch._check(
        all(t.device == first.device for t in tensors.values()),
        lambda: (
            f"{op}: expected {', '.join(names)} and {last} to have the same device, but got "
            + ", ".join(f"{name} {t.device}" for name, t in tensors.items())
        ),
    )

    def check(condition) -> None:
        torch._check(
            condition,
            lambda: (
                f"{op}: expected one supported dtype and sizes that fit, but got "
                + ", ".join(
                    f"{name} {t.dtype} {list(t.shape)}" for name, t in tensors.items()
                )
            ),
        )

    check(first.dtype in _ATTN_DTYPES)
    sizes = {}
    for name, t in tensors.items():
        check(t.dtype == first.dtype and 2 <= t.dim() == first.dim())
        letters = *range(t.dim() - 2), *_ATTN_SIZES[name]
        for letter, size in zip(letters, t.shape):
            check(sizes.setdefault(letter, size) == size)


@register_decomposition(aten.attn)
def attn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _check_attn_operands("attn", q=q, k=k, v=v)
    attn = torch.tanh(torch.matmul(q, k.mT))
    return torch.matmul(attn, v), attn


@register_decomposition(aten._attn_backward)
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Missing incoming gradients, and operands that no requested gradient needs, are None.
    scores = output_mask[0] or output_mask[1]
    grads = [x for x in (grad_attn, grad_output) if x is not None]
    for name, t, needed in (
        ("q", q, output_mask[1] and grads),
        ("k", k, output_mask[0] and grads),
        ("v", v, scores and grad_output is not None),
    ):
        torch._check(
            t is not None or not needed,
            lambda: (
                f"_attn_backward: expected {name}, which a gradient needs, but got None"
            ),
        )
    _check_attn_operands(
        "_attn_backward",
        grad_output=grad_output,
        grad_attn=grad_attn,
        q=q,
        k=k,
        v=v,
        attn=attn,
    )

    # Below autograd, as in tensor subclasses, nobody would resolve a lazy conjugate. A
    # partial sum would be reduced for the conjugate of a real number, which is itself.
    def conj(t: Tensor) -> Tensor:
        return torch.conj_physical(t) if t.is_complex() else t

    grad_q = grad_k = grad_v = None
    if scores and grads:
        grad = grad_attn
        if grad_output is not None:
            grad = torch.matmul(grad_output, conj(v).mT)
            if grad_attn is not None:
                grad = grad_attn + grad
        grad_scores = aten.tanh_backward(grad, attn)
        if output_mask[0]:
            grad_q = torch.matmul(grad_scores, conj(k))
        if output_mask[1]:
            grad_k = torch.matmul(grad_scores.mT, conj(q))
    if output_mask[2] and grad_output is not None:
        grad_v = torch.matmul(conj(attn).mT, grad_output)
    return grad_q, grad_k, grad_v
