"""TestInductorOpInfo of inductor/test_torchinductor_opinfo.py, and TestOpsUnbacked of test_ops_unbacked.py."""

from __future__ import annotations

import copy
import functools
import unittest
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch.testing._internal.common_device_type import onlyNativeDeviceTypes
from torch.testing._internal.common_utils import TestCase, suppress_warnings
from torch.testing._internal.inductor_utils import HAS_CPU, HAS_GPU
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from suites.opinfo import arguments, dense_db, differentiable, opinfo, tensors

COMPILED_DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)


class TestInductorOpInfo(TestCase):
    @onlyNativeDeviceTypes
    @suppress_warnings
    # Operators may fall back to eager only by make_fallback, not because Inductor does not know them.
    @torch._inductor.config.patch(implicit_fallbacks=False, fallback_random=True)
    @opinfo(dense_db, allowed_dtypes=COMPILED_DTYPES)
    def test_comprehensive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The first sample that is not empty gives eager's values and gradients, compiled in one graph."""
        if not (HAS_CPU if torch.device(device).type == "cpu" else HAS_GPU):
            raise unittest.SkipTest("Inductor has no compiler for this device")
        torch._dynamo.reset()
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        samples = functools.partial(op.sample_inputs, device, dtype, requires_grad=with_grad)
        # Not all samples at once: a failure names the last one that was asked for.
        full = (s for s in samples() if tensors(arguments(s)) and all(t.numel() for t in tensors(arguments(s))))
        sample = next(full, None) or next(iter(samples()))

        def run(fn: Any) -> tuple[Any, Any]:
            torch.manual_seed(0)
            args, kwargs = _fresh(sample)
            result = fn(*args, **kwargs)
            outputs = differentiable(sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result)
            inputs = differentiable((args, kwargs))
            if not outputs or not inputs:
                return result, ()
            torch.manual_seed(1)
            grads = [torch.randn_like(t) for t in outputs]
            return result, torch.autograd.grad(outputs, inputs, grads, allow_unused=True)

        expected, expected_grads = run(op.get_op())
        compiled = torch.compile(op.get_op(), backend="inductor", fullgraph=True)
        actual, actual_grads = run(compiled)
        tolerance: dict[str, Any] = {}
        if dtype is torch.float16:
            tolerance = {"atol": 1e-3, "rtol": 2e-3}  # Compiled code may keep float32 between two operators.
        self.assertEqual(pytree.tree_leaves(actual), pytree.tree_leaves(expected), **tolerance)
        for i, (got, want) in enumerate(zip(actual_grads, expected_grads)):
            self.assertEqual(got, want, msg=lambda text, i=i: f"gradient {i}: {text}", **tolerance)


class TestOpsUnbacked(TestCase):
    @suppress_warnings
    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_unbacked_op_db(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The operator traces into one graph if all sizes of 2 and more are unbacked: no check needs a size."""
        tested = False
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = copy.deepcopy(arguments(sample))
            sizes = [(t, d) for t in tensors((args, kwargs)) for d, size in enumerate(t.shape) if size >= 2]
            if not sizes:
                continue
            torch._dynamo.reset()
            for tensor, dim in sizes:
                torch._dynamo.decorators.mark_unbacked(tensor, dim)
            torch.compile(op.op, backend="eager", fullgraph=True)(*args, **kwargs)
            tested = True
        if not tested:
            self.skipTest("no sample has a size of 2 or more")


def _fresh(sample: SampleInput) -> Any:
    """The sample's arguments with copies of its tensors, so that two runs do not share gradients."""

    def fresh(t: torch.Tensor) -> torch.Tensor:
        return t.detach().clone().requires_grad_(t.requires_grad)

    return pytree.tree_map_only(torch.Tensor, fresh, arguments(sample))
