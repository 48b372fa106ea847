"""Differential fuzzing of torch.attn: random cases in random contexts, against wider numbers and eager mode."""
