"""Where a number stands for a tuple of it, the message about a wrong argument says so."""

import torch

x = torch.ones(1, 2, 3)
for arguments, expected in (
    ((torch.max_pool1d, x, "a"), "argument 'kernel_size' (position 2) must be int or tuple of ints, not str"),
    ((torch.max_pool1d, x, 1, 1.5), "argument 'stride' (position 3) must be int or tuple of ints, not float"),
    ((torch.flip, x, "a"), "argument 'dims' (position 2) must be tuple of ints, not str"),
):
    function, *rest = arguments
    try:
        function(*rest)
    except TypeError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"{rest} were taken")
assert torch.max_pool1d(x, 3).shape == torch.max_pool1d(x, (3,)).shape == (1, 2, 1)
