"""How attn and its backward can be sharded, so that each process runs the operator on its part."""

import torch
from torch.distributed.tensor._op_schema import (
    OpSchema,
    OpStrategy,
    PlacementList,
    RuntimeSchemaInfo,
)
from torch.distributed.tensor._ops.utils import (
    expand_to_full_mesh_op_strategy,
    register_op_strategy,
)
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

aten = torch.ops.aten


@register_op_strategy(aten.attn.default)
def attn_strategy(op_schema: OpSchema) -> OpStrategy:
    """q (*, M, D), k (*, N, D), v (*, N, E) -> output (*, M, E), attn (*, M, N)

    All but D can be sharded, since tanh is of sums over D. output is a sum over N.
    """
    mesh = op_schema.get_mesh_from_args()
    dims = len(op_schema.args_strategy[0].shape)
    rows, columns, whole, sums = (
        Shard(dims - 2),
        Shard(dims - 1),
        Replicate(),
        Partial(),
    )
    # output, attn, q, k, v
    placements: list[PlacementList] = [
        [whole] * 5,
        *([Shard(dim)] * 5 for dim in range(dims - 2)),
        [rows, rows, rows, whole, whole],  # M
        [sums, columns, whole, rows, rows],  # N
        [columns, whole, whole, whole, columns],  # E
    ]
    return expand_to_full_mesh_op_strategy(mesh, op_schema, placements, input_index=2)


# Operands may be None, so their positions tell calls apart.
@register_op_strategy(aten._attn_backward.default, RuntimeSchemaInfo(0))
def attn_backward_strategy(op_schema: OpSchema) -> OpStrategy:
    """Gradients are sums over the sharded dimension that they lack.

    All are linear in the incoming gradients. Where those and v are sharded by E, their
    product is a sum over E, to which grad_attn contributes once.
    """
    *operands, output_mask = op_schema.args_schema
    mesh, dims = (
        operands[5].mesh,
        len(operands[5].shape),
    )  # of attn, which is always there
    rows, columns, whole, sums = (
        Shard(dims - 2),
        Shard(dims - 1),
        Replicate(),
        Partial(),
    )
    # grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn
    placements: list[PlacementList] = [
        [whole] * 9,
        *([Shard(dim)] * 9 for dim in range(dims - 2)),
        [rows, sums, sums, rows, rows, rows, whole, whole, rows],  # M
        [sums, rows, rows, whole, columns, whole, rows, rows, columns],  # N
        [sums, sums, columns, columns, sums, whole, whole, columns, whole],  # E
        [columns, columns, whole, whole, whole, columns, columns, whole, whole],  # D
    ]
    given = [x is not None for x in operands]
    # A gradient is there if it is wanted and has a term.
    terms = any(given[:2]), any(given[:2]), given[0]
    present = [*(x and y for x, y in zip(output_mask, terms)), *given]
    placements = [
        [x if there else None for x, there in zip(row, present)] for row in placements
    ]
    return expand_to_full_mesh_op_strategy(mesh, op_schema, placements, input_index=3)
