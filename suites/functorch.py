"""TestOperators of functorch/test_ops.py: grad, vjp, jvp and vmap of the operator, and of each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp
from torch.testing._internal.common_device_type import tol, toleranceOverride
from torch.testing._internal.common_utils import TestCase, noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo

from suites.batching import Function, Values, batches, inside_idle_vmap, loop, samples_with_twins
from suites.opinfo import dense_db, opinfo, with_tensors

float_only = partial(opinfo, allowed_dtypes=(torch.float,))
# A batched product may sum in a different order than the products of a loop.
LOOSE = tol(atol=1e-4, rtol=1e-4)
loose = toleranceOverride({torch.float32: LOOSE})


@contextlib.contextmanager
def no_vmap_fallback() -> Iterator[None]:
    """Makes an operator without a batch rule raise, instead of looping over the batch."""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(before)


def is_differentiable_dtype(t: torch.Tensor) -> bool:
    """Whether a tensor can take part in differentiation."""
    return t.is_floating_point() or t.is_complex()


def detached(values: Values) -> Values:
    """The same values, detached from any graph."""
    return tuple(v.detach() for v in values)


def strided(values: Values) -> Values:
    """The same values in a tensor that is not contiguous."""
    return tuple(noncontiguous_like(v) for v in values)


def random_like(values: Values) -> Values:
    """Random cotangents or tangents."""
    return tuple(torch.randn_like(v) for v in values)


def pull_back(fn: Function, count: int) -> Function:
    """The function's vjp, as a function of its `count` inputs and of the cotangents, that returns the gradients."""

    def pulled(*inputs: torch.Tensor) -> Values:
        _, vjp_fn = vjp(fn, *inputs[:count])
        return tuple(vjp_fn(tuple(inputs[count:])))

    return pulled


def push_forward(fn: Function, count: int) -> Function:
    """The function's jvp, as a function of its `count` inputs and their tangents, that returns values and tangents."""

    def pushed(*inputs: torch.Tensor) -> Values:
        outputs, tangents = jvp(fn, tuple(inputs[:count]), tuple(inputs[count:]))
        return (*outputs, *tangents)

    return pushed


def eager_pull_back(fn: Function, primals: Values, cotangents: Values, create_graph: bool = False) -> Values:
    """The reference: torch.autograd.grad, with zeros for inputs that do not matter."""
    inputs = primals if create_graph else tuple(p.detach().requires_grad_() for p in primals)
    outputs = fn(*inputs)
    return _grad(outputs, inputs, cotangents, create_graph)


def _grad(outputs: Values, inputs: Values, cotangents: Values, create_graph: bool) -> Values:
    used = [(o, c) for o, c in zip(outputs, cotangents) if o.requires_grad]
    if not used:
        return tuple(torch.zeros_like(i) for i in inputs)
    reached, weights = zip(*used)
    found = torch.autograd.grad(reached, inputs, weights, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs))


def eager_push_forward(fn: Function, primals: Values, tangents: Values, twice: bool) -> Values:
    """The reference of forward mode: reverse mode twice if the operator allows it, otherwise dual numbers.

    The vjp is linear in the cotangent w, so the derivative of <vjp(w), t> with respect to w is J t.
    """
    if not twice:
        with forward_ad.dual_level():
            outputs = fn(*(forward_ad.make_dual(p.detach(), t) for p, t in zip(primals, tangents)))
            pairs = [forward_ad.unpack_dual(o) for o in outputs]
            return tuple(torch.zeros_like(p.primal) if p.tangent is None else p.tangent for p in pairs)
    inputs = tuple(p.detach().requires_grad_() for p in primals)
    outputs = fn(*inputs)
    weights = tuple(torch.zeros_like(o).requires_grad_() for o in outputs)
    pulled = _grad(outputs, inputs, weights, create_graph=True)
    return _grad(pulled, weights, tangents, create_graph=False)


class TestOperators(TestCase):
    def _samples(
        self, device: str, dtype: torch.dtype, op: OpInfo, requires_grad: bool = True
    ) -> Iterator[tuple[Function, Values, Values]]:
        """The operator as a function of its differentiable inputs, these inputs, and others of the same sizes.

        An operator may have more samples for `requires_grad=False`, which forward mode has to take as well.
        """
        if dtype not in op.supported_backward_dtypes(torch.device(device).type):
            self.skipTest("the operator has no autograd")
        for sample, twin in samples_with_twins(op, device, dtype, requires_grad):
            inputs = (lambda t: t.requires_grad) if requires_grad else is_differentiable_dtype
            split = partial(with_tensors, op, inputs=inputs, outputs=is_differentiable_dtype)
            fn, primals = split(sample=sample)
            _, twins = split(sample=twin)
            if primals and any(o.requires_grad or not requires_grad for o in fn(*primals)):
                yield fn, detached(primals), detached(twins)

    def _require(self, flag: bool, what: str) -> None:
        if not flag:
            self.skipTest(f"the operator has no {what}")

    @float_only(dense_db)
    def test_grad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        for fn, primals, _ in self._samples(device, dtype, op):

            def total(*inputs: torch.Tensor, fn: Function = fn) -> torch.Tensor:
                return sum((o.abs() if o.is_complex() else o).sum() for o in fn(*inputs))

            got = grad(total, argnums=tuple(range(len(primals))))(*primals)
            want = eager_pull_back(lambda *x, t=total: (t(*x),), primals, (torch.ones((), device=device),))
            self.assertEqual(got, want)
            self.assertEqual(grad(total, argnums=tuple(range(len(primals))))(*strided(primals)), want)

    @float_only(dense_db)
    def test_vjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        for fn, primals, _ in self._samples(device, dtype, op):
            outputs, vjp_fn = vjp(fn, *primals)
            cotangents = random_like(outputs)
            want = eager_pull_back(fn, primals, cotangents)
            self.assertEqual(outputs, fn(*primals))
            self.assertEqual(vjp_fn(cotangents), want)
            strided_outputs, vjp_fn = vjp(fn, *strided(primals))
            self.assertEqual(strided_outputs, outputs)
            self.assertEqual(vjp_fn(strided(cotangents)), want)

    @float_only(dense_db)
    def test_jvp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_forward_ad, "forward mode")
        for fn, primals, _ in self._samples(device, dtype, op):
            tangents = random_like(primals)
            want = eager_push_forward(fn, primals, tangents, op.supports_gradgrad)
            for layout in (detached, strided):
                outputs, output_tangents = jvp(fn, layout(primals), layout(tangents))
                self.assertEqual(outputs, fn(*primals))
                self.assertEqual(output_tangents, want)

    @float_only(dense_db)
    def test_vjpvjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_gradgrad, "second derivative")
        for fn, primals, _ in self._samples(device, dtype, op):
            inputs = (*primals, *random_like(fn(*primals)))
            pulled = pull_back(fn, len(primals))
            weights = random_like(primals)
            outputs, vjp_fn = vjp(pulled, *inputs)
            count = len(primals)

            def eager(*x: torch.Tensor, fn: Function = fn, count: int = count) -> Values:
                return eager_pull_back(fn, x[:count], x[count:], create_graph=True)

            self.assertEqual(outputs, eager_pull_back(fn, primals, inputs[count:]))
            self.assertEqual(vjp_fn(weights), eager_pull_back(eager, inputs, weights))

    @float_only(dense_db)
    def test_jvpvjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_fwgrad_bwgrad, "forward over reverse")
        for fn, primals, _ in self._samples(device, dtype, op):
            inputs = (*primals, *random_like(fn(*primals)))
            tangents = random_like(inputs)
            count = len(primals)
            outputs, output_tangents = jvp(pull_back(fn, count), inputs, tangents)

            def eager(*x: torch.Tensor, fn: Function = fn, count: int = count) -> Values:
                x = x if any(v.requires_grad for v in x) else tuple(v.requires_grad_() for v in x)
                return eager_pull_back(fn, x[:count], x[count:], create_graph=True)

            self.assertEqual(outputs, eager_pull_back(fn, primals, inputs[count:]))
            self.assertEqual(output_tangents, eager_push_forward(eager, inputs, tangents, op.supports_gradgrad))

    def _vmap(
        self,
        device: str,
        dtype: torch.dtype,
        op: OpInfo,
        make: Callable[[Function, Values, Values], Any],
        requires_grad: bool = True,
    ) -> None:
        """vmap of the function that `make` returns equals a loop, for many choices of batched inputs."""
        for fn, primals, twins in self._samples(device, dtype, op, requires_grad):
            derived, values, other = make(fn, primals, twins)
            for in_dims, batched in batches(values, other):
                got = torch.vmap(derived, in_dims)(*batched)
                self.assertEqual(
                    got, loop(derived, in_dims, batched), msg=lambda text, d=in_dims: f"in_dims={d}: {text}"
                )
                self.assertEqual(inside_idle_vmap(derived, in_dims, batched), got, msg=f"in_dims={in_dims}, nested")

    def _make_vjp(self, fn: Function, primals: Values, twins: Values) -> tuple[Function, Values, Values]:
        outputs = fn(*primals)
        return (
            pull_back(fn, len(primals)),
            (*primals, *random_like(outputs)),
            (*twins, *random_like(outputs)),
        )

    def _make_jvp(self, fn: Function, primals: Values, twins: Values) -> tuple[Function, Values, Values]:
        return push_forward(fn, len(primals)), (*primals, *random_like(primals)), (*twins, *random_like(primals))

    @float_only(dense_db)
    @loose
    def test_vmapvjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._vmap(device, dtype, op, self._make_vjp)

    @float_only(dense_db)
    @loose
    def test_vmapvjp_has_batch_rule(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        with no_vmap_fallback():
            self._vmap(device, dtype, op, self._make_vjp)

    @float_only(dense_db)
    @loose
    def test_vmapjvpall(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_forward_ad, "forward mode")
        self._vmap(device, dtype, op, self._make_jvp, requires_grad=False)

    @float_only(dense_db)
    @loose
    def test_vmapjvpall_has_batch_rule(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_forward_ad, "forward mode")
        with no_vmap_fallback():
            self._vmap(device, dtype, op, self._make_jvp, requires_grad=False)

    @float_only(dense_db)
    @loose
    def test_vmapvjpvjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_gradgrad, "second derivative")

        def twice(fn: Function, primals: Values, twins: Values) -> tuple[Function, Values, Values]:
            return self._make_vjp(*self._make_vjp(fn, primals, twins))

        self._vmap(device, dtype, op, twice)

    @float_only(dense_db)
    @loose
    def test_vmapjvpvjp(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        self._require(op.supports_fwgrad_bwgrad, "forward over reverse")

        def over(fn: Function, primals: Values, twins: Values) -> tuple[Function, Values, Values]:
            return self._make_jvp(*self._make_vjp(fn, primals, twins))

        self._vmap(device, dtype, op, over)

    @float_only(dense_db)
    def test_vjpvmap(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """The gradient of a batched call equals that of torch.autograd and that of a loop."""
        for fn, primals, twins in self._samples(device, dtype, op):
            for in_dims, batched in batches(primals, twins):
                mapped = torch.vmap(fn, in_dims)
                outputs, vjp_fn = vjp(mapped, *batched)
                cotangents = random_like(outputs)
                got = vjp_fn(cotangents)
                self.assertEqual(got, eager_pull_back(mapped, batched, cotangents), msg=f"in_dims={in_dims}")
                looped = eager_pull_back(partial(_looped, fn, in_dims), batched, cotangents)
                self.assertEqual(got, looped, **LOOSE._asdict(), msg=lambda text, d=in_dims: f"in_dims={d}: {text}")

    @opinfo(dense_db, allowed_dtypes=(torch.float, torch.double))
    def test_vmap_autograd_grad(self, device: str, dtype: torch.dtype, op: OpInfo) -> None:
        """vmap over the incoming gradients of a graph that was built outside vmap."""

        def make(fn: Function, primals: Values, twins: Values) -> tuple[Function, Values, Values]:
            inputs = tuple(p.requires_grad_() for p in primals)
            outputs = tuple(o for o in fn(*inputs) if o.requires_grad)

            def pulled(*cotangents: torch.Tensor) -> Values:
                found = torch.autograd.grad(outputs, inputs, cotangents, retain_graph=True, allow_unused=True)
                return tuple(g for g in found if g is not None)

            return pulled, random_like(outputs), random_like(outputs)

        self._vmap(device, dtype, op, make)


def _looped(fn: Function, in_dims: Any, *values: torch.Tensor) -> Values:
    return loop(fn, in_dims, values)
