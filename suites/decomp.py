"""TestDecomp of test_decomp.py: compares the decompositions that an operator reaches with the kernels they replace."""

from __future__ import annotations

import ast
from contextlib import nullcontext, suppress
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch.testing._internal.common_device_type import onlyNativeDeviceTypes
from torch.testing._internal.common_utils import TestCase, suppress_warnings
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from suites.opinfo import arguments, dense_db, differentiable, opinfo, same_tensors, tensors

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
RANDOM = torch.Tag.nondeterministic_seeded


def tolerances() -> dict[tuple[torch.dtype, Any], float]:
    """The stack's additions to PyTorch's table: how much less accurate than the kernel a decomposition may be.

    They are in its fragment of test_decomp.py, which a fork keeps beside its `torch`; a wheel ships no tests.
    """
    file = Path(torch.__file__).parents[1] / "test/test_decomp.py"
    if not file.is_file():
        return {}
    tables = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Dict)]
    rows = chain.from_iterable(zip(table.keys, table.values) for table in tables)
    found: dict[tuple[torch.dtype, Any], float] = {}
    for key, value in rows:
        if isinstance(key, ast.Tuple):
            with suppress(AttributeError):  # This torch lacks the operator.
                found[_value(key)] = _value(value)
    return found


def _value(node: ast.expr) -> Any:
    return eval(compile(ast.Expression(node), "test_decomp.py", "eval"), {"torch": torch})


def distance(t: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest error of the elements whose reference is finite."""
    finite = torch.isfinite(reference) & torch.isfinite(t)
    error = (t.to(reference.dtype) - reference).abs()[finite]
    return float(error.max()) if error.numel() else 0.0


def pending_bits_are_resolved() -> Any:
    """Resolves conjugated and negated views before kernels see them, as happens outside a dispatch mode.

    A mode runs with these two steps of the dispatcher left out, because they have been done; a decomposition that makes
    such a view itself (`x.conj() * y`) would then compute with the wrong values.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


class Decompose(TorchDispatchMode):
    """Runs each ATen call that has a decomposition both ways.

    A decomposition may differ from the kernel in rounding alone: its error against the kernel in double precision
    is at most three times the kernel's own, or a few roundings of the largest result, and the two are close as
    `assertEqual` has it. Where the operator is tested in half precision, the error is at most the kernel's own and
    what the stack's `test_decomp.py` adds to it. Decompositions are taken apart again (`deep`), except the one being
    compared.
    """

    def __init__(self, test: TestCase, table: dict[Any, Any], dtype: torch.dtype, deep: bool) -> None:
        super().__init__()
        self.test, self.table, self.dtype, self.deep = test, table, dtype, deep
        self.tolerances = tolerances()
        self.compared: set[Any] = set()
        self.inside: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with pending_bits_are_resolved():
            return self._both_ways(func, args, kwargs or {})

    def _both_ways(self, func: Any, args: Any, kwargs: Any) -> Any:
        decomposition = self.table.get(func)
        # Factories and uninitialised results cannot be compared, and a decomposition may call the operator itself.
        nothing = not tensors((args, kwargs)) or "empty" in func._schema.name or RANDOM in func.tags
        if decomposition is None or nothing or func in self.inside or func._schema.is_mutable or _is_view(func):
            return func(*args, **kwargs)
        copies = [t.detach().clone() for t in tensors((args, kwargs))]
        self.inside.append(func)
        try:
            with self if self.deep else nullcontext():
                decomposed = decomposition(*args, **kwargs)
        finally:
            self.inside.pop()
        same_tensors(self.test, tensors((args, kwargs)), copies, f"decomposition of {func} writes its inputs")
        real = func(*args, **kwargs)
        if decomposed is NotImplemented:
            return real
        self.compared.add(func)
        wide_args, wide_kwargs = pytree.tree_map(_widen, (args, kwargs))
        try:
            wide = func(*wide_args, **wide_kwargs)
        except Exception:
            wide = real  # Without a kernel in double precision, compare with the kernel itself.
        for got, kernel, exact in zip(*map(pytree.tree_leaves, (decomposed, real, wide))):
            self._compare(func, got, kernel, exact)
        return real

    def _compare(self, func: Any, got: Any, kernel: Any, exact: Any) -> None:
        if not isinstance(kernel, torch.Tensor):
            self.test.assertEqual(got, kernel, msg=f"decomposition of {func}")
            return
        self.test.assertEqual(got.shape, kernel.shape, msg=f"decomposition of {func}: shape")
        self.test.assertEqual(got.dtype, kernel.dtype, msg=f"decomposition of {func}: dtype")
        if not (kernel.is_floating_point() or kernel.is_complex()):
            self.test.assertEqual(got, kernel, msg=f"decomposition of {func}")
            return
        if kernel.numel() == 0:
            return
        self.test.assertEqual(torch.isnan(got), torch.isnan(kernel), msg=f"decomposition of {func}: NaN")
        if exact.shape != kernel.shape or not (exact.is_floating_point() or exact.is_complex()):
            exact = kernel
        finite = exact[torch.isfinite(exact)]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        if self.dtype in (torch.float16, torch.bfloat16) and exact.is_floating_point():
            allowed = distance(kernel, exact) + self.tolerances.get((self.dtype, func), 1e-7)
        else:
            allowed = 3 * distance(kernel, exact) + 16 * torch.finfo(kernel.dtype).eps * max(scale, 1e-3)
            self.test.assertEqual(got, kernel, msg=f"decomposition of {func}")
        found = distance(got, exact)
        self.test.assertLessEqual(
            found, allowed, f"decomposition of {func}: error {found:.3g}, kernel allows {allowed:.3g}"
        )


def _widen(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().to(WIDE.get(x.dtype, x.dtype))
    return WIDE.get(x, x) if isinstance(x, torch.dtype) else x


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)


def _out_of_reach(func: Any) -> bool:
    """Whether the dispatcher decomposes the operator before a mode sees it, or its results are random."""
    composed = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return composed or RANDOM in func.tags or _is_view(func)


class TestDecomp(TestCase):
    def _run(self, device: str, dtype: torch.dtype, op: OpInfo, table: dict[Any, Any], deep: bool, grad: bool) -> None:
        with_grad = grad and dtype in op.supported_backward_dtypes(torch.device(device).type)
        compared: set[Any] = set()
        samples = op.sample_inputs(device, dtype, requires_grad=with_grad)
        # Python's dispatcher may decompose an operator before autograd sees it.
        for sample, dispatcher in product(samples, (nullcontext, enable_python_dispatcher)):
            args, kwargs = arguments(sample)
            mode = Decompose(self, table, dtype, deep)
            with mode, dispatcher(), torch.autograd.set_multithreading_enabled(False):
                result = op(*args, **kwargs)
                if sample.output_process_fn_grad:
                    result = sample.output_process_fn_grad(result)
                outputs, inputs = differentiable(result), differentiable(arguments(sample))
                if with_grad and outputs and inputs:
                    grads = [torch.randn_like(t) for t in outputs]
                    torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
            compared |= mode.compared
        packet = getattr(torch.ops.aten, op.aten_name, "none of ATen's")
        own = {f for f in table if getattr(f, "overloadpacket", None) is packet and not _out_of_reach(f)}
        self.assertTrue(not own or own & compared, f"no decomposition of {op.aten_name} itself was compared")
        if not compared:
            self.skipTest("no call that the operator makes has a decomposition")

    @onlyNativeDeviceTypes
    @suppress_warnings
    @opinfo(dense_db)
    def test_quick(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Forward, with each decomposition tested alone."""
        self._run(device, dtype, op, decomposition_table, deep=False, grad=False)

    @onlyNativeDeviceTypes
    @suppress_warnings
    @opinfo([op for op in dense_db if op.supports_autograd], allowed_dtypes=(torch.float64,))
    def test_quick_core_backward(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Forward and backward, with the decompositions into core ATen that export uses."""
        self._run(device, dtype, op, dict(core_aten_decompositions()), deep=False, grad=True)

    @onlyNativeDeviceTypes
    @suppress_warnings
    @opinfo(dense_db)
    def test_comprehensive(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """Forward and backward, with decompositions that are decomposed again."""
        self._run(device, dtype, op, decomposition_table, deep=True, grad=True)
