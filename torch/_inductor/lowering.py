"""attn and its backward are called where decomposition.py keeps them."""

import torch
from torch._inductor.lowering import make_fallback

aten = torch.ops.aten  # fragment only

make_fallback(aten.attn, warn=False, override_decomp=True)
make_fallback(aten._attn_backward, warn=False, override_decomp=True)
