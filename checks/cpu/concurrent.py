"""`python -m checks.cpu.concurrent NAME`: torch.attn from many threads and processes; ends with 0 or says why not."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fork.arguments import Parser, status


def step(seed: int) -> list[Tensor]:
    """Values and gradients of one small problem, whose size depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    n, d, e = 5 + 37 * seed % 300, 1 + seed % 70, 1 + seed % 33
    q, k, v = (torch.randn(n, c, generator=generator).mul_(0.3).requires_grad_() for c in (d, d, e))
    output, attn = torch.attn(q, k, v)
    return [output.detach(), attn.detach(), *torch.autograd.grad((output, attn), (q, k, v), (output, attn))]


def same(got: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def threads() -> None:
    """Sixteen Python threads at once, each with results of its own to compare."""
    torch.set_num_threads(2)
    expected = [step(seed) for seed in range(16)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.set_num_threads(2)
        for _ in range(30):
            if not same(step(seed), expected[seed]):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if wrong:
        raise SystemExit(f"wrong in threads: seeds {sorted(set(wrong))}")


def tasks() -> int:
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def fewer() -> None:
    """OpenMP gives fewer threads than are asked for, so each does more than the kernels planned."""
    torch.set_num_threads(1)
    expected = [step(seed) for seed in range(16)]
    asked = 3 + (os.cpu_count() or 1)
    torch.set_num_threads(asked)
    for seed in range(16):
        torch.testing.assert_close(step(seed), expected[seed])
    if tasks() >= asked:
        raise SystemExit(f"no setting of OpenMP is in force: it gave {tasks()} threads")


def forks() -> None:
    """A child made by fork() has one thread, as PyTorch documents, even if more ran in its parent."""
    torch.set_num_threads(1)
    expected = step(7)
    torch.set_num_threads(3)
    step(7)
    if tasks() < 3:
        raise SystemExit("no threads ran")
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if same(step(7), expected) else 1)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("wrong after fork()")


class Steps(Dataset[float]):
    """Item i is a number made by forward and backward of problem i."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, item: int) -> float:
        return float(sum(t.double().sum() for t in step(item)))


def workers() -> None:
    """Worker processes of a DataLoader."""
    torch.set_num_threads(1)
    step(0)
    expected = [Steps()[i] for i in range(len(Steps()))]
    got = [float(x) for x in DataLoader(Steps(), batch_size=None, num_workers=3)]
    if got != expected:
        raise SystemExit("wrong in the workers of a DataLoader")


def main() -> None:
    programs: dict[str, Callable[[], None]] = {f.__name__: f for f in (threads, fewer, forks, workers)}
    parser = Parser(prog="python -m checks.cpu.concurrent", description=__doc__)
    parser.add_argument("name", choices=programs)
    programs[parser.parse_args().name]()


if __name__ == "__main__":
    sys.exit(status("checks.cpu.concurrent", main))
