"""torch.attn with kernels and formulas of its own: every gradient, every transform, every subsystem of PyTorch."""
# Owner(s): ["module: autograd"]

import contextlib
import copy
import io
import itertools
import os
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
import torch._dynamo.testing
import torch.autograd.forward_ad as fwAD
import torch.distributed as dist
from torch._dynamo import compiled_autograd
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import make_tensor
from torch.testing._internal import composite_compliance
from torch.testing._internal.common_device_type import (
    dtypes,
    instantiate_device_type_tests,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    TestCase,
)
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


aten = torch.ops.aten
# False where attn is composed of other operators; what the table of parity names runs there too.
EXPLICIT = hasattr(aten, "_attn_backward")

PRECISE = [torch.float64, torch.complex128]
ALL = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
]
# N, D and E: all different, all one, N the smallest, and each of them empty
SIZES = [(4, 2, 3), (1, 1, 1), (2, 5, 3), (0, 2, 3), (3, 0, 2), (3, 2, 0)]


def composition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What everything here is compared with: output (N, E) and attn (N, N) in plain differentiable operations."""
    attn = torch.tanh(torch.matmul(q, k.mT))
    return torch.matmul(attn, v), attn


def composition_backward(grad_output, grad_attn, q, k, v, attn, mask):
    """The gradients of q, k and v that the mask asks for, None where no given gradient reaches one."""
    G = [
        g
        for g in (grad_attn, None if grad_output is None else grad_output @ v.mH)
        if g is not None
    ]
    X = sum(G[1:], G[0]) * (1 - attn * attn).conj() if G else None
    return (
        X @ k.conj() if mask[0] and X is not None else None,
        X.mT @ q.conj() if mask[1] and X is not None else None,
        attn.mH @ grad_output if mask[2] and grad_output is not None else None,
    )


def decomposed(operator) -> Callable:
    """The function that the operator is decomposed into."""
    return torch._decomp.decomposition_table[operator.default]


def precise(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def make(
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> list[torch.Tensor]:
    """Random tensors so small that tanh does not saturate: there, every gradient is zero and every test passes."""
    bound = 0.5 if dtype.is_complex else 1.0
    return [
        make_tensor(
            shape,
            dtype=dtype,
            device="cpu",
            low=-bound,
            high=bound,
            requires_grad=requires_grad,
        )
        for shape in shapes
    ]


def assert_as_good(
    ours: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor
) -> None:
    """The largest error is at most three times that of the plain computation in the same dtype, and two units."""
    assert ours.shape == exact.shape, (ours.shape, exact.shape)
    if ours.dtype == exact.dtype:  # nothing is more exact than the plain computation
        torch.testing.assert_close(ours, plain)
    elif exact.numel():
        error, allowed = ((x - exact).abs().max().item() for x in (ours, plain))
        unit = torch.finfo(ours.dtype).eps * exact.abs().max().item()
        assert error <= 3 * allowed + 2 * unit, (error, allowed, unit)


def make_inputs(
    n: int = 4,
    d: int = 2,
    e: int = 3,
    *,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> list[torch.Tensor]:
    return make((n, d), (n, d), (n, e), dtype=dtype, requires_grad=requires_grad)


def subsets(count: int) -> Iterator[tuple[bool, ...]]:
    return itertools.product((True, False), repeat=count)


def keep(
    tensors: Sequence[torch.Tensor], chosen: Sequence[bool]
) -> list[torch.Tensor | None]:
    return [x if use else None for x, use in zip(tensors, chosen, strict=True)]


def first_gradients(
    function: Callable, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Of a loss that bends both outputs, so that its gradients depend on all inputs."""
    output, attn = function(*inputs)
    loss = (output * output.conj()).real.sum() + (attn * attn).real.sum()
    return torch.autograd.grad(loss, inputs, create_graph=True)


def with_gradients(
    function: Callable, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Outputs and gradients, all detached."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output, attn = function(*inputs)
    # exact in every dtype
    weights = [
        ((torch.arange(x.numel()) % 17 - 8) / 8).to(x.dtype).view(x.shape)
        for x in (output, attn)
    ]
    loss = (output * weights[0]).sum() + (attn * weights[1]).sum()
    grads = torch.autograd.grad(loss.real if loss.is_complex() else loss, inputs)
    return output.detach(), attn.detach(), *grads


def agrees(inputs: Sequence[torch.Tensor]) -> None:
    """Values and gradients of torch.attn are as good as composition's."""
    ours = with_gradients(torch.attn, inputs)
    plain = with_gradients(composition, inputs)
    exact = with_gradients(composition, [x.to(precise(x.dtype)) for x in inputs])
    for x, theirs, right in zip(ours, plain, exact, strict=True):
        assert x.dtype == theirs.dtype, (x.dtype, theirs.dtype)
        assert_as_good(x, theirs, right)


LAYOUTS = {
    "contiguous": lambda: make_inputs(),
    "transposed": lambda: [x.mT for x in make((2, 4), (2, 4), (3, 4))],
    "expanded": lambda: [x.expand(4, -1) for x in make((1, 2), (1, 2), (1, 3))],
    "every other column": lambda: [x[:, ::2] for x in make((4, 4), (4, 4), (4, 6))],
    "conjugate view": lambda: [x.conj() for x in make_inputs(dtype=torch.complex128)],
    "negative view": lambda: [
        x.conj().imag for x in make_inputs(dtype=torch.complex128)
    ],
}


in_precise_dtypes = parametrize("dtype", PRECISE)
in_all_dtypes = parametrize("dtype", ALL)
of_all_sizes = parametrize(
    "sizes", SIZES, name_fn=lambda sizes: "N{}_D{}_E{}".format(*sizes)
)


class TestGradients(TestCase):
    def test_outputs_are_no_functions_of_each_other(self):
        output, attn = torch.attn(*make_inputs())
        self.assertIs(output.grad_fn, attn.grad_fn)
        with self.assertRaisesRegex(RuntimeError, "appears to not have been used"):
            torch.autograd.grad(output.sum(), attn)

    @in_precise_dtypes
    @of_all_sizes
    def test_every_subset_of_inputs_and_gradients(self, sizes, dtype):
        """Values, and which gradients there are at all, as composition has them."""
        n, _, e = sizes
        given = make((n, e), (n, n), dtype=dtype, requires_grad=False)
        values = make_inputs(*sizes, dtype=dtype, requires_grad=False)
        for wanted, defined in itertools.product(subsets(3), subsets(2)):
            if not any(wanted) or not any(defined):
                continue
            found = []
            for function in torch.attn, composition:
                inputs = [
                    x.clone().requires_grad_(want)
                    for x, want in zip(values, wanted, strict=True)
                ]
                used = [
                    (x, g)
                    for x, g, use in zip(function(*inputs), given, defined, strict=True)
                    if use and x.requires_grad
                ]
                if used:
                    torch.autograd.backward(*zip(*used, strict=True))
                found.append([x.grad for x in inputs])
            self.assertEqual(
                *[[g is None for g in grads] for grads in found],
                msg=f"{wanted} {defined}",
            )
            self.assertEqual(*[[g for g in grads if g is not None] for grads in found])

    @in_all_dtypes
    def test_every_dtype(self, dtype):
        for n in 17, 1090:  # one block of rows, and more than one
            agrees(make_inputs(n, 5, 9, dtype=dtype))

    @parametrize("layout", LAYOUTS, name_fn=lambda name: name.replace(" ", "_"))
    def test_every_layout(self, layout):
        agrees(LAYOUTS[layout]())

    def test_undefined_gradients_of_both_outputs(self):
        class Undefined(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return None

        inputs = make_inputs()
        torch.autograd.backward([Undefined.apply(x).sum() for x in torch.attn(*inputs)])
        self.assertEqual([x.grad for x in inputs], [None] * 3)

    @in_all_dtypes
    def test_every_mask_of_the_backward_operator(self, dtype):
        """What the mask or an undefined gradient leaves out is None; operands that are not needed may be missing."""
        q, k, v = make_inputs(5, 3, 2, dtype=dtype, requires_grad=False)
        attn = composition(q, k, v)[1]
        gradients = make((5, 2), (5, 5), dtype=dtype, requires_grad=False)
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            grad_output, grad_attn = keep(gradients, defined)
            args = [grad_output, grad_attn, q, k, v, attn]
            plain = composition_backward(*args, mask)
            exact = composition_backward(
                *[None if x is None else x.to(precise(dtype)) for x in args], mask
            )
            scores = any(defined)
            needed = (
                mask[1] and scores,
                mask[0] and scores,
                defined[0] and any(mask[:2]),
            )
            result = aten._attn_backward(
                grad_output, grad_attn, *keep((q, k, v), needed), attn, mask
            )
            self.assertEqual([x is None for x in result], [x is None for x in plain])
            for ours, theirs, right in zip(result, plain, exact, strict=True):
                if ours is not None:
                    assert_as_good(ours, theirs, right)

    def test_a_hook_that_returns_another_size_is_refused(self):
        inputs = make_inputs(16, 3, 4)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x, lambda x: x if x.shape[0] == x.shape[1] else x[:8].clone()
        ):
            output = torch.attn(*inputs).output
        with self.assertRaisesRegex(RuntimeError, "the same number of rows, but got"):
            output.sum().backward()

    @in_precise_dtypes
    @of_all_sizes
    def test_gradcheck(self, sizes, dtype):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertTrue(
            gradcheck(
                torch.attn,
                inputs,
                check_forward_ad=True,
                check_batched_grad=True,
                check_batched_forward_grad=True,
            )
        )
        self.assertTrue(
            gradgradcheck(
                torch.attn, inputs, check_fwd_over_rev=True, check_batched_grad=True
            )
        )

    @in_precise_dtypes
    def test_gradcheck_of_every_subset(self, dtype):
        """First and second derivatives, forward over reverse included, of each output and for each choice of inputs."""
        for outputs, wanted in itertools.product(("output", "attn"), subsets(3)):
            inputs = [
                x.requires_grad_(want)
                for x, want in zip(
                    make_inputs(2, 3, 2, dtype=dtype), wanted, strict=True
                )
            ]

            def function(*inputs, outputs=outputs):
                return getattr(torch.attn(*inputs), outputs)

            if any(
                x.requires_grad for x in (inputs if outputs == "output" else inputs[:2])
            ):
                self.assertTrue(gradcheck(function, inputs, check_forward_ad=True))
                self.assertTrue(
                    gradgradcheck(function, inputs, check_fwd_over_rev=True)
                )

    @in_precise_dtypes
    def test_every_subset_of_the_double_backward(self, dtype):
        """gradgradcheck gives a gradient to one of the gradients of q, k and v at a time."""
        values = make_inputs(dtype=dtype, requires_grad=False)
        given = make_inputs(dtype=dtype, requires_grad=False)
        for chosen in subsets(3):
            found = []
            for function in torch.attn, composition:
                inputs = [x.clone().requires_grad_() for x in values]
                grads = first_gradients(function, inputs)
                pairs = [
                    (g, w)
                    for g, w, use in zip(grads, given, chosen, strict=True)
                    if use
                ]
                if pairs:
                    outputs, weights = zip(*pairs, strict=True)
                    found.append(torch.autograd.grad(outputs, inputs, weights))
            if found:
                self.assertEqual(*found, msg=f"{chosen}")

    @in_precise_dtypes
    def test_third_derivative(self, dtype):
        inputs = make_inputs(2, 2, 1, dtype=dtype)
        self.assertTrue(
            gradgradcheck(lambda *inputs: first_gradients(torch.attn, inputs), inputs)
        )

    @in_precise_dtypes
    def test_derivative_of_the_backward_operator(self, dtype):
        """Of all of its tensors, by itself: reverse, forward and both."""
        inputs = make((3, 2), (3, 3), (3, 4), (3, 4), (3, 2), (3, 3), dtype=dtype)
        for mask in subsets(3):
            if any(mask):

                def function(*inputs, mask=mask):
                    return tuple(
                        x for x in aten._attn_backward(*inputs, mask) if x is not None
                    )

                self.assertTrue(gradcheck(function, inputs, check_forward_ad=True))
                self.assertTrue(
                    gradgradcheck(function, inputs, check_fwd_over_rev=True)
                )

    @in_precise_dtypes
    def test_every_subset_of_tangents(self, dtype):
        values, tangents = (
            make_inputs(dtype=dtype, requires_grad=False) for _ in range(2)
        )
        for chosen in subsets(3):
            found = []
            for function in torch.attn, composition:
                with fwAD.dual_level():
                    inputs = [
                        fwAD.make_dual(x, t) if use else x
                        for x, t, use in zip(values, tangents, chosen, strict=True)
                    ]
                    found.append(
                        [fwAD.unpack_dual(x).tangent for x in function(*inputs)]
                    )
            self.assertEqual(
                *[[t is None for t in result] for result in found], msg=f"{chosen}"
            )
            self.assertEqual(
                *[[t for t in result if t is not None] for result in found]
            )

    @in_precise_dtypes
    def test_gradients_of_expanded_and_lazy_gradients(self, dtype):
        """The gradient of a sum is one element seen N x N times; a lazy conjugate is not what lies in memory."""
        inputs = make_inputs(dtype=dtype)

        def loss(function):
            output, attn = function(*inputs)
            return (output.conj().sum() + attn.mT.sum() * 2).real

        self.assertEqual(
            *[torch.autograd.grad(loss(f), inputs) for f in (torch.attn, composition)]
        )

    def test_a_hook_on_attn_sees_only_its_direct_gradient(self):
        """Not what reaches it through output, which is not a function of it in the graph."""
        output, attn = torch.attn(*make_inputs())
        seen = []
        attn.register_hook(seen.append)
        (output.sum() + 2 * attn.sum()).backward()
        self.assertEqual(seen, [torch.full_like(attn, 2)])

    def test_gradients_are_kept_for_a_second_backward(self):
        inputs = make_inputs()
        output, attn = torch.attn(*inputs)
        first = torch.autograd.grad(
            output.sum() + attn.sum(), inputs, retain_graph=True
        )
        second = torch.autograd.grad(output.sum() + attn.sum(), inputs)
        self.assertEqual(first, second, rtol=0, atol=0)

    def test_only_what_is_needed_is_saved(self):
        """attn always; q for k's gradient, k for q's, v for either."""
        for wanted in subsets(3):
            inputs = [
                x.requires_grad_(want)
                for x, want in zip(make_inputs(), wanted, strict=True)
            ]
            if any(wanted):
                node = torch.attn(*inputs).output.grad_fn
                saved = [
                    name
                    for name in ("q", "k", "v", "attn")
                    if getattr(node, f"_saved_{name}") is not None
                ]
                expected = (
                    ["q"] * wanted[1]
                    + ["k"] * wanted[0]
                    + ["v"] * (wanted[0] or wanted[1])
                    + ["attn"]
                )
                self.assertEqual(saved, expected)


def bad_calls() -> Iterator[tuple[str, dict[str, torch.Tensor | None]]]:
    """Calls of attn and of its backward that break one rule for one tensor each: what is broken, and all tensors."""
    shapes = {
        "grad_output": (5, 4),
        "grad_attn": (5, 5),
        "q": (5, 3),
        "k": (5, 3),
        "v": (5, 4),
        "attn": (5, 5),
    }

    def call(names, **other):
        tensors = {name: torch.randn(shapes[name]) for name in names}
        return tensors | other

    for names in ("q", "k", "v"), tuple(shapes):
        for name in names:
            n, columns = shapes[name]
            for shape in (), (n,), (n, columns, 1):
                yield (
                    f"{name}, {len(shape)}-D",
                    call(names, **{name: torch.randn(shape)}),
                )
            for shape in (n - 1, columns), (n, columns + 1), (0, columns), (1, columns):
                if names[0] == "q" and name == "v" and shape[0] == n:
                    continue  # nothing else has v's number of columns
                yield f"{name}, {shape}", call(names, **{name: torch.randn(shape)})
            other = torch.randn(n, columns, dtype=torch.float64)
            yield f"{name}, another dtype", call(names, **{name: other})
        for dtype in torch.int64, torch.bool, torch.complex32, torch.float8_e4m3fn:
            tensors = {x: torch.zeros(shapes[x], dtype=dtype) for x in names}
            yield f"{dtype}", tensors
    for name in "q", "k", "v":
        yield f"{name}, None", call(tuple(shapes), **{name: None})


def call_operator(tensors: dict[str, torch.Tensor | None]) -> tuple:
    if "attn" in tensors:
        return aten._attn_backward(*tensors.values(), [True] * 3)
    return torch.attn(*tensors.values())


def mapped(
    function: Callable, tensors: dict[str, torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    return {name: None if x is None else function(x) for name, x in tensors.items()}


class TestErrors(TestCase):
    def sentence(self, function, *args):
        with self.assertRaises(RuntimeError) as caught:
            function(*args)
        return str(caught.exception)

    @parametrize("where", ["meta", "fake", "vmap", "decomposition"])
    def test_what_the_cpu_refuses_is_refused_in_the_same_words(self, where):
        def on_meta(tensors):
            return call_operator(mapped(lambda x: x.to("meta"), tensors))

        def on_fake(tensors):
            with FakeTensorMode() as mode:
                return call_operator(mapped(mode.from_tensor, tensors))

        def in_vmap(tensors):
            names = [name for name, x in tensors.items() if x is not None]

            def function(*batched):
                return call_operator(tensors | dict(zip(names, batched, strict=True)))

            return vmap(function)(*[torch.stack([tensors[x]] * 2) for x in names])

        def in_parts(tensors):
            if "attn" in tensors:
                return decomposed(aten._attn_backward)(*tensors.values(), [True] * 3)
            return decomposed(aten.attn)(*tensors.values())

        ways = {
            "meta": on_meta,
            "fake": on_fake,
            "vmap": in_vmap,
            "decomposition": in_parts,
        }
        for broken, tensors in bad_calls():
            operator = "_attn_backward" if "attn" in tensors else "attn"
            with self.subTest(operator=operator, broken=broken):
                on_cpu = self.sentence(call_operator, tensors)
                self.assertRegex(on_cpu, f"^{operator}: expected .*, but got ")
                self.assertEqual(self.sentence(ways[where], tensors), on_cpu)

    def test_devices(self):
        """Tensors of two devices, which a fake mode and vmap tell apart as well."""
        shapes = [(5, 4), (5, 5), (5, 3), (5, 3), (5, 4), (5, 5)]
        for i in range(6):
            devices = ["meta" if i == j else "cpu" for j in range(6)]
            tensors = [torch.randn(x, device=d) for x, d in zip(shapes, devices)]
            message = "_attn_backward: expected grad_output, .* on the same device, but"
            with self.assertRaisesRegex(RuntimeError, message):
                aten._attn_backward(*tensors, [True] * 3)
            if 2 <= i < 5:
                message = "attn: expected q, k and v to be on the same device, but got"
                with self.assertRaisesRegex(RuntimeError, message):
                    torch.attn(*tensors[2:5])


def products(function: Callable, *args) -> int:
    """How many products ATen makes in a call: none, where a kernel runs."""
    with torch.autograd.profiler.profile() as profile:
        function(*args)
    return sum(event.name == "aten::mm" for event in profile.function_events)


# Sizes that the CPU kernels take, with AVX2 or more, and sizes that ATen's products take: wide ones and complex ones.
FUSED, WIDE = (4, 2, 3), (5, 300, 400)


class PassOn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


# Gradients are given, not those of a loss: the derivative of most losses multiplies by a lazy conjugate itself.
def first_order(function, inputs, around):
    outputs = tuple(function(*inputs))
    given = [x.detach() * 2 for x in outputs]
    with around():
        return torch.autograd.grad(outputs, inputs, given)


def second_order(function, inputs, around):
    outputs = tuple(function(*inputs))
    given = [(x.detach() * 2).requires_grad_() for x in outputs]
    with around():
        grads = torch.autograd.grad(outputs, inputs, given, create_graph=True)
        more = [x.detach() * 0.5 for x in grads]
        return torch.autograd.grad(grads, (*inputs, *given), more)


def forward_over_reverse(function, inputs, around):
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, x.detach() * 0.5 + 0.25) for x in inputs]
        outputs = tuple(function(*duals))
        given = [x.detach() * 2 for x in outputs]
        with around():
            grads = torch.autograd.grad(outputs, duals, given, create_graph=True)
        return [fwAD.unpack_dual(x).tangent.detach() for x in grads]


def batched_gradients(function, inputs, around):
    outputs = tuple(function(*inputs))
    given = [torch.stack([x.detach() * 2, x.detach() - 1]) for x in outputs]
    with around():
        return vmap(lambda *given: torch.autograd.grad(outputs, inputs, given))(*given)


def attn_of_a_batch(*inputs):
    return [x.squeeze(0) for x in vmap(torch.attn)(*[x.unsqueeze(0) for x in inputs])]


def in_mode(mode: Callable[[], object]) -> Callable:
    def run(order, function, values):
        with mode():
            inputs = [x.clone().requires_grad_() for x in values]
            return order(function, inputs, contextlib.nullcontext)

    return run


def in_autocast(order, function, values):
    """The forward outside, where autocast would cast the inputs; whatever differentiates it inside."""
    inputs = [x.clone().requires_grad_() for x in values]
    device = inputs[0].device.type
    return order(function, inputs, lambda: torch.autocast(device, torch.bfloat16))


def in_two_tensors(order, function, values):
    inputs = [TwoTensor(x.clone(), x.clone()).requires_grad_() for x in values]
    return [x.b for x in order(function, inputs, contextlib.nullcontext)]


def in_logging_tensors(order, function, values):
    inputs = [LoggingTensor(x.clone()).requires_grad_() for x in values]
    return [x.elem for x in order(function, inputs, contextlib.nullcontext)]


ORDERS = [first_order, second_order, forward_over_reverse, batched_gradients]
MODES = {
    "dispatch mode": in_mode(PassOn),
    "FLOP counter": in_mode(lambda: FlopCounterMode(display=False)),
    "mutation allowed": in_mode(torch.autograd.graph.allow_mutation_on_saved_tensors),
}
CONTEXTS = MODES | {
    "autocast": in_autocast,
    "TwoTensor": in_two_tensors,
    "LoggingTensor": in_logging_tensors,
}


class TestContexts(TestCase):
    """Below the Python key lazy conjugates are not resolved, and autocast casts whatever product it sees."""

    def assert_same(self, result, expected):
        """Equal bits, where the same code runs on the same operands; a BLAS sums complex numbers otherwise where a
        lazy conjugate is resolved before, so that those differ by some units of the largest.
        """
        for x, y in zip(result, expected, strict=True):
            self.assertTrue(y.isfinite().all())
            units = 16 * torch.finfo(y.dtype).eps if y.is_complex() else 0
            atol = units * y.abs().max().item() if y.numel() else 0
            self.assertEqual(x, y, rtol=0, atol=atol)

    @unittest.skipIf(
        not torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", "CPU")
        or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
        "no CPU kernels take float32 and float64 here",
    )
    @parametrize("dtype", [torch.float32, torch.float64])
    def test_sizes_reach_kernels_and_products(self, dtype):
        for sizes, count in (FUSED, 0), (WIDE, 2):
            inputs = make_inputs(*sizes, dtype=dtype)
            self.assertEqual(products(torch.attn, *inputs), count)
            outputs = tuple(torch.attn(*inputs))
            given = [torch.ones_like(x) for x in outputs]
            backward = products(torch.autograd.grad, outputs, inputs, given)
            self.assertEqual(backward, 2 * count)

    @in_all_dtypes
    @parametrize("order", ORDERS, name_fn=lambda order: order.__name__)
    @parametrize("context", CONTEXTS, name_fn=lambda name: name.replace(" ", "_"))
    def test_derivatives_are_those_outside(self, context, order, dtype):
        for sizes in FUSED, WIDE:
            values = make_inputs(*sizes, dtype=dtype, requires_grad=False)
            values = [x / max(sizes) ** 0.5 for x in values]  # or float16 overflows
            for function in torch.attn, attn_of_a_batch:
                if context == "TwoTensor" and order is forward_over_reverse:
                    continue  # TwoTensor has no tangents
                if context not in MODES and function is attn_of_a_batch:
                    continue  # it has the derivatives of PyTorch's own operators
                expected = in_mode(contextlib.nullcontext)(order, function, values)
                result = CONTEXTS[context](order, function, values)
                self.assert_same(result, expected)

    @in_all_dtypes
    def test_lazy_views_below_the_python_key(self, dtype):
        """There the kernels get conjugate and negative views as they are."""
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)
        keys = keys | torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)

        lazy_views = (
            lambda x: torch._neg_view(-x),
            lambda x: x.conj_physical().conj(),
            lambda x: torch._neg_view((-x).conj_physical()).conj(),
        )
        for (n, d, e), lazy in itertools.product(
            ((9, 300, 400), (9, 4, 5)), lazy_views
        ):
            tensors = make(
                *((n, e), (n, n), (n, d), (n, d), (n, e), (n, n)),
                dtype=dtype,
                requires_grad=False,
            )
            expected = [
                *torch.attn(*tensors[2:5]),
                *aten._attn_backward(*tensors, [True] * 3),
            ]
            views = [lazy(x) for x in tensors]
            with torch._C._ExcludeDispatchKeyGuard(keys):
                result = [
                    *torch.attn(*views[2:5]),
                    *aten._attn_backward(*views, [True] * 3),
                ]
            self.assertEqual(result, expected)

    @in_all_dtypes
    def test_the_backward_operator_under_autocast(self, dtype):
        for n, d, e in (9, 300, 400), (9, 100, 100):
            tensors = make(
                (n, e),
                (n, n),
                (n, d),
                (n, d),
                (n, e),
                (n, n),
                dtype=dtype,
                requires_grad=False,
            )
            expected = aten._attn_backward(*tensors, [True] * 3)
            with torch.autocast("cpu", torch.bfloat16):
                result = aten._attn_backward(*tensors, [True] * 3)
                with FakeTensorMode() as mode:
                    fake = aten._attn_backward(
                        *[mode.from_tensor(x) for x in tensors], [True] * 3
                    )
            self.assertEqual(result, expected, rtol=0, atol=0)
            self.assertEqual([x.dtype for x in fake], [dtype] * 3)

    def test_tangents_of_the_backward_operator_under_autocast(self):
        shapes = (9, 4), (9, 9), (9, 3), (9, 3), (9, 4), (9, 9)
        tensors, tangents = (
            make(*shapes, dtype=torch.float32, requires_grad=False) for _ in range(2)
        )

        def of_backward():
            with fwAD.dual_level():
                duals = list(map(fwAD.make_dual, tensors, tangents))
                grads = aten._attn_backward(*duals, [True] * 3)
                return [fwAD.unpack_dual(x).tangent for x in grads]

        expected = of_backward()
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(of_backward(), expected, rtol=0, atol=0)

    @parametrize("dtype", [torch.complex64, torch.complex128])
    def test_infinite_gradients(self, dtype):
        """What is infinite and what is NaN, as composition has it; 1 + 0j times an infinity is NaN."""
        values = make_inputs(dtype=dtype, requires_grad=False)
        overflows = infinities = 0
        for number, which in itertools.product(
            (complex(torch.inf, 0), complex(0, -torch.inf), complex(torch.inf, 1)),
            range(2),
        ):
            given = make((4, 3), (4, 4), dtype=dtype, requires_grad=False)
            given[which][1, 2] = number
            found = []
            for function in torch.attn, composition:
                inputs = [x.clone().requires_grad_() for x in values]
                grads = torch.autograd.grad(tuple(function(*inputs)), inputs, given)
                found.append([torch.view_as_real(x) for x in grads])
            attn = composition(*values)[1]
            grads = decomposed(aten._attn_backward)(*given, *values, attn, [True] * 3)
            found.append([torch.view_as_real(x) for x in grads])
            for ours in found[0], found[2]:
                self.assertEqual(ours, found[1], equal_nan=True)
            overflows += sum((~x.isfinite()).sum().item() for x in found[1])
            infinities += which * found[1][0].isinf().sum().item()
        self.assertGreater(overflows, 0)
        if not infinities:
            self.skipTest(
                "this BLAS makes NaN of an infinite X, whose order of terms thus cannot be seen"
            )


class TestContextsOfDevices(TestCase):
    """The same on every device, each of which has kernels of its own."""

    @dtypes(torch.complex64, torch.complex128)
    @parametrize("context", MODES, name_fn=lambda name: name.replace(" ", "_"))
    def test_complex_derivatives_in_modes(self, device, context, dtype):
        for order, sizes in itertools.product(ORDERS, ((4, 2, 3), (70, 30, 40))):
            inputs = make_inputs(*sizes, dtype=dtype, requires_grad=False)
            values = [x.to(device) for x in inputs]
            expected = in_mode(contextlib.nullcontext)(order, torch.attn, values)
            result = CONTEXTS[context](order, torch.attn, values)
            TestContexts.assert_same(self, result, expected)

    @dtypes(*ALL)
    def test_derivatives_under_autocast(self, device, dtype):
        for order, sizes in itertools.product(ORDERS, ((4, 2, 3), (70, 300, 400))):
            inputs = make_inputs(*sizes, dtype=dtype, requires_grad=False)
            values = [x.to(device) for x in inputs]
            expected = in_mode(contextlib.nullcontext)(order, torch.attn, values)
            result = in_autocast(order, torch.attn, values)
            self.assertEqual(result, expected, rtol=0, atol=0)


class TestGenericKernels(TestCase):
    """Backends without kernels of their own run these; XLA, which is not in this PyTorch, stands for them."""

    @in_precise_dtypes
    def test_they_agree_with_the_cpu_ones(self, dtype):
        backend = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
        q, k, v = make_inputs(9, 3, 2, dtype=dtype, requires_grad=False)
        gradients = make((9, 2), (9, 9), dtype=dtype, requires_grad=False)
        attn = torch.attn(q, k, v).attn
        self.assertEqual(
            aten.attn.default.redispatch(backend, q, k, v), tuple(torch.attn(q, k, v))
        )
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            args = [*keep(gradients, defined), q, k, v, attn, mask]
            self.assertEqual(
                aten._attn_backward.default.redispatch(backend, *args),
                aten._attn_backward(*args),
            )


class TestTransforms(TestCase):
    def setUp(self):
        super().setUp()
        # A loop over the batch, which only warns, is an error here.
        self.fallback = torch._C._functorch._is_vmap_fallback_enabled()
        torch._C._functorch._set_vmap_fallback_enabled(False)

    def tearDown(self):
        torch._C._functorch._set_vmap_fallback_enabled(self.fallback)
        super().tearDown()

    def check_vmap(self, function, expected, shapes, dtype, batch=3):
        """vmap of `function`, over every choice of in_dims of these tensors, against `expected` in a loop."""
        for in_dims in itertools.product((None, 0, 1, 2), repeat=len(shapes)):
            if set(in_dims) == {None}:
                continue
            inputs = [
                make(
                    shape if dim is None else (*shape[:dim], batch, *shape[dim:]),
                    dtype=dtype,
                    requires_grad=False,
                )[0]
                for shape, dim in zip(shapes, in_dims, strict=True)
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                result = vmap(function, in_dims)(*inputs)
            each = [
                expected(
                    *[
                        x if dim is None else x.select(dim, i)
                        for x, dim in zip(inputs, in_dims, strict=True)
                    ]
                )
                for i in range(batch)
            ]
            self.assertEqual(
                tuple(result),
                tuple(map(torch.stack, zip(*each, strict=True))),
                msg=f"{in_dims}",
            )

    @in_precise_dtypes
    def test_vmap_over_every_choice_of_in_dims(self, dtype):
        self.check_vmap(torch.attn, composition, [(4, 2), (4, 2), (4, 3)], dtype)

    @in_precise_dtypes
    def test_vmap_of_the_backward_operator(self, dtype):
        """In pairs of in_dims, or all six tensors would make 4096 cases."""
        for mask in subsets(3):
            for defined in subsets(2):

                def backward(q, k, given, function, mask=mask, defined=defined):
                    v, attn = torch.ones_like(given), torch.tanh(q @ k.mT)
                    grad_output, grad_attn = keep((given, q @ q.mT), defined)
                    result = function(grad_output, grad_attn, q, k, v, attn, mask)
                    return tuple(x for x in result if x is not None)

                if any(defined) and (any(mask[:2]) or (mask[2] and defined[0])):
                    self.check_vmap(
                        lambda *x: backward(*x, aten._attn_backward),
                        lambda *x: backward(*x, composition_backward),
                        [(4, 2), (4, 2), (4, 3)],
                        dtype,
                    )

    def test_nested_vmap(self):
        q, k, v = make((3, 2, 4, 2), (3, 4, 2), (2, 4, 3), requires_grad=False)
        result = vmap(vmap(torch.attn, (0, None, 0)), (0, 0, None))(q, k, v)
        self.assertEqual(tuple(result), composition(q, k.unsqueeze(1), v))

    def test_vmap_over_an_empty_batch(self):
        q, k, v = make((0, 4, 2), (4, 2), (4, 3), requires_grad=False)
        self.assertEqual(
            [x.shape for x in vmap(torch.attn, (0, None, None))(q, k, v)],
            [(0, 4, 3), (0, 4, 4)],
        )

    def test_errors_under_vmap_name_the_sizes_inside(self):
        q, k, v = make((7, 2, 3), (5, 3), (2, 4), requires_grad=False)
        message = r"the same number of rows, but got q \[2, 3\], k \[5, 3\], v \[2, 4\]"
        with self.assertRaisesRegex(RuntimeError, message):
            vmap(torch.attn, (0, None, None))(q, k, v)
        with self.assertRaisesRegex(
            RuntimeError, "attn: expected q to be 2-D, but got a 1-D tensor of size"
        ):
            vmap(torch.attn)(k, k, k)

    @in_precise_dtypes
    def test_transforms_of_gradients(self, dtype):
        """Per-sample gradients, Jacobians and Hessians, as composition has them."""
        batch = make((3, 4, 2), (3, 4, 2), (3, 4, 3), dtype=dtype, requires_grad=False)
        single = [x[0] for x in batch]

        def loss(function):
            def of(*inputs):
                output, attn = function(*inputs)
                return (output * output.conj()).real.sum() + (attn * attn).real.sum()

            return of

        def transforms(function):
            every = (0, 1, 2)
            yield vmap(grad(loss(function), every))(*batch)
            yield vmap(grad(loss(function), every), (None, 0, None))(
                single[0], batch[1], single[2]
            )
            yield grad(lambda *x: vmap(loss(function))(*x).sum(), every)(*batch)
            if not dtype.is_complex:
                yield jacrev(lambda *x: tuple(function(*x)), every)(*single)
                yield jacfwd(lambda *x: tuple(function(*x)), every)(*single)
                yield hessian(loss(function), every)(*single)
                yield jacrev(jacrev(loss(function), every), every)(*single)
                yield vmap(hessian(loss(function)))(*batch)
            yield jvp(
                lambda *x: tuple(function(*x)),
                tuple(single),
                tuple(x[1] for x in batch),
            )
            outputs, pull = vjp(lambda *x: tuple(function(*x)), *single)
            yield pull(tuple(torch.ones_like(x) for x in outputs))

        for ours, theirs in zip(
            transforms(torch.attn), transforms(composition), strict=True
        ):
            self.assertEqual(ours, theirs)

    @parametrize(
        "function", [torch.attn, torch.linalg.qr], name_fn=lambda f: f.__name__
    )
    def test_the_named_tuple_is_the_structure_of_the_outputs(self, function):
        """What torch.func asks for one entry of per output wants it in the named tuple, as for linalg.qr."""
        inputs = make_inputs(requires_grad=False)
        inputs = inputs if function is torch.attn else inputs[:1]
        outputs, pull = vjp(function, *inputs)
        gradients = [torch.ones_like(x) for x in outputs]
        self.assertEqual(len(pull(type(outputs)(gradients))), len(inputs))
        with self.assertRaisesRegex(RuntimeError, "pytree structure of cotangents"):
            pull(tuple(gradients))
        batch = [x.unsqueeze(0) for x in inputs]
        with self.assertRaisesRegex(ValueError, "out_dims is not compatible"):
            vmap(function, out_dims=(0, 0))(*batch)
        result = vmap(function, out_dims=0)(*batch)
        self.assertIs(type(result), type(outputs))

    def test_per_sample_gradients_of_a_module(self):
        class Model(torch.nn.Module):
            def __init__(self, function):
                super().__init__()
                self.project = torch.nn.Linear(2, 6, dtype=torch.float64)
                self.function = function

            def forward(self, x):
                return (
                    self.function(*self.project(x).chunk(3, dim=-1))[0].square().sum()
                )

        x = make((5, 4, 2), requires_grad=False)[0]
        found = []
        for function in torch.attn, composition:
            torch.manual_seed(0)
            model = Model(function)
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            per_sample = vmap(
                grad(lambda p, x, model=model: functional_call(model, p, x)), (None, 0)
            )
            found.append(per_sample(parameters, x))
        self.assertEqual(*found)


class TestAutocast(TestCase):
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_forward_and_backward_in_lower_precision(self, dtype):
        inputs = make_inputs(8, 4, 4, dtype=torch.float32)
        with torch.autocast("cpu", dtype):
            output, attn = torch.attn(*inputs)
        expected = torch.attn(*[x.to(dtype) for x in inputs])
        self.assertEqual((output, attn), tuple(expected), rtol=0, atol=0)
        (output.sum() + attn.sum()).backward()
        self.assertEqual([x.grad.dtype for x in inputs], [torch.float32] * 3)

    def test_mixed_inputs(self):
        q, k, v = make_inputs(dtype=torch.float32, requires_grad=False)
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(
                torch.attn(q, k.bfloat16(), v).output.dtype, torch.bfloat16
            )

    @parametrize(
        "key",
        [
            "AutocastCPU",
            "AutocastCUDA",
            "AutocastXPU",
            "AutocastMTIA",
            "AutocastMPS",
        ],
    )
    def test_every_list_has_it(self, key):
        self.assertTrue(
            torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", key)
        )


class TestTracing(TestCase):
    @in_all_dtypes
    @of_all_sizes
    def test_meta_and_fake_tensors(self, sizes, dtype):
        """Sizes, strides and dtypes as eager has them, forward and backward, whatever the strides of the inputs."""

        def layouts():
            n, d, e = sizes
            yield make((n, d), (n, d), (n, e), dtype=dtype, requires_grad=False)
            yield [
                x.mT
                for x in make((d, n), (d, n), (e, n), dtype=dtype, requires_grad=False)
            ]
            yield [
                x.expand(n, -1)
                for x in make((1, d), (1, d), (1, e), dtype=dtype, requires_grad=False)
            ]

        def run(q, k, v):
            output, attn = torch.attn(q, k, v)
            if not EXPLICIT:
                return output, attn
            return (
                output,
                attn,
                *aten._attn_backward(output.mT.mT, attn.mT, q, k, v, attn, [True] * 3),
            )

        for inputs in layouts():
            expected = [(x.shape, x.stride(), x.dtype) for x in run(*inputs)]
            self.assertEqual(
                [
                    (x.shape, x.stride(), x.dtype)
                    for x in run(*[x.to("meta") for x in inputs])
                ],
                expected,
            )
            with FakeTensorMode() as mode:
                fake = [mode.from_tensor(x) for x in inputs]
                self.assertEqual(
                    [(x.shape, x.stride(), x.dtype) for x in run(*fake)], expected
                )

    def test_fake_backward_has_the_same_undefined_gradients(self):
        q, k, v = make_inputs(requires_grad=False)
        attn = composition(q, k, v)[1]
        gradients = make((4, 3), (4, 4), requires_grad=False)
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            args = [*keep(gradients, defined), q, k, v, attn]
            with FakeTensorMode() as mode:
                fake = [None if x is None else mode.from_tensor(x) for x in args]
                result = [x is None for x in aten._attn_backward(*fake, mask)]
            self.assertEqual(
                result, [x is None for x in aten._attn_backward(*args, mask)]
            )

    def test_unbacked_sizes(self):
        shapes = ShapeEnv()
        n, m, d, e = (shapes.create_unbacked_symint() for _ in range(4))
        with FakeTensorMode(shape_env=shapes):
            q, k, v = torch.empty(n, d), torch.empty(n, d), torch.empty(n, e)
            output, attn = torch.attn(q, k, v)
            self.assertEqual(str([*output.shape, *attn.shape]), f"[{n}, {e}, {n}, {n}]")
            if EXPLICIT:
                grads = aten._attn_backward(output, attn, q, k, v, attn, [True] * 3)
                self.assertEqual(
                    str([x.shape for x in grads]), str([q.shape, k.shape, v.shape])
                )
            # Sizes that may differ are checked when the program runs.
            torch.attn(q, torch.empty(m, d), v)
        later = [
            str(check.expr)
            for checks in shapes.deferred_runtime_asserts.values()
            for check in checks
        ]
        self.assertIn(f"Eq({n}, {m})", later)

    @in_all_dtypes
    @parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_gradients_are_the_eager_ones(self, backend, dtype):
        """Bit for bit: the same kernels, forward and backward."""
        inputs = make_inputs(37, 16, 24, dtype=dtype)

        def step(function):
            output, attn = function(*inputs)
            loss = (output * output.conj()).real.sum() + (attn * attn).real.sum()
            return output, attn, *torch.autograd.grad(loss, inputs)

        compiled = torch.compile(torch.attn, backend=backend, fullgraph=True)
        self.assertEqual(step(compiled), step(torch.attn), rtol=0, atol=0)
        torch._dynamo.reset()

    def test_inductor_keeps_it_whole(self):
        inputs = make_inputs(33, 8, 5, dtype=torch.float64)

        def function(*inputs):
            output, attn = torch.attn(*inputs)
            return (output * 2).sum() + attn.sum()

        def step(function):
            value = function(*inputs)
            return value, *torch.autograd.grad(value, inputs)

        result, code = run_and_get_code(step, torch.compile(function, fullgraph=True))
        self.assertEqual(result, step(function))
        for operator in "attn", "_attn_backward":
            self.assertEqual(
                "".join(code).count(f"torch.ops.aten.{operator}.default("), 1
            )
        torch._dynamo.reset()

    def test_inductor_with_every_subset_of_inputs_and_outputs(self):
        values = make_inputs(9, 4, 3, dtype=torch.float32, requires_grad=False)
        for wanted, used in itertools.product(
            ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)), ((1, 1), (1, 0), (0, 1))
        ):
            if wanted == (0, 0, 1) and used == (0, 1):
                continue
            inputs = [
                x.clone().requires_grad_(bool(want))
                for x, want in zip(values, wanted, strict=True)
            ]

            def function(*inputs, used=used):
                return sum(
                    x.square().sum()
                    for x, use in zip(torch.attn(*inputs), used, strict=True)
                    if use
                )

            compiled = torch.compile(function, fullgraph=True)
            leaves = [x for x in inputs if x.requires_grad]
            found = [
                torch.autograd.grad(f(*inputs), leaves, allow_unused=True)
                for f in (compiled, function)
            ]
            self.assertEqual(*found)
            torch._dynamo.reset()

    def test_dynamic_sizes_compile_once(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            torch.attn, backend=counter, fullgraph=True, dynamic=True
        )
        for sizes in (4, 2, 3), (7, 5, 6), (9, 3, 8):
            inputs = make_inputs(*sizes)
            self.assertEqual(tuple(compiled(*inputs)), tuple(torch.attn(*inputs)))
        self.assertEqual(counter.frame_count, 1)
        torch._dynamo.reset()

    def test_export(self):
        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return torch.attn(q, k, v)

        n = torch.export.Dim("n")
        inputs = tuple(make_inputs(requires_grad=False))
        program = torch.export.export(Model(), inputs, dynamic_shapes=({0: n},) * 3)
        self.assertIn("aten.attn.default", str(program.graph))
        other = make_inputs(7, requires_grad=False)
        self.assertEqual(tuple(program.module()(*other)), tuple(torch.attn(*other)))
        # With export's own table all that is left are core operators.
        decomposed = program.run_decompositions()
        called = {x.target for x in decomposed.graph.nodes if x.op == "call_function"}
        self.assertTrue(all(torch.Tag.core in x.tags for x in called), called)
        self.assertEqual(tuple(decomposed.module()(*other)), tuple(torch.attn(*other)))

    def test_aot_inductor(self):
        """A packaged model calls the kernel, through the proxy executor since attn has no C shim."""

        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return tuple(torch.attn(q, k, v))

        n = torch.export.Dim("n")
        inputs = tuple(make_inputs(dtype=torch.float32, requires_grad=False))
        program = torch.export.export(Model(), inputs, dynamic_shapes=({0: n},) * 3)
        other = make_inputs(9, dtype=torch.float32, requires_grad=False)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "attn.pt2")
            torch._inductor.aoti_compile_and_package(program, package_path=path)
            result = torch._inductor.aoti_load_package(path)(*other)
        self.assertEqual(tuple(result), tuple(torch.attn(*other)), rtol=0, atol=0)

    def test_compiled_autograd(self):
        inputs = make_inputs()
        expected = torch.autograd.grad(
            sum(x.square().sum() for x in torch.attn(*inputs)), inputs
        )
        with compiled_autograd._enable(
            torch.compile(backend="aot_eager", fullgraph=True)
        ):
            loss = sum(x.square().sum() for x in torch.attn(*inputs))
            loss.backward()
        self.assertEqual([x.grad for x in inputs], list(expected), rtol=0, atol=0)
        torch._dynamo.reset()

    @parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx_traces_gradients(self, mode):
        inputs = make_inputs()

        def function(*inputs):
            return torch.autograd.grad(
                sum(x.square().sum() for x in torch.attn(*inputs)), inputs
            )

        graph = make_fx(function, tracing_mode=mode)(*inputs)
        self.assertEqual(graph(*inputs), function(*inputs))

    @parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx(self, mode):
        """Forward and backward are one node each; their decompositions say the same."""
        inputs = make_inputs()

        def function(*inputs):
            return torch.autograd.grad(
                sum(x.square().sum() for x in torch.attn(*inputs)), inputs
            )

        graph = make_fx(function, tracing_mode=mode)(*inputs)
        self.assertEqual(graph.code.count("aten.attn.default"), 1)
        self.assertEqual(graph.code.count("aten._attn_backward.default"), 1)
        table = torch._decomp.get_decompositions([aten.attn, aten._attn_backward])
        plain = make_fx(function, decomposition_table=table, tracing_mode=mode)(*inputs)
        self.assertNotIn("attn", plain.code)
        for traced in graph, plain:
            self.assertEqual(traced(*inputs), function(*inputs))

    def test_decomposition_has_the_same_undefined_gradients(self):
        q, k, v = make_inputs(dtype=torch.complex128, requires_grad=False)
        attn = composition(q, k, v)[1]
        gradients = make((4, 3), (4, 4), dtype=torch.complex128, requires_grad=False)
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            # Only what a wanted gradient needs is there.
            scores = any(defined)
            needed = (
                mask[1] and scores,
                mask[0] and scores,
                defined[0] and any(mask[:2]),
            )
            args = [*keep(gradients, defined), *keep((q, k, v), needed), attn, mask]
            ours = decomposed(aten._attn_backward)(*args)
            theirs = aten._attn_backward(*args)
            self.assertEqual([x is None for x in ours], [x is None for x in theirs])
            self.assertEqual(
                [x for x in ours if x is not None], [x for x in theirs if x is not None]
            )

    def test_script_and_trace(self):
        def function(q, k, v):
            output, attn = torch.attn(q, k, v)
            return output * 2, attn

        inputs = make_inputs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled = [torch.jit.script(function), torch.jit.trace(function, inputs)]
            for scripted in compiled:
                self.assertIn("aten::attn", str(scripted.graph))
                for _ in range(
                    3
                ):  # the later calls run what the profiling executor made
                    found = [f(*inputs) for f in (scripted, function)]
                    self.assertEqual(*found)
                    self.assertEqual(
                        *[
                            torch.autograd.grad(x[0].sum() + x[1].sum(), inputs)
                            for x in found
                        ]
                    )
                buffer = io.BytesIO()
                torch.jit.save(scripted, buffer)
                buffer.seek(0)
                self.assertEqual(torch.jit.load(buffer)(*inputs), function(*inputs))


def peak_memory(function: Callable[[], object]) -> int:
    """Bytes that a call allocates at its worst moment, results included."""
    function()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


class TestTools(TestCase):
    def test_flop_counter(self):
        n, d, e = 8, 3, 5
        with FlopCounterMode(display=False) as forward:
            output, attn = torch.attn(*(inputs := make_inputs(n, d, e)))
        self.assertEqual(forward.get_total_flops(), 2 * n * n * (d + e))
        with FlopCounterMode(display=False) as backward:
            torch.autograd.grad(output.sum() + attn.sum(), inputs)
        self.assertEqual(backward.get_total_flops(), 4 * n * n * (d + e))

    def test_flop_counter_counts_what_composition_does(self):
        """For whatever is wanted and defined."""
        values = make_inputs(8, 3, 5, requires_grad=False)
        for wanted, used in itertools.product(subsets(3), subsets(2)):
            counts = []
            for function in torch.attn, composition:
                inputs = [
                    x.clone().requires_grad_(want)
                    for x, want in zip(values, wanted, strict=True)
                ]
                loss = [
                    x.sum()
                    for x, use in zip(function(*inputs), used, strict=True)
                    if use and x.requires_grad
                ]
                with FlopCounterMode(display=False) as counter:
                    if loss:
                        sum(loss).backward()
                counts.append(counter.get_total_flops())
            self.assertEqual(*counts, msg=f"{wanted} {used}")

    def test_flop_counter_without_gradients(self):
        q, k, v = make_inputs(requires_grad=False)
        attn = torch.attn(q, k, v).attn
        with FlopCounterMode(display=False) as counter:
            aten._attn_backward(None, None, q, k, v, attn, [True] * 3)
        self.assertEqual(counter.get_total_flops(), 0)

    @parametrize("use_reentrant", [True, False])
    def test_checkpointing(self, use_reentrant):
        values = make_inputs(requires_grad=False)
        found = []
        for function in (
            torch.attn,
            lambda *x: checkpoint(torch.attn, *x, use_reentrant=use_reentrant),
        ):
            inputs = [x.clone().requires_grad_() for x in values]
            sum(x.square().sum() for x in function(*inputs)).backward()
            found.append([x.grad for x in inputs])
        self.assertEqual(*found, rtol=0, atol=0)

    def test_saved_tensors_hooks(self):
        inputs = make_inputs()
        packed = []

        def pack(x):
            packed.append(tuple(x.shape))
            return x.to(torch.float32).to("cpu", copy=True)

        with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda x: x.to(torch.float64)
        ):
            output, attn = torch.attn(*inputs)
        self.assertEqual(sorted(packed), [(4, 2), (4, 2), (4, 3), (4, 4)])
        result = torch.autograd.grad(output.sum() + attn.sum(), inputs)
        expected = torch.autograd.grad(
            sum(x.sum() for x in torch.attn(*inputs)), inputs
        )
        self.assertEqual(result, expected, rtol=1e-6, atol=1e-6)

    def test_saved_on_cpu(self):
        inputs = make_inputs()
        with torch.autograd.graph.save_on_cpu():
            outputs = torch.attn(*inputs)
        self.assertEqual(
            torch.autograd.grad(outputs.output.sum(), inputs),
            torch.autograd.grad(torch.attn(*inputs).output.sum(), inputs),
        )

    def test_names_in_the_graph(self):
        inputs = make_inputs()
        output, attn = torch.attn(*inputs)
        node = output.grad_fn
        self.assertEqual(node.name(), "AttnBackward0")
        self.assertIs(node, attn.grad_fn)
        for name, x in zip(("q", "k", "v"), inputs, strict=True):
            self.assertIs(getattr(node, f"_saved_{name}"), x)
        self.assertEqual(node._saved_attn, attn)
        for name in ("q", "k", "v", "attn"):
            self.assertIsInstance(
                getattr(node, f"_raw_saved_{name}"), torch._C._autograd.SavedTensor
            )
        grads = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        self.assertEqual(grads[0].grad_fn.name(), "AttnBackwardBackward0")

    def test_names_in_the_profiler(self):
        inputs = make_inputs()
        with torch.profiler.profile(record_shapes=True) as profile:
            torch.attn(*inputs).output.sum().backward()
        events = {event.name: event for event in profile.events()}
        self.assertLessEqual(
            {"aten::attn", "AttnBackward0", "aten::_attn_backward"}, set(events)
        )
        self.assertEqual(events["aten::attn"].input_shapes, [[4, 2], [4, 2], [4, 3]])

    @parametrize("what", ["forward", "backward", "forward mode", "double backward"])
    @parametrize("dtype", [torch.float32, torch.complex64])
    def test_memory_is_less_than_composition_takes(self, dtype, what):
        """By the kernels and, for complex numbers, by products."""
        n, d, e = 1024, 8, 8
        q, k, v = make_inputs(n, d, e, dtype=dtype)
        tangents = make_inputs(n, d, e, dtype=dtype, requires_grad=False)

        def run(function):
            if what == "forward":
                return lambda: function(q.detach(), k.detach(), v.detach())
            if what == "forward mode":
                return lambda: jvp(
                    lambda *x: tuple(function(*x)),
                    (q.detach(), k.detach(), v.detach()),
                    tuple(tangents),
                )
            loss = function(q, k, v)[0].abs().sum()
            if what == "backward":
                return lambda: torch.autograd.grad(loss, (q, k, v), retain_graph=True)
            grads = torch.autograd.grad(loss, (q, k, v), create_graph=True)
            return lambda: torch.autograd.grad(
                grads, (q, k, v), tangents, retain_graph=True
            )

        ours, theirs = (
            peak_memory(run(f)) / (n * n * dtype.itemsize)
            for f in (torch.attn, composition)
        )
        print(f"{what}: {ours:.2f} N x N, composition {theirs:.2f}")
        self.assertLess(ours, theirs)

    def test_deepcopy_and_pickle(self):
        result = torch.attn(*make_inputs(requires_grad=False))
        buffer = io.BytesIO()
        torch.save(result, buffer)
        buffer.seek(0)
        for other in (
            copy.deepcopy(result),
            pickle.loads(pickle.dumps(result)),
            torch.load(buffer, weights_only=False),
        ):
            self.assertIs(type(other), torch.return_types.attn)
            self.assertEqual(tuple(other), tuple(result))

    @in_all_dtypes
    def test_lazy_copies_stay_lazy(self, dtype):
        inputs = [
            torch._lazy_clone(x).requires_grad_()
            for x in make_inputs(dtype=dtype, requires_grad=False)
        ]
        output, attn = torch.attn(*inputs)
        gradients = [torch._lazy_clone(torch.ones_like(x)) for x in (output, attn)]
        torch.autograd.backward((output, attn), gradients)
        for x in (*inputs, *gradients):
            self.assertTrue(torch._C._is_cow_tensor(x))

    def test_results_are_deterministic(self):
        inputs = make_inputs(1090, 17, 33, dtype=torch.float32)

        def run():
            output, attn = torch.attn(*inputs)
            return (
                output,
                attn,
                *torch.autograd.grad(output.sum() + attn.square().sum(), inputs),
            )

        first = run()
        for _ in range(5):
            self.assertEqual(run(), first, rtol=0, atol=0)


class TestSubclasses(TestCase):
    def test_composite_compliance(self):
        inputs = make_inputs(dtype=torch.float64)

        def run(op, *args, **kwargs):
            return op(*args, **kwargs)

        composite_compliance.check_with_mode(torch.attn, inputs, {}, self.assertEqual)
        composite_compliance.check_all_permutations(
            torch.attn, inputs, {}, self.assertEqual
        )
        composite_compliance.check_backward_formula(
            torch.attn, inputs, {}, None, run, self.assertEqual
        )
        composite_compliance.check_forward_ad_formula(
            torch.attn, inputs, {}, run, self.assertEqual
        )

    def test_wrapper_subclass(self):
        """Operators below a subclass are attn and its backward, and gradients are subclasses again."""
        values, others = (make_inputs(requires_grad=False) for _ in range(2))
        inputs = [
            TwoTensor(a, b).requires_grad_()
            for a, b in zip(values, others, strict=True)
        ]
        grads = torch.autograd.grad(
            sum(x.square().sum() for x in torch.attn(*inputs)), inputs
        )
        for part, plain in ("a", values), ("b", others):
            plain = [x.requires_grad_() for x in plain]
            expected = torch.autograd.grad(
                sum(x.square().sum() for x in torch.attn(*plain)), plain
            )
            self.assertEqual([getattr(x, part) for x in grads], list(expected))

    def test_undefined_gradients_of_a_subclass(self):
        values = make_inputs(requires_grad=False)
        for wanted in subsets(3):
            inputs = [
                TwoTensor(x, x.clone()).requires_grad_(want)
                for x, want in zip(values, wanted, strict=True)
            ]
            if any(wanted[:2]):
                torch.attn(*inputs).attn.sum().backward()
                self.assertEqual(
                    [x.grad is not None for x in inputs], [wanted[0], wanted[1], False]
                )


def run_dtensor() -> None:
    """One process of test_dtensor: every layout of the inputs against what one process alone computes."""
    # A PyTorch without torch.distributed has no such module.
    from torch.distributed.tensor import (
        distribute_tensor,
        DTensor,
        init_device_mesh,
        Partial,
        Replicate,
        Shard,
    )

    dist.init_process_group("gloo")
    count = dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    replicated, rows, columns = (Replicate(),), (Shard(0),), (Shard(1),)
    # Composition gathers lazy conjugates, which torch.distributed refuses.
    dtypes = PRECISE if EXPLICIT else [torch.float64]
    for dtype, n in itertools.product(dtypes, (12, 13)):  # divisible by count, and not
        torch.manual_seed(0)
        values = make_inputs(n, 3, 2, dtype=dtype, requires_grad=False)
        weights = make((n, 2), (n, n), dtype=dtype, requires_grad=False)
        local = [x.clone().requires_grad_() for x in values]
        expected = torch.attn(*local)
        expected = (*expected, *torch.autograd.grad(expected, local, weights))

        def distributed(tensors, placements):
            return [
                distribute_tensor(x, mesh, p)
                for x, p in zip(tensors, placements, strict=True)
            ]

        for placements in itertools.product((replicated, rows, columns), repeat=3):
            inputs = [x.requires_grad_() for x in distributed(values, placements)]
            with torch.profiler.profile() as forward:
                result = torch.attn(*inputs)
            # rows of the gradients with rows of the results, else all of them
            given = distributed(
                weights,
                [rows if x.placements == rows else replicated for x in result],
            )
            with torch.profiler.profile() as backward:
                grads = torch.autograd.grad(result, inputs, given)
            for x, reference in zip((*result, *grads), expected, strict=True):
                assert isinstance(x, DTensor)
                torch.testing.assert_close(x.full_tensor(), reference)
            layouts = [x.placements for x in (*result, *grads)]
            names = [x.name for x in (*forward.events(), *backward.events())]
            if not EXPLICIT:
                continue
            if placements == (replicated, replicated, replicated):
                assert layouts == [replicated] * 5, layouts
                # Autograd's own call, and the kernel's on the local tensors
                assert names.count("aten::attn") == 2, names
                assert names.count("aten::_attn_backward") == 2, names
            elif placements == (rows, replicated, replicated):
                assert layouts == [rows] * 3 + [(Partial(),)] * 2, layouts
                assert result[1].to_local().shape[0] < n
                assert not any(name.startswith("c10d::") for name in names), names
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{count} processes agree with one")
    dist.destroy_process_group()


def distributes(count: int) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={count}",
    ]
    command = [*torchrun, os.path.abspath(__file__), "--dtensor"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert f"{count} processes agree with one" in result.stdout


@unittest.skipIf(not dist.is_available(), "this PyTorch is built without distributed")
class TestDTensor(TestCase):
    @parametrize("count", [2, 4])
    def test_dtensor(self, count):
        distributes(count)


# The rows of the table in the PR's description: what works, and the tests that show it. Those run on composition too.
PARITY = {
    "dtype": {
        str(dtype).removeprefix(
            "torch."
        ): f"TestGradients.test_every_dtype_{dtype}".replace("torch.", "")
        for dtype in ALL
    },
    "layout": {
        **{
            name: f"TestGradients.test_every_layout_{name.replace(' ', '_')}"
            for name in LAYOUTS
        },
        "empty": "TestGradients.test_every_subset_of_inputs_and_gradients",
        "copy on write": "TestTools.test_lazy_copies_stay_lazy",
    },
    "transform": {
        "backward of either output": "TestGradients.test_every_subset_of_inputs_and_gradients",
        "double backward, forward mode, forward over reverse, batched gradients": "TestGradients.test_gradcheck",
        "every subset of tangents": "TestGradients.test_every_subset_of_tangents",
        "third derivative": "TestGradients.test_third_derivative",
        "vmap over every choice of in_dims": "TestTransforms.test_vmap_over_every_choice_of_in_dims",
        "nested vmap": "TestTransforms.test_nested_vmap",
        "vmap of grad, jacrev, jacfwd, hessian, jvp, vjp": "TestTransforms.test_transforms_of_gradients",
        "per-sample gradients": "TestTransforms.test_per_sample_gradients_of_a_module",
    },
    "subsystem": {
        "autocast": "TestAutocast.test_forward_and_backward_in_lower_precision",
        "Meta and FakeTensor": "TestTracing.test_meta_and_fake_tensors",
        "unbacked sizes": "TestTracing.test_unbacked_sizes",
        "make_fx": "TestTracing.test_make_fx_traces_gradients",
        "torch.compile, eager and aot_eager": "TestTracing.test_compiled_gradients_are_the_eager_ones",
        "torch.compile, Inductor": "TestTracing.test_inductor_with_every_subset_of_inputs_and_outputs",
        "torch.compile, dynamic": "TestTracing.test_dynamic_sizes_compile_once",
        "torch.export": "TestTracing.test_export",
        "compiled autograd": "TestTracing.test_compiled_autograd",
        "torch.jit.script and torch.jit.trace": "TestTracing.test_script_and_trace",
        "FLOP counter": "TestTools.test_flop_counter_counts_what_composition_does",
        "checkpointing": "TestTools.test_checkpointing",
        "saved-tensor hooks": "TestTools.test_saved_on_cpu",
        "wrapper subclasses": "TestSubclasses.test_wrapper_subclass",
        "every derivative inside modes, subclasses and autocast": "TestContexts.test_derivatives_are_those_outside",
        "composite compliance": "TestSubclasses.test_composite_compliance",
        "DTensor": "TestDTensor.test_dtensor_count_2",
    },
}


def row_tests(name: str) -> unittest.TestSuite:
    """The tests whose names begin with this one."""
    case, _, prefix = name.partition(".")
    cls = globals()[case]
    names = unittest.defaultTestLoader.getTestCaseNames(cls)
    return unittest.TestSuite(cls(x) for x in names if x.startswith(prefix))


class TestBuilds(TestCase):
    def test_without_distributed(self):
        """A PyTorch that is built without it loses the tests of DTensor and no other."""
        program = f"""
import runpy, sys, unittest, torch
torch.distributed.is_available = lambda: False
sys.modules["torch.distributed.tensor"] = None
names = runpy.run_path({os.path.abspath(__file__)!r}, run_name="tests")
load = unittest.defaultTestLoader.loadTestsFromTestCase
for name, cls in names.items():
    if name.startswith("Test") and name != "TestCase":
        tests = list(load(cls))
        skipped = getattr(cls, "__unittest_skip__", False)
        print(name, len(tests) > 0, skipped)
"""
        output = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for line in output.splitlines():
            name, found, skipped = line.split()
            self.assertEqual((found, skipped), ("True", str(name == "TestDTensor")))
        self.assertIn("TestGradients True False", output)
        self.assertIn("TestDTensor True True", output)


class TestParity(TestCase):
    def test_every_row_has_tests(self):
        for rows in PARITY.values():
            for name, tests in rows.items():
                self.assertGreater(row_tests(tests).countTestCases(), 0, name)


def print_parity() -> None:
    """The rows as a Markdown table, with what this torch makes of each."""
    print("| | | works |\n| --- | --- | --- |")
    for kind, rows in PARITY.items():
        for name, tests in rows.items():
            result = unittest.TestResult()
            row_tests(tests).run(result)
            reason = "yes"
            for _, trace in result.failures + result.errors:
                errors = re.findall(
                    r"^[\w.]*(?:Error|Exception)\b.*", trace, re.MULTILINE
                )
                reason = errors[-1] if errors else "no"
            print(f"| {kind} | {name} | {reason} |")


instantiate_parametrized_tests(TestGradients)
instantiate_parametrized_tests(TestErrors)
instantiate_parametrized_tests(TestContexts)
instantiate_device_type_tests(
    TestContextsOfDevices, globals(), only_for=("cpu", "cuda")
)
instantiate_parametrized_tests(TestGenericKernels)
instantiate_parametrized_tests(TestTransforms)
instantiate_parametrized_tests(TestAutocast)
instantiate_parametrized_tests(TestTracing)
instantiate_parametrized_tests(TestTools)
instantiate_parametrized_tests(TestDTensor)
instantiate_parametrized_tests(TestParity)

if __name__ == "__main__":
    if sys.argv[-1] == "--dtensor":
        run_dtensor()
        # The threads of gloo outlive destroy_process_group. One that frees a tensor while
        # Python ends asks for the GIL and aborts, so this process ends without ending Python.
        sys.stdout.flush()
        os._exit(0)
    elif sys.argv[-1] == "--parity":
        print_parity()
    else:
        run_tests()
