"""Inductor calls attn and its backward as they are, so it has no decomposition for them."""

import torch

aten = torch.ops.aten  # fragment only

decomps_to_exclude = [
    # one kernel each, see lowering.py
    aten.attn,
    aten._attn_backward,
]
