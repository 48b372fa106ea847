"""argmax, argmin and topk refuse complex numbers, also a single one, for which nothing has to be compared."""

import torch

for dtype in (torch.complex64, torch.complex128):
    for shape in ((1,), (3,), (2, 1), (2, 3)):
        x = torch.zeros(shape, dtype=dtype)
        for name, argument in (("argmax", -1), ("argmin", -1), ("topk", 1)):
            try:
                getattr(torch, name)(x, argument)
            except RuntimeError as error:
                assert "expected real numbers" in str(error), error
            else:
                raise AssertionError(f"{name} took {dtype} of shape {shape}")
assert torch.argmax(torch.tensor([1.0, 3.0, 2.0])) == 1
assert torch.topk(torch.tensor([1.0, 3.0, 2.0]), 1).indices.item() == 1
