"""argmax, argmin and topk refuse complex numbers on every device, also the one that has no numbers."""

import torch

for device in ("meta", "cpu"):
    for dtype in (torch.complex64, torch.complex128):
        for shape in ((), (3,), (2, 3)):
            x = torch.zeros(shape, dtype=dtype, device=device)
            for call in (torch.argmax, torch.argmin, lambda t: torch.topk(t, 1)):
                try:
                    call(x)
                except RuntimeError as error:
                    assert "expected real numbers" in str(error), error
                else:
                    raise AssertionError(f"{call} took {dtype} on {device}")
assert torch.argmax(torch.tensor([1.0, 3.0, 2.0])) == 1
assert torch.topk(torch.tensor([1.0, 3.0, 2.0]), 1).indices.item() == 1
