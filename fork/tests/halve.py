"""The smallest stack that builds, of one operator in one line: halve(x) = x / 2."""

from __future__ import annotations

from pathlib import Path

from fork.tests.helpers import write

NATIVE = "aten/src/ATen/native/native_functions.yaml"
KERNEL = "aten/src/ATen/native/Halve.cpp"

FILES = {
    "stack/series.yaml": f"""\
prs:
  - name: composite
    title: Add halve
    introduces:
      - {KERNEL}
      - {NATIVE}
      - torch/overrides.py
anchors:
  {NATIVE}:
    file: after softmax.int
  torch/overrides.py:
    get_testing_overrides.ret: after torch.softmax
""",
    NATIVE: "- func: halve(Tensor self) -> Tensor\n  variants: function\n",
    KERNEL: """\
#include <ATen/core/Tensor.h>
#include <ATen/ops/halve_native.h>

namespace at::native {

Tensor halve(const Tensor& self) {
  return self.div(2);
}

} // namespace at::native
""",
    "torch/overrides.py": (
        "import torch\n\n\ndef get_testing_overrides():\n    ret = {torch.halve: lambda input: -1}\n    return ret\n"
    ),
}


def stack(root: Path) -> Path:
    return write(root, FILES)
