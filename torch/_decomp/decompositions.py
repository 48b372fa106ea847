"""attn and its backward as the operators that they are composed of."""

import torch
from torch import Tensor
from torch._decomp import register_decomposition

aten = torch.ops.aten


def _check_attn_operands(op: str, **operands: Tensor | None) -> None:
    # Meta and fake tensors run the decomposition instead of a kernel, so it refuses what
    # the kernels refuse, in the same words.
    given = {name: t for name, t in operands.items() if t is not None}

    def size(t: Tensor) -> list:
        return list(t.shape)

    def dtype(t: Tensor) -> str:  # as C++ prints it: Half, not torch.float16
        return t.type().rpartition(".")[2].removesuffix("Tensor")

    def same(what: str, names, get, show) -> None:
        pairs = [(name, given[name]) for name in names if name in given]
        for _, t in pairs[1:]:
            torch._check(
                get(pairs[0][1]) == get(t),
                lambda: (
                    f"{op}: expected {' and '.join([', '.join(n for n, _ in pairs[:-1]), pairs[-1][0]])} to {what}, "
                    f"but got {', '.join(f'{n} {show(x)}' for n, x in pairs)}"
                ),
            )

    for name, t in given.items():
        torch._check(
            t.dim() == 2,
            lambda: (
                f"{op}: expected {name} to be 2-D, but got a {t.dim()}-D tensor of size {size(t)}"
            ),
        )
    same("be on the same device", given, lambda t: t.device, lambda t: t.device)
    same("have the same dtype", given, lambda t: t.dtype, dtype)
    first = next(iter(given.values()))
    names = "float16", "bfloat16", "float32", "float64", "complex64", "complex128"
    torch._check(
        str(first.dtype).removeprefix("torch.") in names,
        lambda: (
            f"{op}: expected inputs of {', '.join(names[:-1])} or {names[-1]}, but got {dtype(first)}"
        ),
    )
    same("have the same number of rows", given, lambda t: t.shape[0], size)
    for names in ("q", "k"), ("grad_output", "v"):
        same("have the same number of columns", names, lambda t: t.shape[1], size)
    for name in "grad_attn", "attn":
        if name in given:
            t = given[name]
            torch._check(
                t.shape[0] == t.shape[1],
                lambda: f"{op}: expected {name} to be square, but got size {size(t)}",
            )


@register_decomposition(aten.attn)
def attn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _check_attn_operands("attn", q=q, k=k, v=v)
    attn = torch.tanh(torch.mm(q, k.t()))
    return torch.mm(attn, v), attn


@register_decomposition(aten._attn_backward)
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Missing incoming gradients, and operands that no requested gradient needs, are None.
    scores = output_mask[0] or output_mask[1]
    grads = [x for x in (grad_attn, grad_output) if x is not None]
    for name, t, i, needed in (
        ("q", q, 1, grads),
        ("k", k, 0, grads),
        ("v", v, 0, grad_output is not None),
        ("v", v, 1, grad_output is not None),
    ):
        torch._check(
            t is not None or not (output_mask[i] and needed),
            lambda: (
                f"_attn_backward: expected {name}, which grad_{'qk'[i]} needs, but got None"
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

    # Below autograd, as in tensor subclasses, nobody would resolve a lazy conjugate.
    conj = torch.conj_physical
    grad_q = grad_k = grad_v = None
    if scores and grads:
        grad = grad_attn
        if grad_output is not None:
            grad = torch.mm(grad_output, conj(v).t())
            if grad_attn is not None:
                grad = grad_attn + grad
        grad_scores = aten.tanh_backward(grad, attn)
        if output_mask[0]:
            grad_q = torch.mm(grad_scores, conj(k))
        if output_mask[1]:
            grad_k = torch.mm(grad_scores.t(), conj(q))
    if output_mask[2] and grad_output is not None:
        grad_v = torch.mm(conj(attn).t(), grad_output)
    return grad_q, grad_k, grad_v
