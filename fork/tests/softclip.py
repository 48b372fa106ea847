"""A second stack, of an operator unlike the first: softclip(x, bound) = bound * tanh(x / bound)."""

from __future__ import annotations

from pathlib import Path

from fork.tests.helpers import write

NATIVE = "aten/src/ATen/native/native_functions.yaml"
KERNEL = "aten/src/ATen/native/Softclip.cpp"
INSIDE = "torch/csrc/jit/passes/autocast.cpp"

SERIES = """\
prs:
  - name: explicit
    title: Add softclip
    introduces:
      - aten/src/ATen/native/Softclip.cpp
      - aten/src/ATen/native/native_functions.yaml
      - tools/autograd/derivatives.yaml
      - torch/overrides.py
      - torch/csrc/jit/passes/autocast.cpp
anchors:
  aten/src/ATen/native/native_functions.yaml:
    file: after softmax.int
    only_if_base_has: NextYearsDevice
  tools/autograd/derivatives.yaml:
    file: after softplus
  torch/overrides.py:
    get_testing_overrides.ret: after torch.softmax
  torch/csrc/jit/passes/autocast.cpp:
    piece 1: 'after case aten::softmax:'
"""

FILES = {
    "stack/series.yaml": SERIES,
    NATIVE: (
        "- func: softclip(Tensor self, float bound=1.0) -> Tensor\n"
        "  variants: function\n"
        "  dispatch:\n"
        "    CompositeExplicitAutograd, NextYearsDevice: softclip\n"
    ),
    "tools/autograd/derivatives.yaml": (
        "- name: softclip(Tensor self, float bound=1.0) -> Tensor\n  self: grad * (1 - (result / bound).square())\n"
    ),
    KERNEL: """\
// softclip(x, bound) = bound * tanh(x / bound).
#include <ATen/core/Tensor.h>
#include <ATen/ops/softclip_native.h>

namespace at::native {

Tensor softclip(const Tensor& self, double bound) {
  TORCH_CHECK(bound > 0, "softclip: expected a positive bound, but got ", bound);
  return self.div(bound).tanh().mul(bound);
}

} // namespace at::native
""",
    INSIDE: """\
#if 0 // fragment only
// piece 1
      case aten::softclip:
// end of piece
#endif // fragment only
""",
    "torch/overrides.py": (
        "import torch\n\n\ndef get_testing_overrides():\n"
        "    ret = {torch.softclip: lambda input, bound=1.0: -1}\n    return ret\n"
    ),
}


def stack(root: Path) -> Path:
    return write(root, FILES)


def on_a_wheel(root: Path) -> Path:
    """The stack without the fragment for a source that no wheel has."""
    files = {path: text for path, text in FILES.items() if path != INSIDE}
    own = f"      - {INSIDE}\n", f"  {INSIDE}:\n    piece 1: 'after case aten::softmax:'\n"
    for lines in own:
        assert lines in SERIES
        files["stack/series.yaml"] = files["stack/series.yaml"].replace(lines, "")
    return write(root, files)
