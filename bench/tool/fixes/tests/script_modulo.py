"""In TorchScript, what %= leaves has the sign of the divisor, as in Python: of numbers, tensors and elements."""

import torch


def number(n: int, x: float) -> tuple[int, float]:
    n %= 3
    x %= -2.5
    return n, x


def tensor(x: torch.Tensor, y: float) -> torch.Tensor:
    x %= y
    x[1:] %= -2
    return x


for n, x in ((-7, 7.0), (7, -7.0), (-1, -1.0)):
    assert torch.jit.script(number)(n, x) == number(n, x), (n, x)
    values = torch.tensor([n, x, -x, -n])
    scripted = values.clone()
    torch.jit.script(tensor)(scripted, 3.5)
    torch.testing.assert_close(scripted, tensor(values.clone(), 3.5))
