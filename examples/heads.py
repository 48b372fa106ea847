"""Trains a layer of heads over a batch with torch.attn: on one process, or with its heads split over several.

`python examples/heads.py` runs on one process; `torchrun --nproc-per-node 4 examples/heads.py` on four, each of which
has the weights of its heads and runs the operator on them. Both print the same losses.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BATCH, POINTS, FEATURES, HEADS, STEPS = 6, 96, 64, 4, 40


class Heads(nn.Module):
    """x (batch, N, features) -> (batch, N, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        output, _ = torch.attn(q, k, v)  # (batch, heads, N, features / heads)
        return self.out(output.transpose(1, 2).flatten(2) / x.shape[1])


def split(layer: Heads) -> None:
    """Gives each process the weights of its heads; a line for each part, and the layer stays as it is written."""
    columns, rows = ColwiseParallel(use_local_output=False), RowwiseParallel()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(layer, mesh, {"query": columns, "key": columns, "value": columns, "out": rows})


def train(distributed: bool = False, compiled: bool = False, dtype: torch.dtype = torch.float32) -> list[float]:
    """The losses of a layer that learns to give each point the mean of its batch."""
    torch.manual_seed(0)
    layer = Heads()
    x = torch.randn(BATCH, POINTS, FEATURES) + torch.randn(BATCH, 1, FEATURES)
    wanted = x.mean(1, keepdim=True).expand_as(x)
    if distributed:
        split(layer)
    run = torch.compile(layer) if compiled else layer
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = (run(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if distributed:
        assert all(isinstance(weight, DTensor) for weight in layer.parameters())
    return losses


def main() -> None:
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    losses = train(distributed)
    if not distributed or dist.get_rank() == 0:
        print(f"{HEADS} heads; processes: {dist.get_world_size() if distributed else 1}")
        print(f"{STEPS} steps; loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
