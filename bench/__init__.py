"""Measurements of torch.attn: speed, memory and accuracy."""
