"""A PyTorch of a few lines per file: the places that this project's stack goes to, at their paths, written here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest import MonkeyPatch

from fork.cli import main
from fork.tests.helpers import QUIET_GIT, committed

SPACE = "namespace torch::autograd::generated::details"

FILES = {
    "aten/src/ATen/native/native_functions.yaml": """\
- func: atleast_3d(Tensor self) -> Tensor
  dispatch:
    SparseCPU, SparseCUDA, SparseMPS: atleast_3d

# The batched product.
- func: baddbmm(Tensor self, Tensor batch1, Tensor batch2) -> Tensor
""",
    "tools/autograd/derivatives.yaml": """\
- name: atan2(Tensor self, Tensor other) -> Tensor
  self, other: atan2_backward(grad, self, other)

- name: baddbmm(Tensor self, Tensor batch1, Tensor batch2) -> Tensor
  self: grad
""",
    "tools/autograd/gen_variable_type.py": """\
GRADIENT_IMPLEMENTED_FOR_COMPLEX = {
    "addr",
    "sum",
}
""",
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
    "aten/src/ATen/autocast_mode.h": """\
#pragma once
#include <ATen/ATen.h>

#define AT_FORALL_LOWER_PRECISION_FP(_) \\
  _(addmm)                              \\
  _(addr)                               \\
  _(mm)
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
    "torch/csrc/autograd/FunctionsManual.h": f"""\
#pragma once
#include <ATen/ATen.h>

{SPACE} {{

Tensor values_backward(const Tensor& grad, const Tensor& self);

}} // {SPACE}
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
    "torch/overrides.py": """\
import torch


def get_testing_overrides():
    ret = {
        torch.atleast_3d: lambda *tensors: -1,
        torch.baddbmm: lambda input, batch1, batch2: -1,
    }
    return ret
""",
    "torch/_torch_docs.py": """\
import torch._C
from torch._C import _add_docstr as add_docstr

add_docstr(torch.asarray, "A tensor of what is given.")
""",
    "torch/_dynamo/trace_rules.py": """\
from .variables import TorchInGraphFunctionVariable

torch_c_binding_in_graph_functions = dict.fromkeys(
    [
        "torch.atanh",
        "torch.baddbmm",
    ],
    TorchInGraphFunctionVariable,
)
""",
    "torch/testing/_internal/common_methods_invocations.py": """\
import math
from functools import partial

import numpy as np
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import floating_and_complex_types_and
from torch.testing._internal.opinfo.core import (
    L, M, S,
    ErrorInput,
    OpInfo,
    SampleInput,
)


def sample_inputs_addr(op_info, device, dtype, requires_grad, **kwargs):
    yield SampleInput(make_tensor((S, M), device=device, dtype=dtype))


op_db: list[OpInfo] = [
    OpInfo('atanh',
           ref=np.arctanh),
    OpInfo('baddbmm'),
]
""",
    "torch/testing/_internal/autocast_test_lists.py": """\
import torch


class AutocastTestLists:
    def __init__(self, dev):
        self.torch_fp16 = [
            ("addr", mat0_fp32 + pointwise0_fp32),
            ("mm", mat0_fp32 + mat1_fp32),
        ]


class AutocastCPUTestLists:
    def __init__(self, dev):
        self.torch_16 = [
            ("addbmm", mat0_fp32 + mat1_fp32),
            ("mm", mat0_fp32 + mat1_fp32),
        ]
""",
    "torch/_decomp/decompositions.py": """\
import torch
from torch import Tensor
from torch._decomp import register_decomposition

aten = torch.ops.aten


@register_decomposition(aten.addmv)
def addmv(self: Tensor, mat1: Tensor, vec: Tensor):
    return self + mat1 @ vec
""",
    "torch/_inductor/lowering.py": """\
import torch

aten = torch.ops.aten


def make_fallback(op, warn=True):
    pass


make_fallback(aten._addmm_activation, warn=False)
""",
    "torch/_functorch/partitioners.py": """\
import torch

aten = torch.ops.aten


def get_default_op_list():
    compute_intensive_ops = [
        aten.addmm,
        aten.upsample_bilinear2d,
    ]
    return compute_intensive_ops
""",
    "torch/distributed/tensor/_ops/_matrix_ops.py": """\
import torch
from torch.distributed.tensor._op_schema import (
    OpSchema,
    OpStrategy,
)
from torch.distributed.tensor._ops.utils import (
    register_op_strategy,
)
from torch.distributed.tensor.placement_types import (
    Replicate,
    Shard,
)

aten = torch.ops.aten


@register_op_strategy(aten.mm.default)
def mm_strategy(op_schema: OpSchema) -> OpStrategy:
    return OpStrategy([])
""",
    "torch/utils/flop_counter.py": """\
import torch

aten = torch.ops.aten


def register_flop_formula(targets):
    return lambda formula: formula


@register_flop_formula(aten.baddbmm)
def baddbmm_flop(self_shape, a_shape, b_shape, out_shape=None, **kwargs) -> int:
    return 0


flop_registry = {
    aten.baddbmm: baddbmm_flop,
    aten.convolution: conv_flop,
}
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
    "torch/_decomp/__init__.py": """\
import torch


def get_decompositions(aten_ops):
    return {}


def _core_aten_decompositions_post_autograd() -> dict[
    torch._ops.OperatorBase, Callable
]:
    aten = torch.ops.aten
    return get_decompositions(
        [
            aten.arange.default,
            aten.arange.start,
            aten.avg_pool2d_backward,
        ]
    )
""",
    "torch/_inductor/decomposition.py": """import torch

aten = torch.ops.aten

decomps_to_exclude: list[torch._ops.OpOverload | torch._ops.OpOverloadPacket] = [
    aten._unsafe_index,
    aten.baddbmm,  # upcasts to fp32, perf issue
]

remove_decompositions(decompositions, decomps_to_exclude)


@register_decomposition([aten.empty_permuted.default])
def empty_permuted(size, physical_layout, **options):
    return aten.empty(size, **options).permute(physical_layout)
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


@contextmanager
def applied(folder: Path, files: Mapping[str, str] = FILES) -> Iterator[Path]:
    """A checkout of these files with the stack on a branch, in an environment where git asks nobody."""
    with MonkeyPatch.context() as patch:
        for name, value in QUIET_GIT.items():
            patch.setenv(name, value)
        path = committed(folder, files)
        assert main(["apply", str(path)]) == 0
        yield path
