"""The profiler counts the operations of a subtraction as those of an addition."""

import torch
from torch.profiler import ProfilerActivity, profile

x = torch.rand(2, 3)
for name, function in (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul)):
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiled:
        function(x, x)
    counts = [event.flops for event in profiled.key_averages() if event.key == f"aten::{name}"]
    assert counts == [6], (name, counts)
