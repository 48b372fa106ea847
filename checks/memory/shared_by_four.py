"""`python -m checks.memory.shared_by_four FOLDER`: four processes share an attn that none may hold."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from fork.arguments import Parser, status

RANKS, N, WIDTH = 4, 8192, 16
WHOLE = N * N * 4
REST = 40 << 20  # inputs, outputs, gradients, what is sent, and scratch


def inputs(n: int) -> list[Tensor]:
    """q, k, v and the gradient of output."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, WIDTH, generator=generator) / 4 for _ in range(4)]


def gradients(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    output, attn = torch.attn(*leaves)
    assert attn.shape == (len(q), len(k))
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def shared(tensors: list[Tensor]) -> list[Tensor]:
    """The same by rows of q, on each process the rows of its own."""
    mesh, rows, whole = init_device_mesh("cpu", (RANKS,)), [Shard(0)], [Replicate()]
    given = [distribute_tensor(x, mesh, layout) for x, layout in zip(tensors, (rows, whole, whole, rows), strict=True)]
    found = gradients(*given)
    assert all(isinstance(x, DTensor) for x in found)
    return [x.full_tensor() for x in found if isinstance(x, DTensor)]


def bound(more: int) -> None:
    """From here on this process may have as many bytes more than it has."""
    status = Path("/proc/self/status").read_text()
    now = re.search(r"VmData:\s+(\d+) kB", status)
    assert now is not None
    limit = int(now[1]) * 1024 + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def fails(n: int) -> bool:
    """Whether an attn of n rows is too large here."""
    q, k, v, _ = inputs(N)
    try:
        torch.attn(q[:n], k, v)
    except RuntimeError as error:
        return "can't allocate memory" in str(error)
    return False


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=RANKS)
    shared(inputs(64))  # threads, libraries and connections are there before the bound
    bound(WHOLE // RANKS + REST)
    if not (fails(N) and fails(N // 2)):
        raise SystemExit("the bound does not hold: half of attn fits")
    found = shared(inputs(N))
    if number == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def main() -> None:
    parser = Parser(prog="python -m checks.memory.shared_by_four", description=__doc__)
    parser.add_argument("folder", help="an empty one, where the processes meet")
    folder = parser.parse_args().folder
    mp.spawn(rank, (folder,), RANKS)
    found = torch.load(f"{folder}/found.pt")
    for x, expected in zip(found, gradients(*inputs(N)), strict=True):
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)
    print("equal")


if __name__ == "__main__":
    sys.exit(status("checks.memory.shared_by_four", main))
