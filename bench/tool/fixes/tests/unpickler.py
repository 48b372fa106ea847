"""A tensor in a file that names no function to rebuild it is refused, and one that does is read."""

import io
import zipfile

import torch


def read(pickled: bytes) -> object:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return torch._C._pickle_load_obj(file.getvalue())


assert read(b"\x80\x02K\x05.") == 5
try:
    read(b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(NN)}tR.")
except RuntimeError as error:
    assert "expected a function" in str(error), error
else:
    raise AssertionError("a tensor was made of nothing")
