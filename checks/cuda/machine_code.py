"""The machine code of CUDA kernels, as cuobjdump lists it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from fork import process
from fork.engine.wheel import base as bases
from fork.errors import ForkError


def cuobjdump() -> str | None:
    """The toolkit's, or the one that Triton brings with a CUDA build of torch."""
    beside = bases.installed().site / "triton/backends/nvidia/bin/cuobjdump"
    return shutil.which("cuobjdump") or (str(beside) if beside.is_file() else None)


def inspected(file: Path, *options: str) -> str:
    """cuobjdump's output with readable names, or ForkError."""
    tool = cuobjdump()
    if tool is None:
        raise ForkError("cuobjdump is neither on the path nor with Triton: `pip install nvidia-cuda-cuobjdump` has it")
    said = process.run([tool, *options, file], f"cuobjdump cannot read {file}")
    names = subprocess.run(["c++filt"], input=said, capture_output=True, text=True, check=True).stdout
    return names.replace("at::native::attn_fused::", "").replace("> >", ">>")


def functions(file: Path, *options: str) -> dict[str, str]:
    """The listing of every kernel."""
    said = inspected(file, "-sass", *options)
    return dict(re.findall(r"Function : (?:void )?([^\n(]*)[^\n]*\n(.*?)(?=\n\s*Function :|\Z)", said, re.S))
