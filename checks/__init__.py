"""Tests of this stack: CUDA kernels in an emulator, the binary, examples, the guide, the stack on a small PyTorch."""
