"""A storage whose memory is a file's makes new ones, in memory of its own."""

import tempfile

import torch

with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(range(8)))
    file.flush()
    for shared in (False, True):
        storage = torch.UntypedStorage.from_file(file.name, shared, 8)
        new = storage.new()
        assert new.nbytes() == 0 and new.resizable()
        new.resize_(4)
        new.fill_(7)
        assert list(new) == [7] * 4 and list(storage) == list(range(8))
