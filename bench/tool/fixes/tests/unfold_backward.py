"""unfold_backward refuses a step that leads nowhere, instead of dividing by it."""

import torch

for step in (0, -1):
    try:
        torch.ops.aten.unfold_backward(torch.ones(2, 2), [4], 0, 2, step)
    except RuntimeError as error:
        assert f"expected a positive step, but got {step}" in str(error), error
    else:
        raise AssertionError(f"a step of {step} was taken")
x = torch.ones(4, requires_grad=True)
x.unfold(0, 2, 1).sum().backward()
assert x.grad is not None and x.grad.tolist() == [1, 2, 2, 1]
