"""attn among the operators that torch.export decomposes where a program may hold core operators only."""

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
