"""TestDTensorOps of distributed/tensor/test_dtensor_ops.py: sharded inputs on four ranks, as threads of one process."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.testing._internal.common_utils import suppress_warnings
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter, DTensorOpTestBase
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from suites.opinfo import arguments, dense_db, differentiable, opinfo


class TestDTensorOps(DTensorOpTestBase):
    @property
    def world_size(self) -> int:
        return 4

    @suppress_warnings
    @opinfo(dense_db, allowed_dtypes=(torch.float,))
    def test_dtensor_op_db(self, dtype: torch.dtype, op: OpInfo) -> None:
        """Values and gradients are those of one machine, for every way to replicate or shard each input."""
        mesh = self.build_device_mesh()
        with_grad = dtype in op.supported_backward_dtypes(self.device_type)
        for sample in op.sample_inputs(self.device_type, dtype, requires_grad=with_grad):
            args, kwargs = arguments(sample)
            expected, expected_grads = self._values_and_grads(op, args, kwargs)
            for dist_args, dist_kwargs in DTensorConverter(mesh, tuple(args), kwargs):
                actual, grads = self._values_and_grads(op, list(dist_args), dist_kwargs)
                # Each rank drew its own samples; distribute_tensor sends those of rank 0 to all.
                self.assertEqualOnRank(_full(actual), _full(expected))
                self.assertEqualOnRank(_full(grads), _full(expected_grads))

    def _values_and_grads(self, op: OpInfo, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The result, and the gradients of the sum over all outputs."""
        result = op.op(*args, **kwargs)
        outputs, inputs = differentiable(result), differentiable((args, kwargs))
        if not outputs or not inputs:
            return result, ()
        total = sum((_full(output).sum() for output in outputs), start=torch.zeros(()))
        return result, torch.autograd.grad(total, inputs, allow_unused=True)


def _full(tree: Any) -> Any:
    return pytree.tree_map_only(DTensor, DTensor.full_tensor, tree)
