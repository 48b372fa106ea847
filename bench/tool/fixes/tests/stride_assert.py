"""assert_size_stride takes an operator's name, and says it where a size or a stride is not as expected."""

import torch
from torch._C._dynamo.guards import assert_size_stride

x = torch.ones(2, 3)
assert_size_stride(x, (2, 3), (3, 1))
assert_size_stride(x, (2, 3), (3, 1), "my.op")
for arguments, name in (((2, 3), (1, 2)), "my.op"), (((2, 3, 1), (3, 1, 1)), "my.op"), (((2, 3), (1, 2)), None):
    try:
        assert_size_stride(x, *arguments, *([name] if name else []))
    except AssertionError as error:
        assert ("my.op" in str(error)) == bool(name), error
    else:
        raise SystemExit(f"{arguments} was taken")
