"""What torch.export takes attn apart into, when a program is to consist of core operators alone."""

import torch
from torch._decomp import get_decompositions  # fragment only


def _core_aten_decompositions_post_autograd():
    aten = torch.ops.aten  # fragment only
    return get_decompositions(
        [
            aten.attn,
            aten._attn_backward,
        ]
    )
