"""TestVmapOperatorsOpInfo of functorch/test_vmap.py: vmap of the operator over every choice of batched inputs."""

from __future__ import annotations

import contextlib

import torch
from torch.testing._internal.common_device_type import OpDTypes, tol, toleranceOverride
from torch.testing._internal.common_utils import TestCase, suppress_warnings
from torch.testing._internal.opinfo.core import OpInfo

from suites.batching import batches, inside_idle_vmap, loop, samples_with_twins
from suites.functorch import no_vmap_fallback
from suites.opinfo import dense_db, opinfo, with_tensors

loose = toleranceOverride({torch.float32: tol(atol=1e-4, rtol=1e-4)})


def anything(t: torch.Tensor) -> bool:
    """All tensors are batched, also integers."""
    return True


class TestVmapOperatorsOpInfo(TestCase):
    def _check(self, device: str, dtype: torch.dtype, op: OpInfo, fallback: bool) -> None:
        """vmap equals the loop; a call that raises alone raises under vmap."""
        allow = contextlib.nullcontext() if fallback else no_vmap_fallback()
        with allow:
            for sample, twin in samples_with_twins(op, device, dtype, requires_grad=False):
                fn, values = with_tensors(op, sample, inputs=anything, outputs=anything)
                _, twins = with_tensors(op, twin, inputs=anything, outputs=anything)
                if not values or not fn(*values):
                    continue
                for in_dims, batched in batches(values, twins):
                    got = torch.vmap(fn, in_dims)(*batched)
                    want = loop(fn, in_dims, batched)
                    self.assertEqual(got, want, msg=lambda text, d=in_dims: f"in_dims={d}: {text}")
                    self.assertEqual(inside_idle_vmap(fn, in_dims, batched), got, msg=f"in_dims={in_dims}, nested")
            if op.error_inputs_func is None:
                return
            for error in op.error_inputs(device):
                fn, values = with_tensors(op, error.sample_input, inputs=anything, outputs=anything)
                if len({t.device for t in values}) > 1:
                    continue
                for in_dims, batched in batches(values, values):
                    with self.assertRaises(Exception, msg=f"in_dims={in_dims}"):  # noqa: B017 - any exception will do
                        torch.vmap(fn, in_dims)(*batched)

    @suppress_warnings
    @opinfo(dense_db, dtypes=OpDTypes.any_one)
    @loose
    def test_vmap_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, dtype, op, fallback=True)

    @suppress_warnings
    @opinfo(dense_db, dtypes=OpDTypes.any_one)
    @loose
    def test_op_has_batch_rule(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(device, dtype, op, fallback=False)
