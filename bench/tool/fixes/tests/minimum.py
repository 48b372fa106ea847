"""maximum and minimum take a number, with its gradient, and promote dtypes by it."""

import torch

x = torch.tensor([1.0, 3.0], requires_grad=True)
assert torch.maximum(x, 2).tolist() == [2, 3] and torch.maximum(x, 2.0).dtype == torch.float32
assert torch.minimum(x, 2).tolist() == [1, 2] and torch.minimum(x, float("inf")).tolist() == [1, 3]
assert torch.minimum(torch.tensor([1, 3]), 2.5).tolist() == [1, 2.5]
torch.maximum(x, 2).sum().backward()
assert x.grad is not None and x.grad.tolist() == [0, 1]
assert torch.maximum(x, x + 1).tolist() == x.maximum(x + 1).tolist() == [2, 4]
assert torch.ops.aten.maximum.Scalar(x, 2).tolist() == [2, 3]
