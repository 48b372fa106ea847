"""vmap of a view as another dtype is the view of each element, of the same memory, or refused as for one."""

import torch

x = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
for dtype in (torch.uint8, torch.int16, torch.float32, torch.int64):
    for dim in (0, 1):
        found = torch.vmap(lambda one, dtype=dtype: one.view(dtype), in_dims=dim)(x)
        expected = torch.stack([one.view(dtype) for one in x.unbind(dim)])
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
        assert found.data_ptr() == x.data_ptr()
try:
    torch.vmap(lambda one: one.view(torch.uint8))(torch.zeros(4))
except RuntimeError as error:
    assert "single element" in str(error), error
else:
    raise AssertionError("elements of a batch were taken apart")
