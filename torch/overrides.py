"""The entry of torch.attn in the table of overridable functions."""

import torch


def get_testing_overrides():
    ret = {
        torch.attn: lambda q, k, v: -1,
    }
    return ret
