# Owner(s): ["oncall: distributed"]
"""torch.attn on distributed tensors: every layout of the inputs against what one process computes."""

import itertools

import torch
import torch.distributed as dist
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch._subclasses import FakeTensor
from torch.distributed.tensor import (
    DeviceMesh,
    distribute_tensor,
    DTensor,
    Partial,
    Replicate,
    Shard,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.common_utils import run_tests, TestCase
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode


attn_backward = torch.ops.aten._attn_backward.default
# The layouts of 3-D tensors on one dimension of a mesh.
WHOLE, BATCH, ROWS, COLUMNS = Replicate(), Shard(0), Shard(1), Shard(2)
SUMS = Partial()
# What is sharded: q, k, v; output, attn and their gradients; grad_q, grad_k, grad_v.
# No communication is needed.
FREE = {
    "none": ([WHOLE] * 3, [WHOLE] * 2, [WHOLE] * 2, [WHOLE] * 3),
    "batch": ([BATCH] * 3, [BATCH] * 2, [BATCH] * 2, [BATCH] * 3),
    "M": ([ROWS, WHOLE, WHOLE], [ROWS, ROWS], [ROWS, ROWS], [ROWS, SUMS, SUMS]),
    "N": ([WHOLE, ROWS, ROWS], [SUMS, COLUMNS], [WHOLE, COLUMNS], [SUMS, ROWS, ROWS]),
    "E": (
        [WHOLE, WHOLE, COLUMNS],
        [COLUMNS, WHOLE],
        [COLUMNS, WHOLE],
        [SUMS, SUMS, COLUMNS],
    ),
}


class Calls(TorchDispatchMode):
    """The operators that run on the tensors of this process, with their sizes."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(x, DTensor) for x in types):
            return NotImplemented
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        # DTensor asks fake tensors for the whole sizes.
        if not any(isinstance(x, FakeTensor) for x in tensors):
            sizes = [tuple(x.shape) for x in tensors]
            self.sizes.setdefault(func.name(), []).append(sizes)
        return func(*args, **(kwargs or {}))


def make(*shapes, dtype=torch.float64):
    """The same tensors on every rank: ranks are threads, which share torch's generator."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(x, dtype=dtype, generator=generator) / 2 for x in shapes]


def distributed(x, mesh, layout):
    """x on a mesh; each process has its share of a sum."""
    if not any(placement.is_partial() for placement in layout):
        return distribute_tensor(x, mesh, layout)
    shares = [mesh.size(n) for n, one in enumerate(layout) if one.is_partial()]
    rest = [WHOLE if one.is_partial() else one for one in layout]
    local = distribute_tensor(x, mesh, rest).to_local() / torch.Size(shares).numel()
    return DTensor.from_local(local, mesh, layout, shape=x.shape, stride=x.stride())


def run(inputs, weights):
    """The outputs and the gradients, in one list."""
    outputs = torch.attn(*inputs)
    return [*outputs, *torch.autograd.grad(outputs, inputs, weights)]


class TestDTensor(DTensorOpTestBase):
    device_type = "cpu"
    world_size = 4

    def values(self, m, n, dtype=torch.float64, b=4, d=6, e=5):
        """q, k, v, and gradients of output and attn."""
        return make((b, m, d), (b, n, d), (b, n, e), (b, m, e), (b, m, n), dtype=dtype)

    def expect(self, values):
        return run([x.clone().requires_grad_() for x in values[:3]], values[3:])

    def check(self, mesh, values, inputs, weights, expected):
        """Runs on these layouts, a list of placements for each tensor, and compares."""
        layouts = [*inputs, *weights]
        given = [distributed(*x) for x in zip(values, [mesh] * 5, layouts)]
        given = [*(x.requires_grad_() for x in given[:3]), *given[3:]]
        with CommDebugMode() as sent, Calls() as calls:
            got = run(given[:3], given[3:])
        for x, reference in zip(got, expected, strict=True):
            self.assertIsInstance(x, DTensor)
            self.assertEqual(x.shape, reference.shape)
            if mesh.get_coordinate() is None:
                self.assertEqual(x.to_local().numel(), 0)
            else:
                self.assertEqual(x.full_tensor(), reference, msg=f"{layouts}")
        return got, given, calls.sizes, sent.get_total_counts()

    def check_layouts(self, m, n, mesh, dtype=torch.float64, b=4):
        """All pairs of layouts, of any two inputs."""
        values = self.values(m, n, dtype, b)
        expected = self.expect(values)
        layouts = (WHOLE,), (BATCH,), (ROWS,), (COLUMNS,), (SUMS,)
        for one, other in itertools.product(range(5), repeat=2):
            inputs = layouts[one], layouts[other], layouts[(one + other) % 5]
            self.check(mesh, values, inputs, [(WHOLE,)] * 2, expected)

    def test_layouts(self):
        self.check_layouts(8, 12, DeviceMesh("cpu", [0, 1, 2, 3]))

    def test_sizes_that_do_not_divide(self):
        """Some processes have fewer rows than others, or none; some sizes are too small."""
        self.check_layouts(13, 5, DeviceMesh("cpu", [0, 1, 2, 3]), b=3)

    def test_complex(self):
        mesh = DeviceMesh("cpu", [0, 1, 2, 3])
        self.check_layouts(8, 8, mesh, dtype=torch.complex128)

    def test_a_rank_outside_of_the_mesh(self):
        self.check_layouts(6, 9, DeviceMesh("cpu", [0, 1, 2]))

    def test_each_process_runs_the_operator_on_its_part(self):
        """Nothing is sent, on meshes of one dimension and of two."""
        values = self.values(8, 12, e=4)
        expected = self.expect(values)
        line, square = DeviceMesh("cpu", range(4)), DeviceMesh("cpu", [[0, 1], [2, 3]])
        for mesh, names in [
            *((line, [name]) for name in FREE),
            *((square, pair) for pair in itertools.product(FREE, repeat=2)),
        ]:
            # for each tensor its placements on the dimensions of the mesh
            inputs, outputs, weights, grads = (
                [*zip(*parts)] for parts in zip(*(FREE[name] for name in names))
            )
            got, given, sizes, sent = self.check(
                mesh, values, inputs, weights, expected
            )
            self.assertEqual(sent, 0, msg=f"{names}")
            self.assertEqual([x.placements for x in got], [*outputs, *grads])
            local = [tuple(x.to_local().shape) for x in given]
            q, k, v, grad_output, grad_attn = local
            self.assertEqual(sizes["aten::attn"], [[q, k, v]])
            backward = [[grad_output, grad_attn, q, k, v, (*q[:2], k[1])]]
            self.assertEqual(sizes["aten::_attn_backward"], backward)
            self.assertNotIn("aten::bmm", sizes)

    def test_only_q_is_gathered(self):
        """With rows of all three, output is a sum over processes."""
        mesh, values = DeviceMesh("cpu", [0, 1, 2, 3]), self.values(8, 12)
        given = [distributed(x, mesh, [ROWS]) for x in values[:3]]
        with CommDebugMode() as sent:
            output, attn = torch.attn(*given)
        self.assertEqual(sent.get_total_counts(), 1)
        self.assertEqual([output.placements, attn.placements], [(SUMS,), (COLUMNS,)])

    def test_second_derivatives(self):
        mesh, values = DeviceMesh("cpu", [0, 1, 2, 3]), self.values(8, 12)
        probes = make(*(x.shape for x in values[:3]))

        def second(inputs, weights, probes):
            outputs = torch.attn(*inputs)
            grads = torch.autograd.grad(outputs, inputs, weights, create_graph=True)
            product = sum((x * y).sum() for x, y in zip(grads, probes))
            return torch.autograd.grad(product, inputs)

        expected = second(
            [x.clone().requires_grad_() for x in values[:3]], values[3:], probes
        )
        for name in "batch", "M", "E":
            inputs, _, weights, _ = FREE[name]
            given = [
                distributed(x, mesh, [one])
                for x, one in zip(values, [*inputs, *weights])
            ]
            leaves = [x.requires_grad_() for x in given[:3]]
            whole = [distributed(x, mesh, [WHOLE]) for x in probes]
            for x, reference in zip(
                second(leaves, given[3:], whole), expected, strict=True
            ):
                self.assertEqual(x.full_tensor(), reference, msg=name)


class TestOneRank(TestCase):
    """What needs no other process: one thread of its own keeps the strategies that it has found."""

    def setUp(self):
        super().setUp()
        dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
        self.mesh = DeviceMesh("cpu", [0, 1, 2, 3])

    def tearDown(self):
        dist.destroy_process_group()
        super().tearDown()

    def test_operands_that_are_none(self):
        """For every mask, where sizes and layouts tell no operand from another."""
        q, k, v, grad_output, grad_attn = make(*[(1, 4, 4)] * 5)
        attn = torch.attn(q, k, v)[1]
        for mask, there, grads in itertools.product(
            [*itertools.product((False, True), repeat=3)],
            [*itertools.product((False, True), repeat=2)],
            ((grad_output, grad_attn), (grad_output, None), (None, grad_attn)),
        ):
            if any(mask[:2]) and not all(there):
                continue
            operands = [x if y else None for x, y in zip((q, k), there)]
            local = [*grads, *operands, v, attn]
            given = [
                x if x is None else DTensor.from_local(x, self.mesh, [BATCH])
                for x in local
            ]
            for x, reference in zip(
                attn_backward(*given, mask), attn_backward(*local, mask), strict=True
            ):
                self.assertEqual(x is None, reference is None)
                if x is not None:
                    self.assertEqual(x.placements, (BATCH,))
                    self.assertEqual(x.to_local(), reference)

    def test_results_lie_as_the_operands_do(self):
        """Each process's part, as one call on it has it."""
        heads = [x.transpose(1, 2) for x in make((4, 8, 3, 6), (4, 5, 3, 6))]
        q, k, v = heads[0], heads[1], heads[1].transpose(0, 1).contiguous().mT.mT
        v = v.transpose(0, 1)
        local = [x.clone().as_strided(x.shape, x.stride()) for x in (q, k, v)]
        expected = run([x.requires_grad_() for x in local], torch.attn(*local))
        given = [DTensor.from_local(x.detach(), self.mesh, [BATCH]) for x in local]
        outputs = torch.attn(*given)
        results = run(
            [x.requires_grad_() for x in given], [x.detach() for x in outputs]
        )
        found = [x.to_local().stride() for x in results]
        self.assertEqual(found, [x.stride() for x in expected])
        self.assertEqual(found[0], q.stride())

    def test_compiled(self):
        """The graphs have the operators, on this rank's part."""
        values = make((4, 8, 6), (4, 12, 6), (4, 12, 4), (4, 8, 4), (4, 8, 12))
        for name in "batch", "M", "E":
            layouts = [*FREE[name][0], *FREE[name][2]]
            given = [
                distribute_tensor(x, self.mesh, [y]) for x, y in zip(values, layouts)
            ]
            leaves = [x.requires_grad_() for x in given[:3]]
            backend = AotEagerAndRecordGraphs()
            results = torch.compile(torch.attn, backend=backend, fullgraph=True)(
                *leaves
            )
            got = [*results, *torch.autograd.grad(results, leaves, given[3:])]
            for x, reference in zip(got, run(leaves, given[3:]), strict=True):
                self.assertEqual(x.placements, reference.placements)
                self.assertEqual(x.to_local(), reference.to_local())
            for graphs, operator in (
                (backend.fw_graphs, torch.ops.aten.attn.default),
                (backend.bw_graphs, attn_backward),
            ):
                (graph,) = graphs
                targets = [node.target for node in graph.graph.nodes]
                self.assertEqual(targets.count(operator), 1)


if __name__ == "__main__":
    run_tests()
