"""attn and its backward stay whole under Inductor, which by default does not fuse tanh with the products."""

import torch
from torch._inductor.lowering import make_fallback

aten = torch.ops.aten  # fragment only

make_fallback(aten.attn, warn=False)
make_fallback(aten._attn_backward, warn=False)
