"""Tests that some of torch's own operators fail.

PyTorch lists such failures in its test files, by test and operator. This list has only those that a command of this
repository has met, and each was examined. They are expected failures: if PyTorch fixes an operator, its test reports an
unexpected success. An operator of the stack may not be in the list.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo


@dataclass(frozen=True)
class Known:
    """One operator (with its variant, dotted) that fails one test, and why."""

    op: str
    test: str
    why: str
    dtypes: tuple[torch.dtype, ...] = ()
    """The dtypes with which it fails; an empty tuple means all."""


KNOWN = [
    Known("cummax", "TestOperators.test_vmapvjp_has_batch_rule", "cummaxmin_backward has no batch rule"),
    Known("cummax", "TestDTensorOps.test_dtensor_op_db", "its backward scatters into a tensor that is not distributed"),
    Known(
        "matmul", "TestDTensorOps.test_dtensor_op_db", "the backward of a sharded matrix times a vector breaks strides"
    ),
    Known("nn.functional.linear", "TestDTensorOps.test_dtensor_op_db", "as matmul, with which it computes a vector"),
    Known("mul", "TestDecomp.test_comprehensive", "no sum of complex32, so no broadcast backward", (torch.complex32,)),
]


def _unbacked() -> frozenset[str]:
    """Operators that need to know a size, as the wheel lists them. torch 2.7 has no such list."""
    try:
        from torch.testing._internal.common_ops_unbacked import ops_dde_xfail
    except ImportError:
        return frozenset()
    # Older releases have tuples, newer ones a class.
    names = [x[:2] if isinstance(x, tuple) else (x.op_name, x.variant_name) for x in ops_dde_xfail]
    return frozenset(f"{name}.{variant}" if variant else name for name, variant in names)


UNBACKED = _unbacked()


def expected_failures(
    op: OpInfo, cls_name: str, test_name: str, device_type: str, dtype: torch.dtype | None
) -> list[Callable[..., Any]]:
    """The decorators for one test of one operator."""
    test = f"{cls_name}.{test_name}"
    hit = [k for k in KNOWN if k.op == op.full_name and k.test == test and dtype in (k.dtypes or (dtype,))]
    if test == "TestOpsUnbacked.test_unbacked_op_db" and op.full_name in UNBACKED:
        return [unittest.expectedFailure]
    return [unittest.expectedFailure] if hit else []
