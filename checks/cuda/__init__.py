"""The CUDA kernels without a GPU: their arithmetic in an emulator, and their binary."""
