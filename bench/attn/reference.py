"""What every measurement compares torch.attn with: composition, and the operations that it counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Attn = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def composition(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(q @ k.mT)
    return attn @ v, attn


def require_attn(build: str = "python -m fork build") -> None:
    """Ends the program with one sentence if this torch has no torch.attn."""
    if not hasattr(torch, "attn"):
        raise SystemExit(f"bench: this torch has no torch.attn; run `{build}` first")


def flop(kind: str, n: int, d: int, e: int) -> float:
    """Forward 2 N^2 (D + E), backward twice that."""
    return {"forward": 2.0, "backward": 4.0, "both": 6.0}[kind] * n * n * (d + e)
