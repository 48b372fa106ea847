"""attn and its backward on distributed tensors run as the products they are composed of, each sharded by its own rules.

So rows of q on each process and k and v on all of them give rows of output and attn without any communication, and
gradients of k and v as partial sums. The operator itself cannot run on the rows of one process: it wants as many of q
as of k.
"""

import torch
from torch._decomp import decomposition_table

aten = torch.ops.aten


def attn_handler(
    op_call: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    return decomposition_table[op_call](*args, **kwargs)


class OpDispatcher:
    def __init__(self) -> None:
        self._custom_op_handlers = {
            aten.attn.default: attn_handler,
            aten._attn_backward.default: attn_handler,
        }
