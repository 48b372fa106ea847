"""TestCommon of test_ops.py: whether an operator does what its OpInfo says, in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    OpDTypes,
    deviceCountAtLeast,
    onlyCUDA,
    onlyNativeDeviceTypes,
    skipMeta,
)
from torch.testing._internal.common_dtype import (
    all_types_and_complex_and,
    floating_and_complex_types_and,
    integral_types_and,
)
from torch.testing._internal.common_methods_invocations import (
    BinaryUfuncInfo,
    ReductionOpInfo,
    SpectralFuncInfo,
    UnaryUfuncInfo,
)
from torch.testing._internal.common_utils import TestCase, clone_input_helper, noncontiguous_like, suppress_warnings
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from suites.opinfo import arguments, differentiable, forward, op_db, opinfo, tensors

# PyTorch compares these four kinds with their references in files of their own (test_unary_ufuncs.py and so on).
OWN_REFERENCE_TESTS = (UnaryUfuncInfo, ReductionOpInfo, SpectralFuncInfo, BinaryUfuncInfo)
RESIZE_WARNING = "An output with one or more elements"


def call(op: Callable[..., Any], sample: SampleInput) -> Any:
    """The operator on the sample."""
    return op(sample.input, *sample.args, **sample.kwargs)


def first_tensor(value: Any) -> torch.Tensor:
    """The input if it is a tensor, or the first tensor of a list."""
    return value if isinstance(value, torch.Tensor) else value[0]


def storages(result: Any) -> list[tuple[tuple[int, ...], int]]:
    """Strides and addresses of all tensors."""
    return [(t.stride(), t.data_ptr()) for t in tensors(result)]


class TestCommon(TestCase):
    exact_dtype = True

    @onlyCUDA
    @deviceCountAtLeast(2)
    @opinfo(op_db, allowed_dtypes=(torch.float32, torch.long))
    def test_multiple_devices(self, devices: list[str], dtype: torch.dtype, op: OpInfo) -> None:
        """The results are on the device of the inputs."""
        for device in map(torch.device, devices):
            sample = next(iter(op.sample_inputs(device, dtype)))
            for result in tensors(call(op, sample)):
                self.assertEqual(result.device, device)

    @onlyNativeDeviceTypes
    @suppress_warnings
    @opinfo(
        [op for op in op_db if op.ref is not None and not isinstance(op, OWN_REFERENCE_TESTS)],
        allowed_dtypes=(torch.float64, torch.long, torch.complex128),
    )
    def test_numpy_ref(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The operator equals its NumPy reference in double precision, which NumPy uses."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.double)
        try:
            for sample in op.reference_inputs(device, dtype):
                self.compare_with_reference(op, op.ref, sample, exact_dtype=dtype is not torch.long)
        finally:
            torch.set_default_dtype(default)

    @onlyCUDA
    @suppress_warnings
    @opinfo([op for op in op_db if op.ref is None], dtypes=OpDTypes.any_common_cpu_cuda_one)
    def test_compare_cpu(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Other devices give the results of the CPU, if the operator has no NumPy reference."""
        for sample in op.reference_inputs(device, dtype):
            on_cpu = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x)
            args, kwargs = arguments(sample)
            cpu_args, cpu_kwargs = arguments(on_cpu)
            actual = forward(op, sample, args, kwargs)
            self.assertEqual(actual, forward(op, on_cpu, cpu_args, cpu_kwargs), exact_device=False)

    @skipMeta
    @onlyNativeDeviceTypes
    @opinfo([op for op in op_db if op.error_inputs_func is not None], dtypes=OpDTypes.none)
    def test_errors(self, device: str, op: OpInfo) -> None:
        """Each error input raises the error that it names."""
        for error in op.error_inputs(device):
            with self.assertRaisesRegex(error.error_type, error.error_regex):
                result = call(op, error.sample_input)
                self.assertIsNot(result, NotImplemented)

    @onlyNativeDeviceTypes
    @suppress_warnings
    @opinfo(op_db, allowed_dtypes=(torch.float32, torch.long, torch.complex64))
    def test_noncontiguous_samples(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The strides of the inputs and of the incoming gradients do not change results or gradients."""
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        for sample in op.sample_inputs(device, dtype, requires_grad=with_grad):
            strided = sample.noncontiguous()
            for tensor in differentiable(arguments(sample)):
                self.assertTrue(tensor.is_leaf and tensor.grad is None, "a sample's tensors must be fresh")
            args, kwargs = arguments(sample)
            expected = forward(op, sample, args, kwargs)
            strided_args, strided_kwargs = arguments(strided)
            actual = forward(op, strided, strided_args, strided_kwargs)
            self.assertEqual(actual, expected)
            outputs, strided_outputs = differentiable(expected), differentiable(actual)
            if not with_grad or not outputs:
                continue
            grads = [torch.randn_like(t) for t in outputs]
            inputs, strided_inputs = differentiable(arguments(sample)), differentiable(arguments(strided))
            self.assertEqual(len(inputs), len(strided_inputs))
            want = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
            strided_grads = [noncontiguous_like(g) for g in grads]
            got = torch.autograd.grad(strided_outputs, strided_inputs, strided_grads, allow_unused=True)
            for i, (g, w) in enumerate(zip(got, want)):
                self.assertEqual(g, w, msg=lambda text, i=i: f"gradient {i} depends on strides\n{text}")

    def _out_samples(self, device: str, dtype: torch.dtype, op: OpInfo) -> Any:
        """Samples with the result of the plain call. First checks that an operator without `out=` refuses it."""
        for sample in op.sample_inputs(device, dtype):
            expected = call(op, sample)
            if not tensors(expected) or len(tensors(expected)) != len(pytree.tree_leaves(expected)):
                self.skipTest("the result is neither a tensor nor a collection of tensors")
            if not op.supports_out:
                with self.assertRaises(Exception):  # noqa: B017 - any exception will do
                    self.assertIsNot(op(sample.input, *sample.args, **sample.kwargs, out=expected), NotImplemented)
                return
            yield sample, expected

    @opinfo(op_db, dtypes=OpDTypes.none)
    def test_out_warning(self, device: str, op: OpInfo) -> None:
        """`out=` of a wrong shape is resized, with a warning if it held elements."""
        dtypes = op.supported_dtypes(self.device_type)
        if not dtypes:
            self.skipTest("no dtype on this device")
        dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]

        def longer(t: torch.Tensor) -> torch.Tensor:
            shape = [*t.shape[:-1], t.shape[-1] + 1] if t.ndim else [2]
            return make_tensor(shape, dtype=t.dtype, device=t.device)

        for sample, expected in self._out_samples(device, dtype, op):
            out = pytree.tree_map(longer, expected)
            if any(t.numel() for t in tensors(out)):
                with self.assertWarnsRegex(UserWarning, RESIZE_WARNING):
                    op(sample.input, *sample.args, **sample.kwargs, out=_plain(out))
            else:
                op(sample.input, *sample.args, **sample.kwargs, out=_plain(out))
            self.assertEqual(tensors(out), tensors(expected))

    @opinfo(op_db, dtypes=OpDTypes.any_one)
    def test_out(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """`out=` is filled in place and keeps its strides. An empty one grows; an unsafe cast is refused."""

        def garbage(t: torch.Tensor) -> torch.Tensor:
            wild = float("nan") if t.is_floating_point() or t.is_complex() else torch.iinfo(t.dtype).max
            return torch.full_like(t, wild) if t.dtype is not torch.bool else torch.ones_like(t)

        def strided(t: torch.Tensor) -> torch.Tensor:
            return make_tensor(t.shape, dtype=t.dtype, device=t.device, noncontiguous=True)

        def empty(t: torch.Tensor) -> torch.Tensor:
            return t.new_empty((0,))

        for sample, expected in self._out_samples(device, dtype, op):

            def write(out: Any, sample: SampleInput = sample) -> None:
                op(sample.input, *sample.args, **sample.kwargs, out=_plain(out))

            for make in (garbage, strided):
                out = pytree.tree_map(make, expected)
                before = storages(out)
                write(out)
                self.assertEqual(tensors(out), tensors(expected), msg=lambda text, m=make: f"{m.__name__}: {text}")
                self.assertEqual(storages(out), before, msg="out= was given new storage or new strides")
            out = pytree.tree_map(empty, expected)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write(out)
            self.assertFalse([w for w in caught if RESIZE_WARNING in str(w.message)], "growing an empty out= warned")
            self.assertEqual(tensors(out), tensors(expected))

            other = "cpu" if torch.device(device).type != "cpu" else "cuda" if torch.cuda.is_available() else None
            if other is not None:
                out = pytree.tree_map(lambda t, other=other: torch.empty_like(t, device=other), expected)
                self._refused(write, out, op.is_factory_function and sample.kwargs.get("device") is None)
            lossy = floating_and_complex_types_and(torch.float16, torch.bfloat16)
            if any(t.dtype in lossy for t in tensors(expected)):
                out = pytree.tree_map(lambda t: torch.zeros_like(t, dtype=torch.long), expected)
                self._refused(write, out, op.is_factory_function and sample.kwargs.get("dtype") is None)

    def _refused(self, write: Callable[[Any], None], out: Any, allowed: bool) -> None:
        if allowed:
            write(out)
        else:
            with self.assertRaises(RuntimeError):
                write(out)

    @opinfo(
        [op for op in op_db if op.supports_out and op.supports_autograd],
        dtypes=OpDTypes.supported,
        allowed_dtypes=(torch.float, torch.cfloat),
    )
    def test_out_requires_grad_error(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """`out=` that requires a gradient is refused."""
        sample = next(iter(op.sample_inputs(device, dtype)))
        expected = call(op, sample)
        if not tensors(expected) or any(not (t.is_floating_point() or t.is_complex()) for t in tensors(expected)):
            self.skipTest("integers cannot require a gradient")
        out = pytree.tree_map(lambda t: torch.empty_like(t).requires_grad_(), expected)
        with self.assertRaisesRegex(
            RuntimeError, "does(n't| not) support automatic differentiation|don't support auto"
        ):
            op(sample.input, *sample.args, **sample.kwargs, out=_plain(out))

    @opinfo(op_db, allowed_dtypes=(torch.float, torch.cfloat))
    def test_variant_consistency_eager(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Method, in-place, operator variants and aliases give the function's values and gradients."""
        inplace = [op.inplace_variant, op.inplace_operator_variant, *(a.inplace_variant for a in op.aliases)]
        operators = [op.operator_variant, op.inplace_operator_variant]
        plain = [op.method_variant, op.operator_variant, *chain(*((a.op, a.method_variant) for a in op.aliases))]
        variants = [v for v in (*plain, *inplace) if v is not None]
        with_grad = dtype in op.supported_backward_dtypes(torch.device(device).type)
        conjugated = op.test_conjugated_samples and dtype.is_complex
        samples = op.sample_inputs(device, dtype, requires_grad=with_grad, include_conjugated_inputs=conjugated)
        for sample in samples:
            tensor = first_tensor(sample.input)
            expected, expected_grad = self._value_and_grad(op, sample, sample.input, tensor)
            keeps_dtype = not isinstance(expected, torch.Tensor) or expected.dtype is tensor.dtype
            for variant in variants:
                if (variant in inplace and not keeps_dtype) or (variant in operators and sample.kwargs):
                    continue
                if variant in inplace and sample.broadcasts_input:
                    with self.assertRaises(RuntimeError, msg="an in-place variant may not broadcast its input"):
                        variant(clone_input_helper(sample.input), *sample.args, **sample.kwargs)
                    continue
                value = clone_input_helper(sample.input) if variant in inplace else sample.input
                address = first_tensor(value).data_ptr()
                with_variant_grad = variant not in inplace or op.supports_inplace_autograd
                actual, grad = self._value_and_grad(variant, sample, value, tensor, with_variant_grad)
                self.assertEqual(actual, expected)
                if with_variant_grad:
                    self.assertEqual(grad, expected_grad)
                if variant in inplace and isinstance(actual, torch.Tensor):
                    self.assertEqual(actual.data_ptr(), address, msg="an in-place variant moved its result")

    def _value_and_grad(
        self, fn: Callable[..., Any], sample: SampleInput, value: Any, tensor: torch.Tensor, with_grad: bool = True
    ) -> tuple[Any, torch.Tensor | None]:
        """The result and, if it is differentiable, the gradient of its sum with respect to the first input."""
        result = fn(value, *sample.args, **sample.kwargs)
        outputs = differentiable(sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result)
        if not with_grad or not tensor.requires_grad or not outputs:
            return result, None
        ones = [torch.ones_like(t) for t in outputs]
        return result, torch.autograd.grad(outputs, tensor, ones, allow_unused=True)[0]

    @opinfo(op_db, allowed_dtypes=(torch.complex32,))
    def test_complex_half_reference_testing(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """complex32 gives the rounded results of complex64."""

        def cast(old: torch.dtype, new: torch.dtype) -> Callable[[Any], Any]:
            return lambda x: x.to(new) if isinstance(x, torch.Tensor) and x.dtype is old else x

        for sample in op.sample_inputs(device, dtype):
            wide = call(op, sample.transform(cast(torch.complex32, torch.complex64)))
            expected = pytree.tree_map(cast(torch.complex64, torch.complex32), wide)
            self.assertEqual(call(op, sample), expected, exact_dtype=False)

    @opinfo(op_db, allowed_dtypes=(torch.bool,))
    def test_non_standard_bool_values(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """A bool stored as any nonzero byte counts as true."""

        def disguise(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.dtype is not torch.bool:
                return x
            byte = torch.randint(2, 255, x.shape, dtype=torch.uint8, device=x.device)
            return torch.where(x, byte, 0).to(torch.uint8).view(torch.bool)

        for sample in op.sample_inputs(device, dtype):
            self.assertEqual(call(op, sample.transform(disguise)), call(op, sample))

    @skipMeta
    @onlyNativeDeviceTypes
    @opinfo([op for op in op_db if op.promotes_int_to_float], allowed_dtypes=integral_types_and(torch.bool))
    def test_promotes_int_to_float(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Integer inputs give floating-point outputs if the OpInfo says so."""
        for sample in op.sample_inputs(device, dtype):
            for output in tensors(call(op, sample)):
                self.assertTrue(output.dtype.is_floating_point, f"{dtype} gave {output.dtype}")

    @skipMeta
    @onlyNativeDeviceTypes
    @opinfo(op_db, dtypes=OpDTypes.none)
    def test_dtypes(self, device: str, op: OpInfo) -> None:
        """Forward and backward work with exactly the dtypes that the OpInfo lists.

        A dtype that works on some samples only is neither missing nor too many.
        """
        kind = torch.device(device).type
        half_complex = (torch.complex32,) if op.supports_dtype(torch.complex32, kind) else ()
        lower = (torch.half, torch.bfloat16, *half_complex)
        with_grad = floating_and_complex_types_and(*lower)
        worked: dict[str, set[torch.dtype]] = {"forward": set(), "backward": set()}
        failed: dict[str, set[torch.dtype]] = {"forward": set(), "backward": set()}
        for dtype in all_types_and_complex_and(torch.bool, *lower):
            try:
                samples = list(op.sample_inputs(device, dtype, requires_grad=dtype in with_grad))
            except Exception:
                samples = []
            if not samples:
                failed["forward"].add(dtype)
                failed["backward"].add(dtype)
            for sample in samples:
                try:
                    result = call(op, sample)
                    worked["forward"].add(dtype)
                except Exception:
                    failed["forward"].add(dtype)
                    failed["backward"].add(dtype)
                    continue
                if not differentiable(arguments(sample)):
                    continue
                try:
                    if sample.output_process_fn_grad:
                        result = sample.output_process_fn_grad(result)
                    if not tensors(result):
                        continue
                    output = tensors(result)[0]
                    output.backward(torch.randn_like(output))
                    worked["backward"].add(dtype)
                except Exception:
                    failed["backward"].add(dtype)
        listed = {
            "forward": set(op.supported_dtypes(kind)),
            "backward": set(op.supported_backward_dtypes(kind)),
        }
        wrong = []
        for way, claimed in listed.items():
            missing = worked[way] - failed[way] - claimed
            too_many = claimed & (failed[way] - worked[way])
            if missing:
                wrong.append(f"{way} works with {_names(missing)}, which the OpInfo does not list")
            if too_many:
                wrong.append(f"{way} does not work with {_names(too_many)}, which the OpInfo lists")
        self.assertFalse(wrong, f"{op.name} on {kind}: {'; '.join(wrong)}")


def _plain(out: Any) -> Any:
    """`out=` takes a tensor or a plain tuple, not a named tuple."""
    return out if isinstance(out, torch.Tensor) else tuple(out)


def _names(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(d) for d in dtypes))
