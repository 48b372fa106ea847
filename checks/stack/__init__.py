"""The stack as a whole: as commits on a checkout and back, by PyTorch's own linters, and without distributed."""
