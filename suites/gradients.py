"""TestBwdGradients and TestFwdGradients: gradcheck and gradgradcheck, in reverse and in forward mode, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_device_type import OpDTypes
from torch.testing._internal.common_utils import TestGradients
from torch.testing._internal.opinfo.core import OpInfo

from suites.opinfo import op_db, opinfo

double_precision = partial(opinfo, dtypes=OpDTypes.supported, allowed_dtypes=(torch.double, torch.cdouble))


class TestBwdGradients(TestGradients):
    def _ready(self, op: OpInfo, device: str, dtype: torch.dtype, inplace: bool = False) -> None:
        self._skip_helper(op, device, dtype)
        if inplace and (op.inplace_variant is None or not op.supports_inplace_autograd):
            self.skipTest("no differentiable in-place variant")

    @double_precision(op_db)
    def test_fn_grad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._ready(op, device, dtype)
        self._grad_test_helper(device, dtype, op, op.get_op())

    @double_precision(op_db)
    def test_inplace_grad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._ready(op, device, dtype, inplace=True)
        self._grad_test_helper(device, dtype, op, self._get_safe_inplace(op.get_inplace()))

    @double_precision(op_db)
    def test_fn_gradgrad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._ready(op, device, dtype)
        if not op.supports_gradgrad:
            self.skipTest("the operator cannot be differentiated twice")
        self._check_helper(device, dtype, op, op.get_op(), "bwgrad_bwgrad")

    @double_precision(op_db)
    def test_fn_fail_gradgrad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """An operator without a second derivative raises when asked for one."""
        self._ready(op, device, dtype)
        if op.supports_gradgrad:
            self.skipTest("the operator can be differentiated twice")
        with self.assertRaisesRegex(RuntimeError, "derivative for .* is not implemented"):
            self._check_helper(device, dtype, op, op.get_op(), "bwgrad_bwgrad")

    @double_precision(op_db)
    def test_inplace_gradgrad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._ready(op, device, dtype, inplace=True)
        if not op.supports_gradgrad:
            self.skipTest("the operator cannot be differentiated twice")
        self._check_helper(device, dtype, op, self._get_safe_inplace(op.get_inplace()), "bwgrad_bwgrad")


class TestFwdGradients(TestGradients):
    def _works_or_refuses(self, supported: bool, check: Callable[[], Any]) -> None:
        """An operator whose flag is off raises; it does not return a wrong gradient."""
        if supported:
            check()
            return
        refused = "Trying to use forward AD with .* that does not support it"
        advice = "forward mode works: tell the OpInfo, by supports_forward_ad=True and supports_fwgrad_bwgrad=True"
        with self.assertRaisesRegex(NotImplementedError, refused, msg=advice):
            check()

    @double_precision(op_db)
    def test_fn_fwgrad_bwgrad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Forward over reverse."""
        self._skip_helper(op, device, dtype)
        self._works_or_refuses(
            op.supports_fwgrad_bwgrad,
            lambda: self._check_helper(device, dtype, op, op.get_op(), "fwgrad_bwgrad"),
        )

    def _forward_mode(self, device: str, dtype: torch.dtype, op: OpInfo, variant: Any, batched: bool) -> None:
        self._skip_helper(op, device, dtype)
        self._works_or_refuses(
            op.supports_forward_ad,
            lambda: self._grad_test_helper(
                device,
                dtype,
                op,
                variant,
                check_forward_ad=True,
                check_backward_ad=False,
                check_batched_grad=False,
                check_batched_forward_grad=batched and op.supports_forward_ad,
            ),
        )

    @double_precision(op_db)
    def test_forward_mode_AD(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._forward_mode(device, dtype, op, op.get_op(), op.check_batched_forward_grad)

    @double_precision(op_db)
    def test_inplace_forward_mode_AD(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        if op.inplace_variant is None or not op.supports_inplace_autograd:
            self.skipTest("no differentiable in-place variant")
        variant = self._get_safe_inplace(op.get_inplace())
        self._forward_mode(device, dtype, op, variant, op.check_inplace_batched_forward_grad)
