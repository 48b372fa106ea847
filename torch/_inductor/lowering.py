"""attn and its backward stay whole under Inductor, whose own fusion keeps the N x N products apart from tanh."""

import torch
from torch._inductor.lowering import make_fallback

aten = torch.ops.aten  # fragment only

make_fallback(aten.attn, warn=False)
make_fallback(aten._attn_backward, warn=False)
