"""The gradient of atan2 at the origin is 0, beside other points and alone, and elsewhere it is what it was."""

import torch

y = torch.tensor([0.0, -0.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
x = torch.tensor([0.0, 0.0, 2.0, -3.0], dtype=torch.float64, requires_grad=True)
torch.atan2(y, x).sum().backward()
torch.testing.assert_close(y.grad, torch.tensor([0.0, 0.0, 0.4, -1 / 3], dtype=torch.float64))
torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.0, -0.2, 0.0], dtype=torch.float64))
points = [torch.rand(5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
assert torch.autograd.gradcheck(torch.atan2, points)
assert torch.autograd.gradgradcheck(torch.atan2, points)
