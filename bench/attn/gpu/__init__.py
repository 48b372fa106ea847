"""Measurements of the CUDA kernels, on a machine with a GPU."""

from collections.abc import Callable

import torch

PRODUCTS = {"aten::mm", "aten::bmm", "aten::matmul"}


def runs_kernels(function: Callable[[], object]) -> bool:
    """Whether a call of attn or of its backward runs fused kernels: composed, it calls ATen's products."""
    with torch.autograd.profiler.profile() as profile:
        function()
    return not PRODUCTS & {event.name for event in profile.function_events}


def peak_memory(function: Callable[[], object]) -> int:
    """Most bytes that a call takes on the device, its results included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
