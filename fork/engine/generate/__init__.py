"""Runs PyTorch's own generators: for what a stack adds, and for what a branch changes in their lists."""
