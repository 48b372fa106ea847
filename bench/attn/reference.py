"""What measurements on every device share: composition, whether kernels run instead, and the operations that count."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

Attn = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# Else the profiler tells standard error whenever it begins.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
PRODUCTS = {"aten::mm", "aten::bmm", "aten::matmul"}


def composition(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(q @ k.mT)
    return attn @ v, attn


def runs_kernels(function: Callable[[], object]) -> bool:
    """Whether a call of attn or of its backward runs fused kernels: composed, it calls ATen's products."""
    with torch.autograd.profiler.profile() as profile:
        function()
    return not PRODUCTS & {event.name for event in profile.function_events}


def require_attn(build: str = "python -m fork build") -> None:
    """Ends the program with one sentence if this torch has no torch.attn."""
    if not hasattr(torch, "attn"):
        raise SystemExit(f"bench: this torch has no torch.attn; run `{build}` first")


def flop(kind: str, n: int, d: int, e: int) -> float:
    """Forward 2 N^2 (D + E), backward twice that."""
    return {"forward": 2.0, "backward": 4.0, "both": 6.0}[kind] * n * n * (d + e)
