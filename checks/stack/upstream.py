"""PyTorch as this stack meets it: the installed torch's files, and small ones, written here, where it ships none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest import MonkeyPatch

from checks import ROOT
from fork.cli import main
from fork.engine.wheel import base as bases
from fork.series import Series
from fork.tests.helpers import QUIET_GIT, committed

SERIES = Series.load(ROOT)
BASE = bases.installed()
SPACE = "namespace torch::autograd::generated::details"

FILES = {
    "aten/src/ATen/functorch/BatchRulesDecompositions.cpp": """\
#include <ATen/functorch/BatchRulesHelper.h>

namespace at::functorch {

#define OP_DECOMPOSE(op) m.impl(#op, native::op);

TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
  OP_DECOMPOSE(atleast_3d);
  OP_DECOMPOSE2(atleast_3d, Sequence);
  OP_DECOMPOSE(batch_norm);
}

} // namespace at::functorch
""",
    "aten/src/ATen/autocast_mode.cpp": """\
#include <ATen/autocast_mode.h>

namespace at::autocast {
namespace {
TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
  KERNEL_MPS(addr, lower_precision_fp)
  KERNEL_MPS(matmul, lower_precision_fp)
}
TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  KERNEL_CPU(addbmm, lower_precision_fp)
  KERNEL_CPU(linear, lower_precision_fp)
}
} // namespace
} // namespace at::autocast
""",
    "torch/csrc/jit/passes/autocast.cpp": """\
namespace torch::jit {
namespace {
void handleBlock(Block* block, AutocastContext initial_state) {
  for (Node* node : block->nodes()) {
    switch (node->kind()) {
      case aten::addr:
      case aten::matmul:
        castTensorInputs(node, aten::_autocast_to_reduced_precision, initial_state);
        break;
    }
  }
}
} // namespace
} // namespace torch::jit
""",
    "torch/csrc/autograd/FunctionsManual.cpp": f"""\
#include <torch/csrc/autograd/FunctionsManual.h>

#include <ATen/ATen.h>

{SPACE} {{

Tensor values_backward(const Tensor& grad, const Tensor& self) {{
  return grad;
}}

}} // {SPACE}
""",
    "build_variables.bzl": """\
aten_native_source_codegen_list = [
    "aten/src/ATen/native/cpu/Activation.cpp",
    "aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
]

aten_native_source_non_codegen_list = [
    "aten/src/ATen/native/AffineGridGenerator.cpp",
    "aten/src/ATen/native/AveragePool2d.cpp",
]
""",
    "test/test_namedtuple_return_api.py": """\
import torch
from collections import namedtuple
from torch.testing._internal.common_utils import TestCase

all_operators_with_namedtuple_return = {
    'frexp', 'lu_unpack', 'histogram', 'histogramdd',
    'aminmax'
}


class TestNamedTupleAPI(TestCase):
    def test_namedtuple_return(self):
        a = torch.randn(5, 5)
        op = namedtuple('op', ['operators', 'input', 'names', 'hasout'])
        operators = [
            op(operators=['aminmax'], input=(), names=('min', 'max'), hasout=True),
            op(operators=['frexp'], input=(), names=('mantissa', 'exponent'), hasout=True),
        ]
""",
    "test/inductor/test_torchinductor_opinfo.py": """\
from collections import defaultdict

import torch

f16 = torch.float16

inductor_override_kwargs = defaultdict(dict)

inductor_override_kwargs["cpu"] = {
    # the return value of empty is undefined
    "empty": {"assert_equal": False},
    ("softmax", f16): {"atol": 1e-4, "rtol": 0.02},
    ("polygamma.polygamma_n_0", f16): {"atol": 1e-3, "rtol": 1e-4},
}

inductor_override_kwargs["cuda"] = {
    ("softmax", f16): {"atol": 1e-4, "rtol": 0.02},
}
""",
    "test/test_decomp.py": """\
import torch


def op_assert_ref(test_case, op, test_dtype, i, orig, decomp, ref, args, kwargs):
    tol_table = {
        (torch.float16, torch.ops.aten.mv.default): 1e-5,
        (torch.bfloat16, torch.ops.aten.mv.default): 1e-5,
        (torch.float16, torch.ops.aten.dot.default): 2e-6,
    }
""",
    "docs/source/torch.rst": """\
torch
=====

BLAS and LAPACK Operations
~~~~~~~~~~~~~~~~~~~~~~~~~~

    addr
    baddbmm
""",
    "docs/source/amp.md": """\
# Mixed precision

#### CUDA Ops that can autocast to `float16`

`addr`,
`mm`

#### XPU Ops that can autocast to `float16`

`addr`,
`mm`

#### CPU Ops that can autocast to `bfloat16`

`addbmm`,
`mm`
""",
    "README.md": "Tensors and dynamic neural networks.\n",
}
UPSTREAM = FILES | {path: text for path in SERIES.anchors if (text := BASE.read(path)) is not None}


@contextmanager
def applied(folder: Path) -> Iterator[Path]:
    """A checkout of UPSTREAM with the stack on a branch, in an environment where git asks nobody."""
    with MonkeyPatch.context() as patch:
        for name, value in QUIET_GIT.items():
            patch.setenv(name, value)
        path = committed(folder, UPSTREAM)
        assert main(["apply", str(path)]) == 0
        yield path
