"""Measurements by hand, whose figures documents show: of torch.attn in attn/, and of the tool in tool/."""
