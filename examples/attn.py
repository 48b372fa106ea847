"""Trains a small layer of tanh attention with torch.attn, with gradients through both of its outputs.

Each point belongs to one of two camps. Points of the same camp are friends, and others are rivals. The layer sees only
noisy features of the points. It should learn an `attn` of +1 between friends and -1 between rivals, and an `output`
that is the sum of the friends' values minus the sum of the rivals'. So both outputs have a loss. Points that are not in
the training data show whether the layer learned the camps.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

POINTS, FEATURES, WIDTH, VALUES, STEPS = 192, 24, 8, 3, 250


class TanhAttention(nn.Module):
    """x (N, features), values (N, E) -> output (N, E), attn (N, N)."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(features, width, bias=False)
        self.key = nn.Linear(features, width, bias=False)

    def forward(self, x: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        output, attn = torch.attn(self.query(x), self.key(x), values)
        return output / len(x), attn


def make_data(direction: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, F), values (N, E) and the relation (N, N): +1 between friends, -1 between rivals."""
    camp = torch.randint(0, 2, (POINTS,), generator=generator) * 2.0 - 1.0
    noise = torch.randn(POINTS, FEATURES, generator=generator)
    x = camp[:, None] * 2.5 * direction / direction.norm() + noise
    values = torch.randn(POINTS, VALUES, generator=generator)
    return x, values, camp[:, None] * camp


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    direction = torch.randn(FEATURES, generator=generator)
    x, values, relation = make_data(direction, generator)
    unseen_x, unseen_values, unseen_relation = make_data(direction, generator)
    wanted = relation @ values / POINTS
    layer = TanhAttention(FEATURES, WIDTH)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.003)

    print(f"torch {torch.__version__} from {torch.__path__[0]}")
    print(f"{torch.get_num_threads()} threads, CPU capability {torch.backends.cpu.get_cpu_capability()}")
    print(f"{POINTS} points, {FEATURES} features, q and k {WIDTH} wide\n")
    print(f"{'step':>5} {'loss':>9} {'of output':>10} {'of attn':>9} {'right':>7} {'right, unseen':>14}")
    start = time.perf_counter()
    first = last = float("nan")
    for step in range(STEPS + 1):
        output, attn = layer(x, values)
        loss_output = (output - wanted).square().mean()
        loss_attn = (attn - relation).square().mean()
        loss = loss_output + loss_attn
        if step % 50 == 0:
            right = (attn.sign() == relation).float().mean().item()
            with torch.no_grad():
                unseen = (layer(unseen_x, unseen_values)[1].sign() == unseen_relation).float().mean().item()
            print(
                f"{step:5d} {loss.item():9.4f} {loss_output.item():10.4f} {loss_attn.item():9.4f} "
                f"{right:7.1%} {unseen:14.1%}"
            )
        first, last = (loss.item() if step == 0 else first), loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"\n{STEPS} steps in {time.perf_counter() - start:.2f} s; loss {first:.4f} -> {last:.4f}")
    print(f"attn.grad_fn is {type(attn.grad_fn).__name__}")
    if not last < 0.2 * first:
        raise SystemExit("the loss did not go down as it should")


if __name__ == "__main__":
    main()
