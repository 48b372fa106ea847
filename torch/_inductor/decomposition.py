"""attn and its backward stay whole where a device has kernels for them, and are taken apart elsewhere."""

from collections.abc import Callable  # fragment only

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


def _attn_pays_on_cuda(q, k, v, backward: bool) -> bool:
    """What AttnRule.h says of the sizes, where they are known."""
    (*leading, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    known = statically_known_true
    return (
        q.dtype in (torch.float16, torch.bfloat16)
        and not leading
        and (known(d == 64) or (not backward and known(d == 128)))
        and known(d == e)
        and known(m == n)
        and known(n % 8 == 0)
        and known(n >= (3000 if known(d == 64) else 4096))
    )


def _attn_has_kernels(x: torch.Tensor, pays: Callable[[], bool]) -> bool:
    key = torch._C._dispatch_key_for_device(x.device.type)
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", key):
        return False
    # Inductor itself has no code for complex numbers.
    return x.device.type != "cuda" or x.dtype.is_complex or pays()


@register_decomposition([aten.attn])
def attn(q, k, v):
    if _attn_has_kernels(q, lambda: _attn_pays_on_cuda(q, k, v, backward=False)):
        return NotImplemented
    return decomp.decompositions.attn(q, k, v)


@register_decomposition([aten._attn_backward])
def _attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask):
    # Calls from C++ have no place for a result that is missing.
    complete = all(output_mask) and grad_output is not None

    def pays() -> bool:
        # CUDA's kernels know no other gradients either, and none of attn.
        usual = complete and grad_attn is None
        return usual and _attn_pays_on_cuda(q, k, v, backward=True)

    if _attn_has_kernels(attn, pays) and (complete or not config.cpp_wrapper):
        return NotImplemented
    return decomp.decompositions._attn_backward(
        grad_output, grad_attn, q, k, v, attn, output_mask
    )
