"""After a C function of AOTInductor has failed, the process can ask why."""

import ctypes
from pathlib import Path

import torch

library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch.so"))
library.aoti_torch_last_error.restype = ctypes.c_char_p
tensor, one = ctypes.c_void_p(), ctypes.c_int64 * 1
for size, fails in ((3, 0), (-3, 1)):
    arguments = (1, one(size), one(1), library.aoti_torch_dtype_float32(), library.aoti_torch_device_type_cpu(), 0)
    assert library.aoti_torch_empty_strided(*arguments, ctypes.byref(tensor)) == fails
    assert (b"negative dimension" in library.aoti_torch_last_error()) == bool(fails)
