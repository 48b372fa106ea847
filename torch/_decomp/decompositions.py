"""attn and its backward as the operators that they are composed of."""

import functools

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
    """Refuses what the kernels refuse, with less to say about it."""
    tensors = {name: t for name, t in operands.items() if t is not None}
    first = next(iter(tensors.values()))
    *names, last = tensors
    sizes = {}

    def check(condition, what: str, value) -> None:
        torch._check(
            condition,
            lambda: (
                f"{op}: expected {', '.join(names)} and {last} to have {what}, but got "
                + ", ".join(f"{name} {value(t)}" for name, t in tensors.items())
            ),
        )

    for name, t in tensors.items():
        check(t.device == first.device, "the same device", lambda t: t.device)
        supported = t.dtype == first.dtype and t.dtype in _ATTN_DTYPES
        check(supported, "one supported dtype", lambda t: t.dtype)
        fits = 2 <= t.dim() == first.dim()
        check(fits, "as many dimensions, two at least", lambda t: t.dim())
        for letter, size in zip((*range(t.dim() - 2), *_ATTN_SIZES[name]), t.shape):
            fits = sizes.setdefault(letter, size) == size
            check(fits, "sizes that fit", lambda t: [*t.shape])


def _attn_like(like: Tensor, x: Tensor) -> Tensor:
    """x with its dimensions in memory in the order of like's, as attn.h says of attn_empty_like."""
    from torch.fx.experimental.symbolic_shapes import (
        has_free_unbacked_symbols,
        statically_known_true,
    )

    def holds(condition) -> bool:
        if statically_known_true(condition):
            return True
        return not has_free_unbacked_symbols(condition) and bool(condition)

    sizes, strides = like.shape, like.stride()

    def is_outside(a: int, b: int) -> bool:
        if holds(strides[b] == 0):
            return False
        if holds(strides[a] == 0):
            return True
        larger = strides[a] > strides[b]
        if has_free_unbacked_symbols(larger):
            # Data decide, but no multiple is smaller.
            if statically_known_true(strides[a] % strides[b] == 0):
                return True
            if statically_known_true(strides[b] % strides[a] == 0):
                return False
        return bool(larger)

    last = like.dim() - 1
    ones = [i for i in range(last) if holds(sizes[i] == 1)]
    order = sorted(
        (i for i in range(last) if i not in ones),
        key=functools.cmp_to_key(lambda a, b: -is_outside(a, b)),
    )
    order.append(last)
    for i in reversed(ones):
        order.insert(order.index(i + 1), i)
    if order == sorted(order):
        return x  # products are contiguous
    x = x.permute(order).clone(memory_format=torch.contiguous_format)
    return x.permute([order.index(i) for i in range(last + 1)])


@register_decomposition(aten.attn)
def attn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _check_attn_operands("attn", q=q, k=k, v=v)
    attn = torch.tanh(torch.matmul(q, k.mT))
    return _attn_like(q, torch.matmul(attn, v)), attn


@register_decomposition(aten._attn_backward)
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Missing incoming gradients, and q and k where only grad_v is wanted, are None.
    grads = [x for x in (grad_attn, grad_output) if x is not None]
    scores = (output_mask[0] or output_mask[1]) and len(grads) > 0
    torch._check(
        not scores or (q is not None and k is not None),
        lambda: (
            "_attn_backward: expected q and k, which grad_q and grad_k need, but got None"
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
    if scores:
        grad = grad_attn
        if grad_output is not None:
            grad = torch.matmul(grad_output, conj(v).mT)
            if grad_attn is not None:
                grad = grad_attn + grad
        grad_scores = aten.tanh_backward(grad, attn)
        if output_mask[0]:
            grad_q = _attn_like(q, torch.matmul(grad_scores, conj(k)))
        if output_mask[1]:
            grad_k = _attn_like(k, torch.matmul(grad_scores.mT, conj(q)))
    if output_mask[2] and grad_output is not None:
        grad_v = _attn_like(v, torch.matmul(conj(attn).mT, grad_output))
    return grad_q, grad_k, grad_v
