"""asarray leaves requires_grad of a tensor as it is, and a graph intact, unless it is told otherwise."""

import torch

leaf = torch.tensor([1.0, 2.0], requires_grad=True)
assert torch.asarray(leaf).requires_grad and leaf.requires_grad
(torch.asarray(leaf * 3) * 2).sum().backward()
torch.testing.assert_close(leaf.grad, torch.tensor([6.0, 6.0]))
assert not torch.asarray(leaf * 3, requires_grad=False).requires_grad
assert not torch.asarray([1.0, 2.0]).requires_grad
assert torch.asarray([1.0, 2.0], requires_grad=True).requires_grad
assert not torch.asarray(torch.zeros(2)).requires_grad
