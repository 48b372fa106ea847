"""`python -m bench.coverage`: how many of PyTorch's C++ sources a branch can change on an installed wheel."""
