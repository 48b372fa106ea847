"""The CUDA kernels without a GPU: their arithmetic in an emulator, their binary, and their machine code."""
