"""An observer's channel axis lies within the dimensions, or is refused."""

import torch


def observe(axis: int) -> torch.Size:
    on, scale, zero_point = torch.ones(1, dtype=torch.int64), torch.ones(2), torch.zeros(2, dtype=torch.int32)
    limits = torch.full((2,), -0.5), torch.full((2,), 0.5)
    x = torch.tensor([[-1.0, 0.5], [0.25, 2.0]]).unsqueeze(2)
    return torch.fused_moving_avg_obs_fake_quant(
        x, on, on, *limits, scale, zero_point, 1.0, 0, 255, axis, True, False
    ).shape


for axis in (-1250999896764, -1, 3):
    try:
        observe(axis)
    except RuntimeError as error:
        assert "expected an axis of 3 dimensions" in str(error), error
    else:
        raise AssertionError(f"axis {axis} was taken")
assert observe(0) == (2, 2, 1)
