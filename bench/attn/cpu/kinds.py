"""What is timed, and by which routes beside torch.attn, by their names in the results."""

KINDS = ("forward", "backward", "both", "double backward", "forward AD")
MASKS = ("grad_q", "grad_k", "grad_v")
"""Backward where one input alone requires a gradient."""
GIVEN = ("of attn", "of both")
"""Backward where attn has a gradient, alone or beside output's."""
SHARED = "forward, shared k and v"
"""A batch of q against one k and v, which torch.attn serves by vmap."""
BATCHED = ("vmap", "loop", "SDPA")
CAST = "in float32"
"""Composition in float32, the rival where the processor multiplies 16 bits slowly."""
