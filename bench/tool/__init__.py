"""Measurements of the tool: which changes of PyTorch's sources it can build, and which bugs can be fixed with it."""
