"""attn among the operators whose results the partitioner saves instead of computing them again."""

import torch

aten = torch.ops.aten  # fragment only


def get_default_op_list():
    compute_intensive_ops = [
        aten.attn,
    ]
    return compute_intensive_ops
