"""A device's index is taken as it is written, or not at all."""

import torch

for text in ("cuda:128", "cuda:300", "cuda:65536", "cpu:2147483647"):
    try:
        device = torch.device(text)
    except RuntimeError as error:
        assert "Could not parse device index" in str(error), error
    else:
        raise AssertionError(f"{text} became {device}")
assert torch.device("cuda:127").index == 127 and torch.device("cuda").index is None
