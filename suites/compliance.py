"""TestCompositeCompliance of test_ops.py: tensor subclasses, copy-on-write tensors and replayed views."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.testing._internal import composite_compliance
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo

from suites.opinfo import arguments, differentiable, op_db, opinfo, tensors


def is_strided(value: Any) -> bool:
    """Whether a value is a tensor that can be copy-on-write."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


class TestCompositeCompliance(TestCase):
    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_operator(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Any choice of arguments can be wrapper subclasses, with the same values as a result."""
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = arguments(sample)
            composite_compliance.check_with_mode(op, args, kwargs, self.assertEqual)
            composite_compliance.check_all_permutations(op, args, kwargs, self.assertEqual)

    @opinfo([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float,))
    def test_backward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The backward formula works if inputs and incoming gradients are wrapper subclasses."""
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            args, kwargs = arguments(sample)
            composite_compliance.check_backward_formula(
                op.get_op(), args, kwargs, sample.output_process_fn_grad, op.gradcheck_wrapper, self.assertEqual
            )

    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_forward_ad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The forward-mode formula works if primals and tangents are wrapper subclasses."""
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("the operator has no autograd")
        if not op.supports_forward_ad:
            self.skipTest("the operator has no forward-mode formula")
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            args, kwargs = arguments(sample)
            composite_compliance.check_forward_ad_formula(
                op.get_op(), args, kwargs, op.gradcheck_wrapper, self.assertEqual
            )

    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_cow_input(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Forward and backward neither materialise a copy-on-write input nor write to it."""
        for sample in op.sample_inputs(device, dtype, requires_grad=op.supports_autograd):
            args, kwargs = arguments(sample)
            raw: dict[Any, Any] = dict(enumerate(args)) | kwargs
            lazy = {key: torch._lazy_clone(value) if is_strided(value) else value for key, value in raw.items()}
            copies = {key: value.detach().clone() for key, value in raw.items() if is_strided(value)}
            lazy_args = [lazy[i] for i in range(len(args))]
            lazy_kwargs = {key: lazy[key] for key in kwargs}
            leaves = composite_compliance.gather_leaf_tensors(lazy_args, lazy_kwargs)

            result = op.get_op()(*lazy_args, **lazy_kwargs)
            for key, copy in copies.items():
                allowed = _allowed(
                    key, op.supports_cow_input_no_materialize_forward, op.allow_cow_input_materialize_forward
                )
                self._still_lazy(f"forward, argument {key}", lazy[key], raw[key], copy, allowed)

            if not op.supports_autograd or op.skip_cow_input_backward or not leaves:
                continue
            if sample.output_process_fn_grad:
                result = sample.output_process_fn_grad(result)
            outputs = differentiable(result)
            if not outputs or not all(is_strided(t) for t in outputs):
                continue
            grads = [torch.ones_like(t, memory_format=torch.contiguous_format) for t in outputs]
            lazy_grads = [torch._lazy_clone(g) for g in grads]
            torch.autograd.grad(outputs, leaves, lazy_grads, allow_unused=True, retain_graph=True)
            supported = op.supports_cow_input_no_materialize_backward
            for key, copy in copies.items():
                allowed = _allowed(key, supported, op.allow_cow_input_materialize_backward)
                self._still_lazy(f"backward, argument {key}", lazy[key], raw[key], copy, allowed)
            for i, (lazy_grad, grad) in enumerate(zip(lazy_grads, grads)):
                key = f"output grad {i}"
                allowed = _allowed(key, supported, op.allow_cow_input_materialize_backward)
                self._still_lazy(f"backward, {key}", lazy_grad, grad, torch.ones_like(grad), allowed)

    def _still_lazy(
        self, what: str, lazy: torch.Tensor, raw: torch.Tensor, copy: torch.Tensor, may_materialise: bool
    ) -> None:
        self.assertTrue(torch._C._is_cow_tensor(raw), f"{what}: the original was materialised")
        is_lazy = torch._C._is_cow_tensor(lazy)
        if not may_materialise:
            self.assertTrue(is_lazy, f"{what}: the copy-on-write tensor was materialised")
        survivor = lazy if is_lazy else raw
        self.assertEqual(survivor.detach(), copy, atol=0, rtol=0, msg=f"{what}: the shared data was written to")

    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_view_replay(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """An output that is a view of the input can be replayed on another base, and reversed."""
        with torch.autograd._force_original_view_tracking(True):
            for sample in op.sample_inputs(device, dtype, requires_grad=False):
                base = sample.input
                for view in tensors(op(base, *sample.args, **sample.kwargs)):
                    if not view._is_view() or view._base is not base:
                        continue
                    replayed = view._view_func_unsafe(base.clone())
                    self.assertEqual(_layout(replayed), _layout(view))
                    self.assertEqual(replayed, view)
                    detached = view.detach()
                    reversed_base = view._rev_view_func_unsafe(detached)
                    self.assertEqual(_layout(reversed_base), _layout(base))
                    self.assertTrue(reversed_base._is_view() and reversed_base._base is detached)


def _allowed(key: Any, supported: bool, listed: Container[Any] | None) -> bool:
    """Whether the OpInfo lets an argument be materialised."""
    return not supported or (listed is not None and key in listed)


def _layout(t: torch.Tensor) -> tuple[Any, ...]:
    return t.size(), t.stride(), t.storage_offset(), t.device, t.dtype
