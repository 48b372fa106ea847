"""attn and its backward stay whole where a device has kernels for them, and are taken apart elsewhere."""

import torch
import torch._decomp as decomp
from torch._inductor import config  # fragment only
from torch._inductor.decomposition import register_decomposition  # fragment only
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten  # fragment only

decomps_to_exclude = [
    # we conditionally call these decomps
    aten.attn,
    aten._attn_backward,
]


def _attn_has_kernels(x: torch.Tensor, *widths: int) -> bool:
    key = torch._C._dispatch_key_for_device(x.device.type)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", key):
        return False
    # Inductor itself has no code for complex numbers.
    if x.device.type != "cuda" or x.dtype.is_complex:
        return True
    return x.dtype.itemsize == 2 and any(
        all(statically_known_true(width == columns) for width in widths)
        for columns in (64, 128)
    )


@register_decomposition([aten.attn])
def attn(q, k, v):
    if _attn_has_kernels(q, q.shape[1], v.shape[1]):
        return NotImplemented
    return decomp.decompositions.attn(q, k, v)


@register_decomposition([aten._attn_backward])
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Calls from C++ have no place for a result that is missing.
    complete = all(output_mask) and grad_output is not None
    # CUDA's kernels know no other gradients either, and none of attn.
    served = complete and grad_attn is None
    widths = (q.shape[1], v.shape[1]) if served else (0,)
    if _attn_has_kernels(attn, *widths) and (complete or not config.cpp_wrapper):
        return NotImplemented
    return decomp.decompositions._attn_backward(
        grad_output, grad_attn, q, k, v, attn, output_mask
    )
