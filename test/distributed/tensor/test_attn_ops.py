# Owner(s): ["oncall: distributed"]
"""torch.attn on distributed tensors: every layout of the inputs against what one process computes."""

import itertools

import torch
from torch.distributed.tensor import (
    DeviceMesh,
    distribute_tensor,
    DTensor,
    Partial,
    Replicate,
    Shard,
)
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase
from torch.utils._python_dispatch import TorchDispatchMode


# False where attn is composed of other operators.
EXPLICIT = hasattr(torch.ops.aten, "_attn_backward")
REPLICATED, ROWS, COLUMNS, SUMS = (Replicate(),), (Shard(0),), (Shard(1),), (Partial(),)


class Calls(TorchDispatchMode):
    """The operators that run on the tensors of this process."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(x, DTensor) for x in types):
            return NotImplemented
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def composition(q, k, v):
    attn = torch.tanh(q @ k.mT)
    return attn @ v, attn


def make(*shapes, dtype):
    """The same tensors on every rank: ranks are threads, which share torch's generator."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(x, dtype=dtype, generator=generator) / 2 for x in shapes]


def distributed(tensors, mesh, layouts):
    for x, layout in zip(tensors, layouts, strict=True):
        if layout == SUMS:
            yield DTensor.from_local(x / mesh.size(), mesh, layout)
        else:
            yield distribute_tensor(x, mesh, layout)


def results(function, inputs, weights):
    """The outputs and the gradients, and the operators that both took."""
    with Calls() as forward:
        outputs = function(*inputs)
    # rows of the gradients with rows of the results, else all of them
    layouts = [ROWS if x.placements == ROWS else REPLICATED for x in outputs]
    given = [*distributed(weights, inputs[0].device_mesh, layouts)]
    with Calls() as backward:
        grads = torch.autograd.grad(outputs, inputs, given)
    return [*outputs, *grads], [*forward.names, *backward.names]


class TestDTensor(DTensorOpTestBase):
    device_type = "cpu"
    world_size = 4

    def test_rows_that_divide(self):
        self.check(12, DeviceMesh("cpu", [0, 1, 2, 3]))

    def test_rows_that_do_not_divide(self):
        self.check(13, DeviceMesh("cpu", [0, 1, 2, 3]))

    def test_a_rank_outside_of_the_mesh(self):
        self.check(12, DeviceMesh("cpu", [0, 1, 2]))

    def check(self, n, mesh):
        # Composition gathers lazy conjugates, which torch.distributed refuses.
        for dtype in [torch.float64] + EXPLICIT * [torch.complex128]:
            values = make((n, 3), (n, 3), (n, 2), dtype=dtype)
            weights = make((n, 2), (n, n), dtype=dtype)
            local = [x.clone().requires_grad_() for x in values]
            outputs = torch.attn(*local)
            expected = *outputs, *torch.autograd.grad(outputs, local, weights)
            layouts = REPLICATED, ROWS, COLUMNS, SUMS
            for placements in itertools.product(layouts, repeat=3):
                inputs = distributed(values, mesh, placements)
                inputs = [x.requires_grad_() for x in inputs]
                self.check_layout(placements, inputs, weights, expected)

    def check_layout(self, placements, inputs, weights, expected):
        here = inputs[0].device_mesh.get_coordinate() is not None
        got, called = results(torch.attn, inputs, weights)
        for x, reference in zip(got, expected, strict=True):
            self.assertIsInstance(x, DTensor)
            self.assertEqual(x.shape, reference.shape)
            if here:
                self.assertEqual(x.full_tensor(), reference)
            else:
                self.assertEqual(x.to_local().numel(), 0)
        if not (EXPLICIT and here):
            return
        layouts = [x.placements for x in got]
        if not got[0].is_complex():  # no sum is reduced that composition keeps
            plain, _ = results(composition, inputs, weights)
            self.assertEqual(layouts, [x.placements for x in plain], placements)
        if placements == (REPLICATED,) * 3:
            kernels = "aten::attn", "aten::_attn_backward"
            self.assertEqual([called.count(x) for x in kernels], [1, 1], called)
            self.assertNotIn("aten::mm", called)
            self.assertEqual(layouts, [REPLICATED] * 5)
        if placements == (ROWS, REPLICATED, REPLICATED):
            self.assertEqual(layouts, [ROWS] * 3 + [SUMS] * 2)
            self.assertFalse([x for x in called if x.startswith("_c10d_functional")])


if __name__ == "__main__":
    run_tests()
