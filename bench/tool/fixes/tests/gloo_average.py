"""The average over two processes by gloo, which has had sums alone."""

import os
import tempfile

import torch
import torch.distributed as dist


def work(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    value = torch.tensor([1.0, 2.0]) * (rank + 1)
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    assert value.tolist() == [1.5, 3.0], value
    dist.destroy_process_group()


with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "store")
    torch.multiprocessing.start_processes(work, (file,), nprocs=2, start_method="fork")
