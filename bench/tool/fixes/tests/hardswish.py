"""The gradient of hardswish is 0 up to -3 and 1 from 3 on, in each dtype, in vectors and in what is left of them."""

import torch

for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    for count in (1, 7, 64, 1027):
        for at, slope in ((-3.0, 0.0), (3.0, 1.0), (-4.0, 0.0), (4.0, 1.0), (0.0, 0.5)):
            x = torch.full((count,), at, dtype=dtype, requires_grad=True)
            torch.nn.functional.hardswish(x).sum().backward()
            torch.testing.assert_close(x.grad, torch.full_like(x, slope))
