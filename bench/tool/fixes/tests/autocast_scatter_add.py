"""Under autocast, scatter_add of two dtypes is done in the wider one, in place as well as not."""

import torch

x, y = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
index = torch.zeros(2, 3, dtype=torch.int64)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for target, source in ((x, y), (y, x), (x, x), (y, y)):
        found = torch.scatter_add(target, 0, index, source)
        widest = torch.float32 if torch.float32 in (target.dtype, source.dtype) else torch.bfloat16
        assert found.dtype == widest, found.dtype
        torch.testing.assert_close(found, torch.scatter_add(target.to(widest), 0, index, source.to(widest)))
