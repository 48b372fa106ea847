"""TestMeta of test_meta.py: meta tensors, plain and with symbolic sizes, against the real computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.testing._internal.common_utils import TestCase, suppress_warnings
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from suites.fake import DATA_TAGS
from suites.opinfo import op_db, opinfo, tensors


def to_meta(value: Any) -> Any:
    """The nest with each tensor replaced by a meta tensor of the same sizes and strides."""

    def convert(t: torch.Tensor) -> torch.Tensor:
        base = torch.empty(t.untyped_storage().nbytes() // t.element_size(), dtype=t.dtype, device="meta")
        with torch.no_grad():
            meta = base.as_strided(t.size(), t.stride(), t.storage_offset())
            meta = meta.conj() if t.is_conj() else meta
            return torch._neg_view(meta) if t.is_neg() else meta

    return pytree.tree_map_only(torch.Tensor, convert, value)


def to_symbolic(value: Any) -> tuple[FakeTensorMode, Any]:
    """The nest with fake tensors whose sizes are all symbols, and the mode to run them in."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def convert(t: torch.Tensor) -> torch.Tensor:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * t.ndim)
        return mode.from_tensor(t, symbolic_context=context)

    return mode, pytree.tree_map_only(torch.Tensor, convert, value)


def description(t: torch.Tensor, with_strides: bool) -> dict[str, Any]:
    """The properties that must agree. A symbolic size has the value that it stands for."""
    found: dict[str, Any] = {"dtype": t.dtype, "shape": [int(s) for s in t.shape]}
    found |= {"conj": t.is_conj(), "neg": t.is_neg()}
    if with_strides and t.layout == torch.strided and t.numel() > 0:
        found["strides"] = [int(st) for s, st in zip(t.shape, t.stride()) if s > 1]
        found["offset"] = int(t.storage_offset())
    return found


def compare(test: TestCase, what: str, meta: Any, real: Any, with_strides: bool = True) -> None:
    """Asserts that a meta result describes the real one."""
    meta_leaves, real_leaves = pytree.tree_leaves(meta), pytree.tree_leaves(real)
    test.assertEqual(len(meta_leaves), len(real_leaves), f"{what}: number of results")
    for m, r in zip(meta_leaves, real_leaves):
        test.assertEqual(isinstance(m, torch.Tensor), isinstance(r, torch.Tensor), f"{what}: kind of result")
        if isinstance(r, torch.Tensor):
            test.assertEqual(description(m, with_strides), description(r, with_strides), f"{what}: meta and real")


class CrossReference(TorchDispatchMode):
    """Runs each ATen call a second time without data and compares the properties of the results."""

    def __init__(self, test: TestCase, symbolic: bool) -> None:
        super().__init__()
        self.test, self.symbolic, self.calls = test, symbolic, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A call that depends on data has no meta result, and a factory's device argument asks for a real one.
        comparable = not any(tag in func.tags for tag in DATA_TAGS) and bool(tensors((args, kwargs)))
        twin = None
        if comparable:
            twin = to_symbolic((args, kwargs)) if self.symbolic else (None, to_meta((args, kwargs)))
        real = func(*args, **kwargs)
        if twin is not None:
            mode, (twin_args, twin_kwargs) = twin
            if mode is None:
                if "device" in twin_kwargs:
                    twin_kwargs = twin_kwargs | {"device": "meta"}
                meta = func(*twin_args, **twin_kwargs)
            else:
                with mode, enable_python_dispatcher():
                    meta = func(*twin_args, **twin_kwargs)
            compare(self.test, str(func), meta, real)
            self.calls += 1
        return real


def strided_variants(sample: SampleInput) -> Iterator[SampleInput]:
    """The sample with transposed tensors, with strided ones, and expanded where a size is 1."""

    def transposed(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.ndim < 2 or t.layout != torch.strided:
            return t
        return t.detach().transpose(-1, -2).contiguous().transpose(-1, -2)

    def gaps(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.ndim == 0 or t.layout != torch.strided:
            return t
        return torch.repeat_interleave(t.detach(), 2, dim=-1)[..., ::2]

    yield sample
    yield sample.transform(transposed)
    yield sample.transform(gaps)


def _accepts(fn: Any, args: Any, kwargs: Any) -> bool:
    """Whether the in-place variant takes these inputs: the first one's dtype may not be able to hold the result."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    try:
        fn(*args, **kwargs)
    except RuntimeError:
        return False
    return True


class TestMeta(TestCase):
    def _function(self, device: str, dtype: torch.dtype, op: OpInfo, inplace: bool) -> None:
        """The function, called on meta tensors."""
        fn = op.get_inplace() if inplace else op.get_op()
        if fn is None:
            self.skipTest("no in-place variant")
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            if inplace and sample.broadcasts_input:
                continue
            nest = ([sample.input, *sample.args], sample.kwargs)
            args, kwargs = to_meta(nest)
            real_args, real_kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, nest) if inplace else nest
            if "device" in kwargs:
                kwargs = kwargs | {"device": "meta"}
            if inplace and not _accepts(fn, *nest):
                continue
            meta = fn(*args, **kwargs)
            real = fn(*real_args, **real_kwargs)
            compare(self, op.name, meta, real, with_strides=False)

    def _dispatch(
        self, device: str, dtype: torch.dtype, op: OpInfo, inplace: bool, symbolic: bool, all_strides: bool = False
    ) -> None:
        """Each ATen call that the function makes, tested alone."""
        fn = op.get_inplace() if inplace else op.get_op()
        if fn is None:
            self.skipTest("no in-place variant")
        calls = 0
        for original in op.sample_inputs(device, dtype, requires_grad=False):
            if inplace and original.broadcasts_input:
                continue
            for sample in strided_variants(original) if all_strides else [original]:
                args, kwargs = [sample.input, *sample.args], sample.kwargs
                if inplace:
                    if not _accepts(fn, args, kwargs):
                        continue
                    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
                with CrossReference(self, symbolic) as mode:
                    fn(*args, **kwargs)
                calls += mode.calls
        if calls == 0:
            self.skipTest("the operator makes no ATen call on tensors that a meta call could stand for")

    @suppress_warnings
    @opinfo(op_db)
    def test_meta_outplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._function(device, dtype, op, inplace=False)

    @suppress_warnings
    @opinfo(op_db)
    def test_meta_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._function(device, dtype, op, inplace=True)

    @suppress_warnings
    @opinfo(op_db)
    def test_dispatch_meta_outplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=False, symbolic=False)

    @suppress_warnings
    @opinfo(op_db)
    def test_dispatch_meta_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=True, symbolic=False)

    @suppress_warnings
    @opinfo(op_db)
    def test_dispatch_symbolic_meta_outplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=False, symbolic=True)

    @suppress_warnings
    @opinfo(op_db)
    def test_dispatch_symbolic_meta_inplace(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=True, symbolic=True)

    # Strides do not depend on the dtype, so one is enough for the next two.
    @suppress_warnings
    @opinfo(op_db, allowed_dtypes=(torch.float32,))
    def test_dispatch_symbolic_meta_outplace_all_strides(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=False, symbolic=True, all_strides=True)

    @suppress_warnings
    @opinfo(op_db, allowed_dtypes=(torch.float32,))
    def test_dispatch_symbolic_meta_inplace_all_strides(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._dispatch(device, dtype, op, inplace=True, symbolic=True, all_strides=True)
