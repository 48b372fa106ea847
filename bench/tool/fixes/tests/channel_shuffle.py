"""native_channel_shuffle names a number of groups or dimensions that it cannot take, instead of ending the process."""

import torch

for device in ("meta", "cpu"):
    for shape, groups in (((1, 4, 2, 2), 0), ((1, 4, 2, 2), -1), ((1, 4, 2, 2), 3), ((4, 2), 2), ((1, 4, 2), 8)):
        try:
            torch.native_channel_shuffle(torch.zeros(shape, device=device), groups)
        except RuntimeError as error:
            assert "native_channel_shuffle: expected" in str(error), error
        else:
            raise AssertionError(f"{shape} in {groups} groups was taken on {device}")
x = torch.arange(8.0).reshape(1, 4, 2, 1)
torch.testing.assert_close(torch.native_channel_shuffle(x, 2), x[:, [0, 2, 1, 3]])
