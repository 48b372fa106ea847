"""Measurements of torch.attn: speed, memory, the cost of a call, the error of tanh."""
