"""attn and its backward are kept where a device runs fused kernels for them, and are decomposed elsewhere."""

import torch
import torch._decomp as decomp
from torch._inductor import config  # fragment only
from torch._inductor.decomposition import register_decomposition  # fragment only
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten  # fragment only

decomps_to_exclude = [
    # we conditionally call these decomps
    aten.attn,
    aten._attn_backward,
]


def _attn_is_fused(q, k, v, backward: bool) -> bool:
    """Whether the device runs fused kernels. Of sizes that are not known, hints decide."""
    from torch.fx.experimental import symbolic_shapes

    def hint(size) -> int:
        if isinstance(size, int):
            return size
        return symbolic_shapes.optimization_hint(size, fallback=0)

    # Of equal sizes one may be known and the other not, so each letter has one hint.
    *leading, m, d = map(hint, q.shape)
    n, e = hint(k.shape[-2]), hint(v.shape[-1])
    with _disable_current_modes():
        operands = [
            torch.empty_strided(
                [*leading, *matrix],
                [*map(hint, x.stride())],
                dtype=x.dtype,
                device="meta",
            )
            for x, matrix in ((q, (m, d)), (k, (n, d)), (v, (n, e)))
        ]
        return aten._attn_is_fused(*operands, backward, q.device)


@register_decomposition([aten.attn])
def attn(q, k, v):
    if _attn_is_fused(q, k, v, backward=False):
        return NotImplemented
    return decomp.decompositions.attn(q, k, v)


@register_decomposition([aten._attn_backward])
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Calls from C++ have no place for a result that is missing.
    complete = all(output_mask) and grad_output is not None
    can_call = complete or not config.cpp_wrapper
    has_operands = q is not None and k is not None
    if can_call and has_operands and _attn_is_fused(q, k, v, backward=True):
        return NotImplemented
    return decomp.decompositions._attn_backward(
        grad_output, grad_attn, q, k, v, attn, output_mask
    )
