"""A stack of kinds of entries that PyTorch has and `fork new` does not write: structured, in a module, by autogen."""

from __future__ import annotations

from pathlib import Path

from fork.tests.helpers import write

NATIVE = "aten/src/ATen/native/native_functions.yaml"
SOURCE = "aten/src/ATen/native/Ramp.cpp"

FILES = {
    "stack/series.yaml": f"""\
prs:
  - name: ramp
    title: Add ramp
    introduces:
      - {SOURCE}
      - {NATIVE}
anchors:
  {NATIVE}:
    file: after softmax.int
""",
    NATIVE: """\
- func: special_ramp(Tensor self) -> Tensor
  python_module: special
  structured_delegate: special_ramp.out
  variants: function

- func: special_ramp.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  python_module: special
  structured: True
  structured_inherits: TensorIteratorBase
  dispatch:
    CPU: special_ramp_out

- func: ramp_loss(Tensor self) -> Tensor
  python_module: nn

- func: ramp_shift(Tensor self, float by) -> Tensor
  dispatch:
    CompositeExplicitAutograd: ramp_shift
  autogen: ramp_shift.out
""",
    SOURCE: """\
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/ramp_loss_native.h>
#include <ATen/ops/ramp_shift_native.h>
#include <ATen/ops/special_ramp_native.h>

namespace at::meta {

TORCH_META_FUNC(special_ramp)(const Tensor& self) {
  build_borrowing_unary_float_op(maybe_get_output(), self);
}

} // namespace at::meta

namespace at::native {

TORCH_IMPL_FUNC(special_ramp_out)(const Tensor& self, const Tensor& out) {
  at::clamp_min_out(const_cast<Tensor&>(out), self, 0);
}

Tensor ramp_loss(const Tensor& self) {
  return self.clamp_min(0).sum();
}

Tensor ramp_shift(const Tensor& self, double by) {
  return self.sub(by).clamp_min(0);
}

} // namespace at::native
""",
}


def stack(root: Path) -> Path:
    return write(root, FILES)
