"""Measurements of the CUDA kernels, on a machine with a GPU."""

from collections.abc import Callable

import torch


def peak_memory(function: Callable[[], object]) -> int:
    """Most bytes that a call takes on the device, its results included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
