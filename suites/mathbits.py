"""TestMathBits of test_ops.py: inputs whose conjugation or negation is pending."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase, clone_input_helper
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from suites.opinfo import differentiable, op_db, opinfo

Unary = Callable[[torch.Tensor], torch.Tensor]


class TestMathBits(TestCase):
    def _compare(
        self,
        op: OpInfo,
        samples: Iterable[SampleInput],
        physical: Unary,
        lazy: Unary,
        is_lazy: Callable[[torch.Tensor], bool],
    ) -> None:
        """Results do not change if the first input is a lazy view of its conjugate or negative."""

        def disguised(t: torch.Tensor, requires_grad: bool) -> torch.Tensor:
            with torch.no_grad():
                opposite = physical(t)
            view = lazy(opposite)
            return view.detach().requires_grad_(requires_grad)

        for sample in samples:
            listed = not isinstance(sample.input, torch.Tensor)
            tensor: torch.Tensor = sample.input[0] if listed else sample.input
            twin = disguised(tensor, tensor.requires_grad)
            self.assertTrue(is_lazy(twin))
            value: Any = twin if not listed else (twin, *map(clone_input_helper, sample.input[1:]))
            expected = op(sample.input, *sample.args, **sample.kwargs)
            actual = op(value, *sample.args, **sample.kwargs)
            self.assertEqual(actual, expected)

            same_kind = isinstance(expected, torch.Tensor) and expected.dtype is tensor.dtype
            if op.inplace_variant is not None and not sample.broadcasts_input and same_kind:
                written = op.inplace_variant(disguised(tensor, False), *sample.args, **sample.kwargs)
                self.assertTrue(is_lazy(written), "the in-place variant lost the pending bit")
                self.assertEqual(written, expected)

            if not tensor.requires_grad or not tensor.is_leaf:
                continue
            process = sample.output_process_fn_grad or (lambda x: x)
            outputs, twin_outputs = differentiable(process(expected)), differentiable(process(actual))
            if not outputs:
                continue
            for make in (torch.ones_like, torch.randn_like):
                grads = [make(t) for t in outputs]
                lazy_grads = [lazy(physical(g)) if g.is_complex() or physical is torch.neg else g for g in grads]
                keep = {"retain_graph": True, "allow_unused": True}
                want = torch.autograd.grad(outputs, tensor, grads, **keep)
                got = torch.autograd.grad(twin_outputs, twin, lazy_grads, **keep)
                self.assertEqual(got, want)

    @opinfo(op_db, allowed_dtypes=(torch.cfloat,))
    def test_conj_view(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        if not op.test_conjugated_samples:
            self.skipTest("the entry opts out of conjugated inputs")
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        samples = op.sample_inputs(device, dtype, requires_grad=with_grad)
        self._compare(op, samples, torch.conj_physical, torch.conj, torch.is_conj)

    @opinfo(op_db, allowed_dtypes=(torch.double,))
    def test_neg_view(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        if not op.test_neg_view:
            self.skipTest("the entry opts out of the negative bit")
        samples = op.sample_inputs(device, dtype, requires_grad=op.supports_autograd)
        self._compare(op, samples, torch.neg, torch._neg_view, torch.is_neg)

    @opinfo(op_db, allowed_dtypes=(torch.cdouble,))
    def test_neg_conj_view(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        if not op.test_neg_view or not op.test_conjugated_samples:
            self.skipTest("the entry opts out of the negative bit or of conjugated inputs")
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        samples = islice(op.sample_inputs(device, dtype, requires_grad=with_grad), 1)
        self._compare(
            op,
            samples,
            lambda x: -x.conj_physical(),
            lambda x: torch._neg_view(x).conj(),
            lambda x: torch.is_neg(x) and torch.is_conj(x),
        )
