"""autograd.grad says which of its inputs the output does not depend on."""

import torch

x, y, z = (torch.ones(2, requires_grad=True) for _ in range(3))
for inputs, index in (((x, z), 1), ((z, x, y), 0), ((x, y, z), 2)):
    try:
        torch.autograd.grad((x * y).sum(), inputs)
    except RuntimeError as error:
        assert f"Element {index} of the differentiated Tensors" in str(error), error
    else:
        raise AssertionError("an input was not used")
assert torch.autograd.grad((x * y).sum(), (x, z), allow_unused=True)[1] is None
