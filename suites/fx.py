"""TestOperatorSignatures and TestNormalizeOperators: the operator in FX. Also the generators of its samples."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import fx
from torch.fx.operator_schemas import get_signature_for_torch_op, normalize_function
from torch.testing._internal.common_device_type import OpDTypes, onlyCPU
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.jit_utils import JitTestCase
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from suites.opinfo import arguments, op_db, opinfo


class TestOperatorSignatures(TestCase):
    @onlyCPU
    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_get_torch_func_signature_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """FX finds a schema for the function that accepts each sample."""
        if not isinstance(op.op, type(torch.add)):
            self.skipTest("the entry's operator is a Python function: it has no schema of its own")
        signatures = get_signature_for_torch_op(op.op)
        self.assertTrue(signatures, "FX finds no schema")
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = arguments(sample)
            for signature in signatures:
                try:
                    bound = signature.bind(*args, **kwargs)
                except TypeError:
                    continue
                self.assertEqual(op(*bound.args, **bound.kwargs), op(*args, **kwargs))
                break
            else:
                self.fail(f"no schema of {op.name} takes {sample.summary()}")


class TestNormalizeOperators(JitTestCase):
    @onlyCPU
    @opinfo(op_db, allowed_dtypes=(torch.float,))
    def test_normalize_operator_exhaustive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """A traced call gives the same result after FX made keyword arguments of all arguments."""
        if isinstance(op.op, torch._ops.OpOverload) or not isinstance(op.op, type(torch.add)):
            self.skipTest("FX normalizes calls of torch's own functions only")
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = arguments(sample)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            tensor_places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            types = tuple(type(a) for a in args)
            normalized = normalize_function(
                op.op, tuple(args), kwargs, types, {k: type(v) for k, v in kwargs.items()}, True
            )
            if normalized is None:
                self.fail(f"FX does not normalize {op.name} on {sample.summary()}")
            self.assertFalse(normalized.args)
            graph = fx.Graph()
            filled = list(leaves)
            for i in tensor_places:
                filled[i] = graph.placeholder(f"tensor_{i}")
            node_args, node_kwargs = pytree.tree_unflatten(filled, spec)
            graph.output(graph.call_function(op.op, tuple(node_args), node_kwargs))
            module = fx.GraphModule(torch.nn.Module(), graph)
            values = [leaves[i] for i in tensor_places]
            traced = module(*values)
            expected = op(*args, **kwargs)
            self.assertEqual(traced, expected)
            self.assertEqual(op.op(*normalized.args, **normalized.kwargs), expected)


class TestOpInfoSampleFunctions(TestCase):
    """The generators of an OpInfo (test_testing.py) are lazy and not empty."""

    def _check(self, samples: Any) -> None:
        self.assertTrue(inspect.isgenerator(samples), "samples are made as they are asked for: yield, not a list")
        self.assertGreater(len(list(itertools.islice(samples, 1))), 0)

    @opinfo(op_db, dtypes=OpDTypes.any_one)
    def test_opinfo_sample_generators(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(op.sample_inputs_func(op, device, dtype, False))

    @opinfo([op for op in op_db if op.reference_inputs_func is not None], dtypes=OpDTypes.any_one)
    def test_opinfo_reference_generators(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._check(op.reference_inputs_func(op, device, dtype, False))

    @opinfo([op for op in op_db if op.error_inputs_func is not None], dtypes=OpDTypes.none)
    def test_opinfo_error_generators(self, device: str, op: OpInfo) -> None:
        # There may be none on one kind of device.
        self.assertTrue(inspect.isgenerator(op.error_inputs_func(op, device)))
