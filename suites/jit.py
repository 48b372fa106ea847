"""TestJit of test_ops_jit.py: scripted and traced calls against eager ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_jit import JitCommonTestCase, check_against_reference
from torch.testing._internal.common_utils import clone_input_helper
from torch.testing._internal.jit_metaprogramming_utils import (
    check_alias_annotation,
    create_script_fn,
    create_traced_fn,
)
from torch.testing._internal.jit_utils import disable_autodiff_subgraph_inlining, is_lambda
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from suites.opinfo import op_db, opinfo


class TestJit(JitCommonTestCase):
    exact_dtype = True

    @opinfo(op_db, allowed_dtypes=(torch.float, torch.cfloat))
    def test_variant_consistency_jit(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Function and method, scripted and traced, give eager's values, gradients and second gradients."""
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        conjugated = op.test_conjugated_samples and dtype.is_complex
        variants = {"function": op.get_op(), "method": op.get_method()}
        variants = {kind: fn for kind, fn in variants.items() if fn is not None and not is_lambda(fn)}
        if not variants:
            self.skipTest("the entry has no variant that TorchScript can name")
        if common_utils.GRAPH_EXECUTOR is None:  # run_tests sets it, but pytest does not.
            common_utils.GRAPH_EXECUTOR = common_utils.cppProfilingFlagsToProfilingMode()
        checked = False
        samples = op.sample_inputs(device, dtype, requires_grad=with_grad, include_conjugated_inputs=conjugated)
        for sample in samples:
            for kind, fn in variants.items():
                self._check_variant(op, dtype, kind, fn, sample, with_grad)
                checked = True
        self.assertTrue(checked, "the entry has no sample")

    def _check_variant(
        self, op: OpInfo, dtype: torch.dtype, kind: str, fn: Any, sample: SampleInput, with_grad: bool
    ) -> None:
        args = (sample.input, *sample.args)
        if op.supports_scripting:
            script = create_script_fn(self, op.name, kind)
            with disable_autodiff_subgraph_inlining():
                self._against_eager(op, script, fn, sample, with_grad)
            if dtype is torch.float32:
                # Alias annotations do not depend on the dtype, so one is enough.
                check_alias_annotation(op.name, args, sample.kwargs, func_type=kind, aten_name=op.aten_name)
                self._check_autodiff(op, script)
        if op.supports_tracing:
            traced = create_traced_fn(self, fn)
            with disable_autodiff_subgraph_inlining():
                self._against_eager(op, traced, fn, sample, with_grad)
            if dtype is torch.float32:
                self._check_autodiff(op, traced)

    def _against_eager(self, op: OpInfo, compiled: Any, fn: Any, sample: SampleInput, with_grad: bool) -> None:
        process = sample.output_process_fn_grad or (lambda x: x)
        check_against_reference(
            self,
            compiled,
            fn,
            process,
            (clone_input_helper(sample.input), *sample.args),
            sample.kwargs,
            no_grad=not with_grad,
            no_gradgrad=not op.supports_gradgrad,
        )

    def _check_autodiff(self, op: OpInfo, compiled: Any) -> None:
        """TorchScript differentiates exactly the operators that the OpInfo names."""
        self.assertAutodiffNode(
            compiled.last_graph, op.assert_autodiffed, op.autodiff_nonfusible_nodes, op.autodiff_fusible_nodes
        )
