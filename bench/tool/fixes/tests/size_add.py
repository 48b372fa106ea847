"""A sum with a torch.Size is one, on whichever side it stands; with a list there is none."""

import operator

import torch

size = torch.Size([2, 3])
for found in ((4, 5) + size, () + size, (4,) + size + (5,)):
    assert type(found) is torch.Size, type(found)
assert (4, 5) + size == (4, 5, 2, 3) and size + (4, 5) == torch.Size([2, 3, 4, 5])
assert type(size + size) is type(size + (1,)) is type(size * 2) is type(size[:1]) is torch.Size
for left, right in ((size, [1]), ([1], size), (size, 1)):
    try:
        operator.add(left, right)
    except TypeError:
        continue
    raise AssertionError(f"{left} + {right} was taken")
try:
    ("a",) + size
except TypeError as error:
    assert "takes an iterable of 'int'" in str(error), error
