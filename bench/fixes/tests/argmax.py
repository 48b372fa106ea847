"""argmax, argmin and topk refuse complex numbers, also a single one, for which nothing has to be compared."""

import torch

for dtype in (torch.complex64, torch.complex128):
    for shape in ((1,), (3,), (2, 1), (2, 3)):
        x = torch.zeros(shape, dtype=dtype)
        for call in (lambda t: torch.argmax(t, -1), lambda t: torch.argmin(t, -1), lambda t: torch.topk(t, 1)):
            try:
                call(x)
            except RuntimeError as error:
                assert "expected real numbers" in str(error), error
            else:
                raise AssertionError(f"{dtype} of shape {shape} was taken")
assert torch.argmax(torch.tensor([1.0, 3.0, 2.0])) == 1
assert torch.topk(torch.tensor([1.0, 3.0, 2.0]), 1).indices.item() == 1
