"""TestEagerFusionOpInfo of functorch/test_aotdispatch.py: values and gradients through AOTAutograd."""

from __future__ import annotations

import inspect

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo
from torch.testing._internal.optests import aot_autograd_check

from suites.fake import needs_data
from suites.opinfo import arguments, dense_db, opinfo

# torch 2.7 lacks this mode.
CAN_DISABLE = "disable_functionalization" in inspect.signature(aot_autograd_check).parameters


class TestEagerFusionOpInfo(TestCase):
    def _check(self, device: str, dtype: torch.dtype, op: OpInfo, dynamic: bool, functionalize: bool = True) -> None:
        if not op.supports_autograd:
            self.skipTest("the operator has no autograd")
        if not functionalize and not CAN_DISABLE:
            self.skipTest("this torch always functionalizes")
        more = {} if functionalize else {"disable_functionalization": True}
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            args, kwargs = arguments(sample)
            try:
                aot_autograd_check(
                    op.op,
                    args,
                    kwargs,
                    dynamic,
                    self.assertRaisesRegex,
                    self.assertEqual,
                    check_gradients="auto",
                    try_check_data_specialization=True,
                    **more,
                )
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                self.assertTrue(needs_data(op, error), f"{error} but the operator carries no such tag")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_aot_autograd_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, dtype, op, dynamic=False)

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_aot_autograd_symbolic_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, dtype, op, dynamic=True)

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_aot_autograd_disable_functionalization_exhaustive(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        self._check(device, dtype, op, dynamic=False, functionalize=False)

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_aot_autograd_disable_functionalization_symbolic_exhaustive(
        self, device: str, dtype: torch.dtype, op: OpInfo
    ) -> None:
        self._check(device, dtype, op, dynamic=True, functionalize=False)
