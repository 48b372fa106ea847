"""`python -m bench.tool.coverage`: how many of PyTorch's C++ sources a branch can change on an installed wheel."""
