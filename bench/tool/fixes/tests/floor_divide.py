"""The least integer divided by -1 is the least integer, as it is for an addition that is too large."""

import torch

for dtype in (torch.int64, torch.int32, torch.int16, torch.int8):
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least + 1, 7, -7], dtype=dtype)
    found = torch.floor_divide(x, torch.full_like(x, -1))
    assert found.tolist() == [least, -(least + 1), -7, 7], found
    assert torch.div(x, 2, rounding_mode="floor").tolist() == [v // 2 for v in x.tolist()]
assert torch.floor_divide(torch.tensor([255], dtype=torch.uint8), 2).item() == 127
