"""TestProxyTensorOpInfo of test_proxy_tensor.py: make_fx traces the operator, with real, fake and symbolic tensors."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo
from torch.testing._internal.optests import make_fx_check
from torch.utils import _pytree as pytree

from suites.fake import needs_data
from suites.opinfo import arguments, dense_db, opinfo


class TestProxyTensorOpInfo(TestCase):
    def _trace(self, device: str, dtype: torch.dtype, op: OpInfo, mode: str, kind: str = "function") -> None:
        """The traced graph gives eager's values on data other than those it was traced with."""
        fn = op.get_inplace() if kind == "inplace" else op.get_op()
        if fn is None:
            self.skipTest("no in-place variant")
        if kind == "out" and not op.supports_out:
            self.skipTest("no out= variant")
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            if kind == "inplace" and sample.broadcasts_input:
                continue
            args, kwargs = arguments(sample)
            if kind == "out":
                expected = fn(*args, **kwargs)
                kwargs["out"] = pytree.tree_map_only(torch.Tensor, torch.zeros_like, expected)
                if not isinstance(expected, torch.Tensor):
                    kwargs["out"] = tuple(kwargs["out"])
            try:
                make_fx_check(fn, args, kwargs, mode, self.assertEqual, randomize_data=kind == "function")
            except (DynamicOutputShapeException, DataDependentOutputException) as error:
                self.assertTrue(needs_data(op, error), f"{error} but the operator carries no such tag")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_make_fx_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._trace(device, dtype, op, "real")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_make_fx_fake_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._trace(device, dtype, op, "fake")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_make_fx_symbolic_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._trace(device, dtype, op, "symbolic")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_make_fx_symbolic_exhaustive_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._trace(device, dtype, op, "symbolic", "inplace")

    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_make_fx_symbolic_exhaustive_out(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._trace(device, dtype, op, "symbolic", "out")
