"""pixel_shuffle refuses a factor whose square is no integer of 64 bits, instead of dividing by 0."""

import torch

for factor in (2**31, 2**32, 2**62, 4323455642275676160):
    try:
        torch.pixel_shuffle(torch.zeros(1, 4, 2, 2), factor)
    except RuntimeError as error:
        assert "expected an upscale_factor whose square" in str(error), error
    else:
        raise AssertionError(f"{factor} was taken")
assert torch.pixel_shuffle(torch.arange(4.0).reshape(1, 4, 1, 1), 2).flatten().tolist() == [0, 1, 2, 3]
