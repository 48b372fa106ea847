"""Measurements of torch.attn on the CPU: speed, memory, overhead."""
