"""embedding_bag of indices without an offset raises in each dtype and mode, instead of writing out of bounds."""

import torch
from torch.nn.functional import embedding_bag

none = torch.zeros(0, dtype=torch.int64)
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    weight = torch.ones(3, 10, dtype=dtype)
    for mode in ("sum", "mean", "max"):
        try:
            embedding_bag(torch.zeros(6, dtype=torch.int64), weight, none, mode=mode)
        except RuntimeError as error:
            assert "embedding_bag: expected an offset for 6 indices" in str(error), error
        else:
            raise AssertionError(f"{dtype} and {mode} without an offset were taken")
    assert embedding_bag(none, weight, none, mode="sum").shape == (0, 10)
sums = embedding_bag(torch.tensor([0, 1, 2]), torch.eye(3), torch.tensor([0, 1]), mode="sum")
torch.testing.assert_close(sums, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
