"""attn and its backward on distributed tensors.

Where every tensor is replicated, each process of the mesh runs the operator itself. Otherwise the operators that it is
composed of run, each sharded by its own rules: rows of q on each process and k and v on all of them give rows of output
and attn without any communication, and gradients of k and v as partial sums. attn itself cannot run on the rows of one
process, because it wants as many rows of q as of k.
"""

import torch
import torch.distributed.tensor._api as dtensor
from torch._decomp import decomposition_table
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils import _pytree as pytree  # fragment only

aten = torch.ops.aten


def attn_handler(
    op_call: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    first = tensors[0]
    if (
        not isinstance(first, dtensor.DTensor)
        or not all(
            isinstance(x, dtensor.DTensor)
            and all(placement.is_replicate() for placement in x.placements)
            and x.device_mesh == first.device_mesh
            for x in tensors
        )
        or first.device_mesh.get_coordinate() is None  # this process has no part of it
    ):
        return decomposition_table[op_call](*args, **kwargs)
    mesh, placements = first.device_mesh, first.placements

    def replicated(local: torch.Tensor) -> dtensor.DTensor:
        meta = TensorMeta(local.shape, local.stride(), local.dtype)
        spec = DTensorSpec(mesh, placements, tensor_meta=meta)
        return dtensor.DTensor(local, spec, requires_grad=False)

    args, kwargs = pytree.tree_map_only(
        dtensor.DTensor, lambda x: x._local_tensor, (args, kwargs)
    )
    return pytree.tree_map_only(torch.Tensor, replicated, op_call(*args, **kwargs))


class OpDispatcher:
    def __init__(self) -> None:
        self._custom_op_handlers = {
            aten.attn.default: attn_handler,
            aten._attn_backward.default: attn_handler,
        }
