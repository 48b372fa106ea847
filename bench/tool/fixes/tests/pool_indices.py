"""The gradient of adaptive_max_pool2d takes an index for each of its elements."""

import torch

x, grad = torch.ones(1, 4, 4, 4), torch.ones(1, 4, 2, 2)
for shape in ((1, 4, 3, 3), (1, 4, 2, 1), (4, 2, 2), (0,)):
    try:
        torch.ops.aten.adaptive_max_pool2d_backward(grad, x, torch.zeros(shape, dtype=torch.int64))
    except RuntimeError as error:
        assert "expected an index for each" in str(error), error
    else:
        raise AssertionError(f"indices of shape {shape} were taken")
x = torch.arange(16.0).reshape(1, 1, 4, 4).requires_grad_()
torch.nn.functional.adaptive_max_pool2d(x, 2).sum().backward()
assert x.grad is not None and x.grad.flatten().nonzero().flatten().tolist() == [5, 7, 13, 15]
