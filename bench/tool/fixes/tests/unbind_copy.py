"""unbind_copy under vmap, over each dimension."""

import torch

x = torch.randn(3, 4, 5)
for dim in (0, 1, -1):
    found = torch.vmap(torch.unbind_copy, in_dims=(0, None))(x, dim)
    expected = torch.unbind(x, dim + 1 if dim >= 0 else dim)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))
