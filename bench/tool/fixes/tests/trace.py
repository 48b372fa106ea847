"""The trace of small floating numbers, summed in float32, and of all others as before."""

import torch

for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(dtype)
    assert torch.trace(x).dtype == dtype and torch.trace(x).item() == 15
    assert torch.trace(x.t()[1:]).item() == 18
many = torch.eye(3000, dtype=torch.bfloat16)  # in bfloat16, 256 + 1 is 256
assert torch.trace(many).item() == torch.tensor(3000.0).bfloat16().item()
assert torch.trace(torch.eye(3, dtype=torch.int32)).dtype == torch.int64
