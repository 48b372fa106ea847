"""TestFakeTensor of test_ops.py: shapes, strides, dtypes and aliasing without data. TestTags: the promises of tags."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import compare_tensor_meta
from torch._subclasses import CrossRefFakeMode, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal import composite_compliance
from torch.testing._internal.common_device_type import OpDTypes, onlyCPU
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from suites.compliance import is_strided
from suites.opinfo import arguments, dense_db, op_db, opinfo, tensors

Context = Callable[[], contextlib.AbstractContextManager[Any]]
NOT_FAKEABLE = (fake_tensor.UnsupportedFakeTensorException, fake_tensor.UnsupportedOperatorException)
DATA_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

# The cross-reference skips these, which compute nothing, to save time.
TRIVIAL = (
    torch.ops.aten.detach.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.copy_.default,
    torch.ops.aten.is_same_size.default,
)


def needs_data(op: OpInfo, error: Exception) -> bool:
    """Whether tracing stopped at the entry's own operator, whose tags say that its result depends on the data.

    An operator that merely calls such a one inside (`item()`) is not such a case: it cannot be traced.
    """
    func = getattr(error, "func", None)
    if not isinstance(func, torch._ops.OpOverload) or not any(tag in func.tags for tag in DATA_TAGS):
        return False
    return op.name.split(".")[-1].strip("_") in func._schema.name


def aliases(one: Any, other: Any) -> bool:
    """Whether two nests of tensors share a storage."""
    seen = {t.untyped_storage()._cdata for t in tensors(one) if t.layout == torch.strided}
    return any(t.untyped_storage()._cdata in seen for t in tensors(other) if t.layout == torch.strided)


class TestFakeTensor(TestCase):
    def _check_fake(self, device: str, dtype: torch.dtype, op: OpInfo, context: Context) -> None:
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            args, kwargs = arguments(sample)
            with context():
                real = op(*args, **kwargs)
            mode = FakeTensorMode()
            fake_args, fake_kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            try:
                with context(), mode:
                    fake = op(*fake_args, **fake_kwargs)
            except NOT_FAKEABLE:
                continue
            except (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException) as error:
                self.assertTrue(needs_data(op, error), f"{error} but the operator carries no such tag")
                continue
            self.assertEqual(len(pytree.tree_leaves(fake)), len(pytree.tree_leaves(real)))
            for f, r in zip(pytree.tree_leaves(fake), pytree.tree_leaves(real)):
                if not isinstance(r, torch.Tensor):
                    self.assertEqual(f, r)
                    continue
                self.assertIsInstance(f, FakeTensor)
                compare_tensor_meta(f, r, check_strides=True)
            fake_shares = aliases((fake_args, fake_kwargs), fake)
            self.assertEqual(fake_shares, aliases((args, kwargs), real), "fake and real results alias differently")

    @opinfo(dense_db, dtypes=OpDTypes.any_one)
    def test_fake(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The fake result has the properties of the real one."""
        self._check_fake(device, dtype, op, contextlib.nullcontext)

    @opinfo(dense_db, dtypes=OpDTypes.any_one)
    def test_fake_autocast(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The same under autocast."""
        self._check_fake(device, dtype, op, lambda: torch.amp.autocast(torch.device(device).type))

    @opinfo(dense_db, dtypes=OpDTypes.any_one)
    def test_pointwise_ops(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Every pointwise operator that runs inside this one returns the broadcast shape of its inputs."""
        test = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                if torch.Tag.pointwise in func.tags:
                    shape = torch.broadcast_shapes(*(t.shape for t in tensors((args, kwargs))))
                    for t in tensors(out):
                        test.assertEqual(t.shape, shape, msg=f"{func} is tagged pointwise")
                return out

        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            with Mode():
                op(sample.input, *sample.args, **sample.kwargs)

    def _check_backward(self, device: str, dtype: torch.dtype, op: OpInfo, context: Context) -> None:
        for sample in op.sample_inputs(device, dtype, requires_grad=True):
            args, kwargs = arguments(sample)
            compare = CrossRefFakeMode(ignore_op_fn=lambda fn: fn in TRIVIAL, check_aliasing=True)
            # The mode does not reach autograd's own threads.
            one_thread = torch.autograd.set_multithreading_enabled(False)
            with contextlib.suppress(fake_tensor.UnsupportedOperatorException), compare, context(), one_thread:
                composite_compliance.compute_expected_grads(
                    op.get_op(), args, kwargs, sample.output_process_fn_grad, op.gradcheck_wrapper
                )

    # PyTorch runs the next two only on CUDA; they pass on the CPU as well.
    @opinfo([op for op in dense_db if op.supports_autograd], allowed_dtypes=(torch.float,))
    def test_fake_crossref_backward_no_amp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Every operator of forward and backward has a fake implementation that describes its result."""
        self._check_backward(device, dtype, op, contextlib.nullcontext)

    @opinfo([op for op in dense_db if op.supports_autograd], allowed_dtypes=(torch.float,))
    def test_fake_crossref_backward_amp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The same under autocast."""
        self._check_backward(device, dtype, op, lambda: torch.amp.autocast(torch.device(device).type))

    @opinfo([op for op in op_db if op.is_factory_function])
    def test_strided_layout(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """A factory function takes `layout=torch.strided`."""
        for sample in op.sample_inputs(device, dtype):
            result = op(sample.input, *sample.args, **(sample.kwargs | {"layout": torch.strided}))
            self.assertEqual(result.layout, torch.strided)


class TestTags(TestCase):
    @onlyCPU
    @opinfo(op_db, dtypes=OpDTypes.any_one)
    def test_tags(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """An operator that changes its input's shape or strides in place has the tag inplace_view."""
        test = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                first = args[0] if args and is_strided(args[0]) else None
                before = None if first is None else (first.size(), first.stride())
                out = func(*args, **(kwargs or {}))
                changed = first is not None and out is first and (first.size(), first.stride()) != before
                # resize_ cannot have the tag, which would break the code generation of its derivative.
                if changed and func is not torch.ops.aten.resize_.default:
                    test.assertIn(torch.Tag.inplace_view, func.tags, f"{func}")
                return out

        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            with Mode():
                op(sample.input, *sample.args, **sample.kwargs)
