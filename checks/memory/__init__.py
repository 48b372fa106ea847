"""The memory of torch.attn: nothing beyond an end is touched, a failed allocation loses nothing, peaks are known."""
