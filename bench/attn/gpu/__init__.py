"""Measurements of the CUDA kernels, on a machine with a GPU."""
