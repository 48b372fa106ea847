"""Checkouts of PyTorch: a stack as commits on one, and a branch of one as a stack."""
