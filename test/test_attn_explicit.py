"""torch.attn with kernels and formulas of its own: every gradient, every transform, every subsystem of PyTorch."""
# Owner(s): ["module: autograd"]

import copy
import io
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import unittest
import warnings
from contextlib import nullcontext

import torch
import torch._dynamo.testing
import torch.autograd.forward_ad as fwAD
import torch.distributed as dist
from torch._dynamo import compiled_autograd
from torch._dynamo.test_case import TestCase as DynamoTestCase
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import make_tensor
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
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


aten = torch.ops.aten
# False where attn is composed of other operators, on which many of these tests run too.
EXPLICIT = hasattr(aten, "_attn_backward")

PRECISE = [torch.float64, torch.complex128]
ALL = [*PRECISE, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
# N, D and E: all different, all one, N the smallest, and each of them empty
SIZES = [(4, 2, 3), (1, 1, 1), (2, 5, 3), (0, 2, 3), (3, 0, 2), (3, 2, 0)]

in_precise_dtypes = parametrize("dtype", PRECISE)
in_all_dtypes = parametrize("dtype", ALL)
of_all_sizes = parametrize("sizes", SIZES, name_fn=lambda x: "N{}_D{}_E{}".format(*x))


def composition(q, k, v):
    """What everything here is compared with, in plain differentiable operations."""
    attn = torch.tanh(q @ k.mT)
    return attn @ v, attn


def composition_backward(grad_output, grad_attn, q, k, v, attn, mask):
    """The gradients that the mask asks for, None where no given gradient reaches one."""
    through_output = None if grad_output is None else grad_output @ v.mH
    G = present([grad_attn, through_output])
    X = sum(G[1:], G[0]) * (1 - attn * attn).conj() if G else None
    return (
        X @ k.conj() if mask[0] and G else None,
        X.mT @ q.conj() if mask[1] and G else None,
        attn.mH @ grad_output if mask[2] and grad_output is not None else None,
    )


def decomposed(operator):
    """The function that the operator is decomposed into."""
    return torch._decomp.decomposition_table[operator.default]


def generic(operator):
    """What runs on backends without kernels of their own; XLA, which is not in this PyTorch, stands for them."""
    backend = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
    return lambda *args: operator.default.redispatch(backend, *args)


def make(*shapes, dtype=torch.float64):
    """Tensors so small that tanh does not saturate: there, every gradient is zero and every test passes."""
    bound = 0.5 if dtype.is_complex else 1.0
    return [
        make_tensor(x, dtype=dtype, device="cpu", low=-bound, high=bound)
        for x in shapes
    ]


def make_inputs(n=4, d=2, e=3, dtype=torch.float64):
    return make((n, d), (n, d), (n, e), dtype=dtype)


def make_outputs(n=4, e=3, dtype=torch.float64):
    return make((n, e), (n, n), dtype=dtype)


def make_all(n=4, d=2, e=3, dtype=torch.float64):
    """What the backward operator takes: grad_output, grad_attn, q, k, v and attn."""
    shapes = (n, e), (n, n), (n, d), (n, d), (n, e), (n, n)
    return make(*shapes, dtype=dtype)


def leaves(tensors, wanted=(True,) * 6):
    """Copies, of which autograd wants gradients of those wanted."""
    return [x.detach().clone().requires_grad_(w) for x, w in zip(tensors, wanted)]


def subsets(count):
    return itertools.product((True, False), repeat=count)


def keep(tensors, chosen):
    return [x if use else None for x, use in zip(tensors, chosen)]


def present(tensors):
    return tuple(x for x in tensors if x is not None)


def loss(outputs):
    """It bends both outputs, so that its gradients depend on all inputs."""
    output, attn = outputs
    return (output * output.conj()).real.sum() + (attn * attn).real.sum()


def gradients(function, inputs, **options):
    return torch.autograd.grad(loss(function(*inputs)), inputs, **options)


def with_gradients(function, inputs):
    """Outputs and gradients of views as they are, all detached."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    # exact in every dtype
    weights = [
        ((torch.arange(x.numel()) % 17 - 8) / 8).to(x.dtype).view(x.shape)
        for x in outputs
    ]
    grads = torch.autograd.grad(outputs, inputs, weights)
    return [x.detach() for x in (*outputs, *grads)]


def precise(tensors):
    return [
        x if x is None else x.cdouble() if x.is_complex() else x.double()
        for x in tensors
    ]


def check_derivatives(function, inputs, batched=False):
    """First and second ones: reverse, forward, and forward over reverse."""
    gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=batched,
        check_batched_forward_grad=batched,
    )
    gradgradcheck(function, inputs, check_fwd_over_rev=True, check_batched_grad=batched)


class AttnTestCase(TestCase):
    def assert_like_composition(self, run, msg=None):
        """`run` makes of attn what it makes of composition, None included."""
        self.assertEqual(run(torch.attn), run(composition), msg=msg)

    def assert_as_good(self, ours, plain, exact):
        """The largest error is at most three times that of the plain computation in the same dtype, and two units."""
        for x, theirs, right in zip(ours, plain, exact, strict=True):
            if right is None or x is None or x.dtype == right.dtype:
                self.assertEqual(x, theirs)
                continue
            self.assertEqual((x.dtype, x.shape), (theirs.dtype, right.shape))
            if right.numel():
                error, allowed = ((y - right).abs().max() for y in (x, theirs))
                unit = torch.finfo(x.dtype).eps * right.abs().max()
                self.assertLessEqual(error, 3 * allowed + 2 * unit)


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


class TestGradients(AttnTestCase):
    def test_outputs_are_no_functions_of_each_other(self):
        output, attn = torch.attn(*leaves(make_inputs()))
        self.assertIs(output.grad_fn, attn.grad_fn)
        with self.assertRaisesRegex(RuntimeError, "appears to not have been used"):
            torch.autograd.grad(output.sum(), attn)

    @in_precise_dtypes
    @of_all_sizes
    def test_every_subset_of_inputs_and_gradients(self, sizes, dtype):
        """Values, and which gradients there are at all."""
        values = make_inputs(*sizes, dtype=dtype)
        given = make_outputs(sizes[0], sizes[2], dtype=dtype)
        for wanted, defined in itertools.product(subsets(3), subsets(2)):

            def run(function):
                inputs = leaves(values, wanted)
                pairs = zip(function(*inputs), given)
                pairs = itertools.compress(pairs, defined)
                used = [pair for pair in pairs if pair[0].requires_grad]
                if used:
                    torch.autograd.backward(*zip(*used))
                return [x.grad for x in inputs]

            self.assert_like_composition(run, msg=f"{wanted} {defined}")

    def check_values_and_gradients(self, inputs):
        self.assert_as_good(
            with_gradients(torch.attn, inputs),
            with_gradients(composition, inputs),
            with_gradients(composition, precise(inputs)),
        )

    @in_all_dtypes
    def test_every_dtype(self, dtype):
        for n in 17, 1090:  # one block of rows, and more than one
            self.check_values_and_gradients(make_inputs(n, 5, 9, dtype=dtype))

    @parametrize("layout", LAYOUTS, name_fn=lambda name: name.replace(" ", "_"))
    def test_every_layout(self, layout):
        self.check_values_and_gradients(LAYOUTS[layout]())

    def test_undefined_gradients_of_both_outputs(self):
        class Undefined(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x.clone())
            backward = staticmethod(lambda ctx, grad: None)

        inputs = leaves(make_inputs())
        torch.autograd.backward([Undefined.apply(x).sum() for x in torch.attn(*inputs)])
        self.assertEqual([x.grad for x in inputs], [None] * 3)

    @in_all_dtypes
    def test_every_mask_of_the_backward_operator(self, dtype):
        """What the mask or an undefined gradient leaves out is None; operands that are not needed may be missing."""
        q, k, v = make_inputs(5, 3, 2, dtype=dtype)
        given = make_outputs(5, 2, dtype=dtype)
        plain, exact = composition(q, k, v), composition(*precise((q, k, v)))
        self.assert_as_good(generic(aten.attn)(q, k, v), plain, exact)
        attn = plain[1]
        functions = [f(aten._attn_backward) for f in (generic, decomposed)]
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            args = [*keep(given, defined), q, k, v, attn]
            plain = composition_backward(*args, mask)
            exact = composition_backward(*precise(args), mask)
            scores = any(defined)
            v_needed = defined[0] and any(mask[:2])
            needed = mask[1] and scores, mask[0] and scores, v_needed
            args[2:5] = keep((q, k, v), needed)
            for function in aten._attn_backward, *functions:
                self.assert_as_good(function(*args, mask), plain, exact)
            with FakeTensorMode() as mode:
                fake = [x if x is None else mode.from_tensor(x) for x in args]
                result = [x is None for x in aten._attn_backward(*fake, mask)]
            self.assertEqual(result, [x is None for x in plain])

    def test_a_hook_that_returns_another_size_is_refused(self):
        inputs = leaves(make_inputs(16, 3, 4))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: x, lambda x: x if x.shape[0] == x.shape[1] else x[:8].clone()
        ):
            output = torch.attn(*inputs).output
        with self.assertRaisesRegex(RuntimeError, "the same number of rows, but got"):
            output.sum().backward()

    @in_precise_dtypes
    @of_all_sizes
    def test_gradcheck(self, sizes, dtype):
        inputs = leaves(make_inputs(*sizes, dtype=dtype))
        check_derivatives(torch.attn, inputs, batched=True)

    @in_precise_dtypes
    def test_gradcheck_of_every_subset(self, dtype):
        """Of each output and for each choice of inputs."""
        for output, wanted in itertools.product(range(2), subsets(3)):
            if any(wanted[: 3 - output]):  # attn is no function of v
                inputs = leaves(make_inputs(2, 2, 2, dtype=dtype), wanted)
                check_derivatives(lambda *x: torch.attn(*x)[output], inputs)

    @in_precise_dtypes
    def test_every_subset_of_the_double_backward(self, dtype):
        """gradgradcheck gives a gradient to one of the gradients of q, k and v at a time."""
        values, given = make_inputs(dtype=dtype), make_inputs(dtype=dtype)
        for chosen in subsets(3):

            def run(function):
                inputs = leaves(values)
                grads = gradients(function, inputs, create_graph=True)
                chosen_pairs = itertools.compress(zip(grads, given), chosen)
                outputs, weights = zip(*chosen_pairs)
                return torch.autograd.grad(outputs, inputs, weights)

            if any(chosen):
                self.assert_like_composition(run, msg=f"{chosen}")

    @in_precise_dtypes
    def test_third_derivative(self, dtype):
        inputs = leaves(make_inputs(2, 2, 1, dtype=dtype))
        gradgradcheck(lambda *x: gradients(torch.attn, x, create_graph=True), inputs)

    @in_precise_dtypes
    def test_derivative_of_the_backward_operator(self, dtype):
        """Of all of its tensors, by itself."""
        inputs = leaves(make_all(2, 2, 2, dtype=dtype))
        for mask in subsets(3):
            if any(mask):
                check_derivatives(
                    lambda *x: present(aten._attn_backward(*x, mask)), inputs
                )

    @in_precise_dtypes
    def test_every_subset_of_tangents(self, dtype):
        values, tangents = make_inputs(dtype=dtype), make_inputs(dtype=dtype)
        for chosen in subsets(3):

            def run(function):
                with fwAD.dual_level():
                    inputs = [
                        fwAD.make_dual(x, t) if use else x
                        for x, t, use in zip(values, tangents, chosen)
                    ]
                    return [fwAD.unpack_dual(x).tangent for x in function(*inputs)]

            self.assert_like_composition(run, msg=f"{chosen}")

    @in_precise_dtypes
    def test_gradients_of_expanded_and_lazy_gradients(self, dtype):
        """The gradient of a sum is one element seen N x N times; a lazy conjugate is not what lies in memory."""
        inputs = leaves(make_inputs(dtype=dtype))

        def run(function):
            output, attn = function(*inputs)
            value = (output.conj().sum() + attn.mT.sum() * 2).real
            return torch.autograd.grad(value, inputs)

        self.assert_like_composition(run)

    def test_a_hook_on_attn_sees_only_its_direct_gradient(self):
        """Not what reaches it through output, which is not a function of it in the graph."""
        output, attn = torch.attn(*leaves(make_inputs()))
        seen = []
        attn.register_hook(seen.append)
        (output.sum() + 2 * attn.sum()).backward()
        self.assertEqual(seen, [torch.full_like(attn, 2)])

    def test_gradients_are_kept_for_a_second_backward(self):
        inputs = leaves(make_inputs())
        value = loss(torch.attn(*inputs))
        first = torch.autograd.grad(value, inputs, retain_graph=True)
        second = torch.autograd.grad(value, inputs)
        self.assertEqual(first, second, rtol=0, atol=0)

    def test_only_what_is_needed_is_saved(self):
        """attn always; q for k's gradient, k for q's, v for either."""
        for wanted in subsets(3):
            if any(wanted):
                node = torch.attn(*leaves(make_inputs(), wanted)).output.grad_fn
                names = "q", "k", "v", "attn"
                saved = [getattr(node, f"_saved_{x}") is not None for x in names]
                needed = [wanted[1], wanted[0], any(wanted[:2]), True]
                self.assertEqual(saved, needed)


NAMES = "grad_output", "grad_attn", "q", "k", "v", "attn"


def bad_calls():
    """Tensors of attn and of its backward that break one rule for one tensor each."""
    for names in NAMES[2:5], NAMES:
        right = zip(NAMES, make_all(5, 3, 4, dtype=torch.float32))
        good = {name: x for name, x in right if name in names}
        for name in names:
            n, columns = good[name].shape
            shapes = [(), (n,), (n, columns, 1)]
            shapes += [(rows, columns) for rows in (0, 1, n - 1)]
            if len(names) > 3 or name != "v":  # nothing else has v's number of columns
                shapes.append((n, columns + 1))
            yield from (good | {name: torch.randn(shape)} for shape in shapes)
            yield good | {name: good[name].double()}
        for dtype in torch.int64, torch.bool, torch.complex32, torch.float8_e4m3fn:
            yield {name: x.to(dtype) for name, x in good.items()}
    yield from (good | {name: None} for name in NAMES[2:5])


def call(tensors, where):
    """attn of three tensors or its backward of six; where it runs is a device or a subsystem."""
    operator, mask = aten.attn, ()
    if "attn" in tensors:
        operator, mask = aten._attn_backward, ([True] * 3,)
    if where == "decomposition":
        return decomposed(operator)(*tensors.values(), *mask)
    given = {name: x for name, x in tensors.items() if x is not None}
    if where == "vmap":
        batch = {name: torch.stack([x] * 2) for name, x in given.items()}
        return vmap(lambda x: operator(*(tensors | x).values(), *mask))(batch)
    with FakeTensorMode() if where == "fake" else nullcontext() as mode:
        convert = mode.from_tensor if mode else lambda x: x.to(where)
        given = {name: convert(x) for name, x in given.items()}
        return operator(*(tensors | given).values(), *mask)


class TestErrors(TestCase):
    @parametrize("where", ["meta", "fake", "vmap", "decomposition"])
    def test_what_the_cpu_refuses_is_refused_in_the_same_words(self, where):
        for tensors in bad_calls():
            name = "_attn_backward" if "attn" in tensors else "attn"
            given = [x if x is None else (x.dtype, *x.shape) for x in tensors.values()]
            with self.subTest(operator=name, tensors=str(given)):
                message = f"^{name}: expected .*, but got "
                with self.assertRaisesRegex(RuntimeError, message) as on_cpu:
                    call(tensors, "cpu")
                with self.assertRaises(RuntimeError) as refused:
                    call(tensors, where)
                self.assertEqual(str(refused.exception), str(on_cpu.exception))

    def test_a_missing_operand_is_named_with_the_gradient_that_needs_it(self):
        needs = ("q", "grad_k"), ("k", "grad_q"), ("v", "grad_q"), ("v", "grad_k")
        for name, gradient in needs:
            tensors = {**dict(zip(NAMES, make_all())), name: None}.values()
            mask = [gradient == "grad_q", gradient == "grad_k", False]
            message = f"expected {name}, which {gradient} needs, but got None"
            for function in aten._attn_backward, decomposed(aten._attn_backward):
                with self.assertRaisesRegex(RuntimeError, message):
                    function(*tensors, mask)

    def test_devices(self):
        """Tensors of two devices, which a fake mode and vmap tell apart as well."""
        for i in range(6):
            tensors = make_all()
            tensors[i] = tensors[i].to("meta")
            message = "_attn_backward: expected grad_output, .* on the same device, but"
            with self.assertRaisesRegex(RuntimeError, message):
                aten._attn_backward(*tensors, [True] * 3)
            if 2 <= i < 5:
                message = "attn: expected q, k and v to be on the same device, but got"
                with self.assertRaisesRegex(RuntimeError, message):
                    torch.attn(*tensors[2:5])


def products(function, *args):
    """How many products ATen makes in a call: none, where a kernel runs."""
    with torch.autograd.profiler.profile() as profile:
        function(*args)
    return sum(event.name == "aten::mm" for event in profile.function_events)


# Sizes that the CPU kernels take, with AVX2 or more, and sizes that ATen's products take: wide ones and complex ones.
FUSED, WIDE = (4, 2, 3), (5, 500, 600)


# Gradients are given, not those of a loss: the derivative of most losses multiplies by a lazy conjugate itself.
def first_order(function, inputs, around):
    outputs = function(*inputs)
    given = [x.detach() * 2 for x in outputs]
    with around():
        return torch.autograd.grad(outputs, inputs, given)


def second_order(function, inputs, around):
    outputs = function(*inputs)
    given = [(x.detach() * 2).requires_grad_() for x in outputs]
    with around():
        grads = torch.autograd.grad(outputs, inputs, given, create_graph=True)
        more = [x.detach() * 0.5 for x in grads]
        return torch.autograd.grad(grads, (*inputs, *given), more)


def forward_over_reverse(function, inputs, around):
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, x.detach() * 0.5 + 0.25) for x in inputs]
        outputs = function(*duals)
        given = [x.detach() * 2 for x in outputs]
        with around():
            grads = torch.autograd.grad(outputs, duals, given, create_graph=True)
        return [fwAD.unpack_dual(x).tangent.detach() for x in grads]


def batched_gradients(function, inputs, around):
    outputs = function(*inputs)
    given = [torch.stack([x.detach() * 2, x.detach() - 1]) for x in outputs]
    with around():
        return vmap(lambda *given: torch.autograd.grad(outputs, inputs, given))(*given)


def attn_of_a_batch(*inputs):
    return [x.squeeze(0) for x in vmap(torch.attn)(*[x.unsqueeze(0) for x in inputs])]


PLAIN = torch.clone, torch.detach


def derivative(
    order, function, values, mode=nullcontext, around=nullcontext, subclass=PLAIN
):
    """In a mode, or with a context around whatever differentiates; of tensors, or of a subclass around them."""
    device = values[0].device.type
    wrap, unwrap = subclass
    with mode():
        inputs = [wrap(x).requires_grad_() for x in values]
        return [*map(unwrap, order(function, inputs, lambda: around(device)))]


ORDERS = [first_order, second_order, forward_over_reverse, batched_gradients]
MODES = {
    "dispatch_mode": BaseTorchDispatchMode,
    "FLOP_counter": lambda: FlopCounterMode(display=False),
    "mutation_allowed": torch.autograd.graph.allow_mutation_on_saved_tensors,
}
CONTEXTS = {name: {"mode": mode} for name, mode in MODES.items()} | {
    # The forward is outside, where autocast would cast the inputs.
    "autocast": {"around": lambda device: torch.autocast(device, torch.bfloat16)},
    "TwoTensor": {"subclass": (lambda x: TwoTensor(x, x.clone()), lambda x: x.b)},
    "LoggingTensor": {"subclass": (LoggingTensor, lambda x: x.elem)},
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
            inputs = leaves(make_inputs(*sizes, dtype=dtype))
            self.assertEqual(products(torch.attn, *inputs), count)
            outputs = torch.attn(*inputs)
            backward = products(torch.autograd.grad, outputs, inputs, outputs)
            self.assertEqual(backward, 2 * count)

    @in_all_dtypes
    @parametrize("order", ORDERS, name_fn=lambda order: order.__name__)
    @parametrize("context", CONTEXTS, name_fn=str)
    def test_derivatives_are_those_outside(self, context, order, dtype):
        for sizes in FUSED, WIDE:
            values = make_inputs(*sizes, dtype=dtype)
            values = [x / max(sizes) ** 0.5 for x in values]  # or float16 overflows
            for function in torch.attn, attn_of_a_batch:
                if context == "TwoTensor" and order is forward_over_reverse:
                    continue  # TwoTensor has no tangents
                if context not in MODES and function is attn_of_a_batch:
                    continue  # it has the derivatives of PyTorch's own operators
                result = derivative(order, function, values, **CONTEXTS[context])
                self.assert_same(result, derivative(order, function, values))

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

        def run(tensors):
            grads = aten._attn_backward(*tensors, [True] * 3)
            return *torch.attn(*tensors[2:5]), *grads

        for sizes, lazy in itertools.product(((9, 500, 600), (9, 4, 5)), lazy_views):
            tensors = make_all(*sizes, dtype=dtype)
            views = [lazy(x) for x in tensors]
            with torch._C._ExcludeDispatchKeyGuard(keys):
                result = run(views)
            self.assertEqual(result, run(tensors))

    @in_all_dtypes
    def test_the_backward_operator_under_autocast(self, dtype):
        """Its results and their tangents."""
        for sizes in (9, 500, 600), (9, 100, 100):
            tensors, tangents = (make_all(*sizes, dtype=dtype) for _ in range(2))

            def run():
                with fwAD.dual_level():
                    duals = map(fwAD.make_dual, tensors, tangents)
                    grads = aten._attn_backward(*duals, [True] * 3)
                    return [fwAD.unpack_dual(x) for x in grads]

            expected = run()
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(run(), expected, rtol=0, atol=0)
                with FakeTensorMode() as mode:
                    fakes = map(mode.from_tensor, tensors)
                    fakes = aten._attn_backward(*fakes, [True] * 3)
            self.assertEqual([x.dtype for x in fakes], [dtype] * 3)

    @parametrize("dtype", [torch.complex64, torch.complex128])
    def test_infinite_gradients(self, dtype):
        """What is infinite and what is NaN, as composition has it; 1 + 0j times an infinity is NaN."""
        values = make_inputs(dtype=dtype)
        attn = composition(*values)[1]
        overflows = infinities = 0
        numbers = complex(torch.inf, 0), complex(0, -torch.inf), complex(torch.inf, 1)
        for number, which in itertools.product(numbers, range(2)):
            given = make_outputs(dtype=dtype)
            given[which][1, 2] = number
            results = []
            for function in composition, torch.attn:
                inputs = leaves(values)
                grads = torch.autograd.grad(function(*inputs), inputs, given)
                results.append(grads)
            backward = decomposed(aten._attn_backward)
            results.append(backward(*given, *values, attn, [True] * 3))
            results = [[*map(torch.view_as_real, grads)] for grads in results]
            expected = results[0]
            for result in results[1:]:
                self.assertEqual(result, expected, equal_nan=True)
            overflows += sum((~x.isfinite()).sum().item() for x in expected)
            infinities += which * expected[0].isinf().sum().item()
        self.assertGreater(overflows, 0)
        if not infinities:
            self.skipTest("this BLAS makes NaN of infinite X, whatever is added first")


class TestContextsOfDevices(TestCase):
    """The same on every device, each of which has kernels of its own."""

    def derivatives(self, sizes, device, dtype, context):
        """Each order's outside of the context, and in it."""
        values = [x.to(device) for x in make_inputs(*sizes, dtype=dtype)]
        for order in ORDERS:
            outside = derivative(order, torch.attn, values)
            yield outside, derivative(order, torch.attn, values, **CONTEXTS[context])

    @dtypes(torch.complex64, torch.complex128)
    @parametrize("context", MODES, name_fn=str)
    def test_complex_derivatives_in_modes(self, device, context, dtype):
        for sizes in (4, 2, 3), (70, 30, 40):
            for expected, result in self.derivatives(sizes, device, dtype, context):
                TestContexts.assert_same(self, result, expected)

    @dtypes(*ALL)
    def test_derivatives_under_autocast(self, device, dtype):
        # By kernels; in float32 on AMD with AVX-512 only forward by them; composed
        for sizes in (4, 2, 3), (70, 300, 400), (70, 500, 600):
            for expected, result in self.derivatives(sizes, device, dtype, "autocast"):
                self.assertEqual(result, expected, rtol=0, atol=0)


class TestTransforms(AttnTestCase):
    def setUp(self):
        super().setUp()
        # A loop over the batch, which only warns, is an error here.
        enable = torch._C._functorch._set_vmap_fallback_enabled
        self.addCleanup(enable, torch._C._functorch._is_vmap_fallback_enabled())
        enable(False)

    def check_vmap(self, function, expected, dtype):
        """vmap of `function`, over every choice of in_dims of q, k and v, against `expected` in a loop."""
        for in_dims in itertools.product((None, 0, 1, 2), repeat=3):
            if set(in_dims) == {None}:
                continue
            samples = zip(*(make_inputs(dtype=dtype) for _ in range(3)))
            inputs = [
                x[0] if dim is None else torch.stack(x, dim)
                for x, dim in zip(samples, in_dims)
            ]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                result = vmap(function, in_dims)(*inputs)
            singles = [
                itertools.repeat(x) if dim is None else x.unbind(dim)
                for x, dim in zip(inputs, in_dims)
            ]
            each = zip(*map(expected, *singles))
            self.assertEqual(result, [*map(torch.stack, each)], msg=f"{in_dims}")

    @in_precise_dtypes
    def test_vmap_over_every_choice_of_in_dims(self, dtype):
        self.check_vmap(torch.attn, composition, dtype)

    @in_precise_dtypes
    def test_vmap_of_the_backward_operator(self, dtype):
        """In pairs of in_dims, or all six tensors would make 4096 cases."""
        for mask, defined in itertools.product(subsets(3), subsets(2)):

            def backward(function):
                def run(q, k, given):
                    v, attn = torch.ones_like(given), torch.tanh(q @ k.mT)
                    grads = keep((given, q @ q.mT), defined)
                    return present(function(*grads, q, k, v, attn, mask))

                return run

            if any(defined) and (any(mask[:2]) or (mask[2] and defined[0])):
                functions = map(backward, (aten._attn_backward, composition_backward))
                self.check_vmap(*functions, dtype)

    def test_nested_vmap(self):
        q, k, v = make((3, 2, 4, 2), (3, 4, 2), (2, 4, 3))
        result = vmap(vmap(torch.attn, (0, None, 0)), (0, 0, None))(q, k, v)
        self.assertEqual(result, composition(q, k.unsqueeze(1), v))

    def test_vmap_over_an_empty_batch(self):
        q, k, v = make((0, 4, 2), (4, 2), (4, 3))
        result = vmap(torch.attn, (0, None, None))(q, k, v)
        self.assertEqual([x.shape for x in result], [(0, 4, 3), (0, 4, 4)])

    def test_errors_under_vmap_name_the_sizes_inside(self):
        q, k, v = make((7, 2, 3), (5, 3), (2, 4))
        message = r"the same number of rows, but got q \[2, 3\], k \[5, 3\], v \[2, 4\]"
        with self.assertRaisesRegex(RuntimeError, message):
            vmap(torch.attn, (0, None, None))(q, k, v)
        message = "attn: expected q to be 2-D, but got a 1-D tensor of size"
        with self.assertRaisesRegex(RuntimeError, message):
            vmap(torch.attn)(k, k, k)

    @in_precise_dtypes
    def test_transforms_of_gradients(self, dtype):
        """Per-sample gradients, Jacobians and Hessians."""
        batch = make((3, 4, 2), (3, 4, 2), (3, 4, 3), dtype=dtype)
        single, other = ([x[i] for x in batch] for i in range(2))
        every = (0, 1, 2)

        def run(function):
            def value(*inputs):
                return loss(function(*inputs))

            def outputs(*inputs):
                return tuple(function(*inputs))

            yield vmap(grad(value, every))(*batch)
            mixed = single[0], batch[1], single[2]
            yield vmap(grad(value, every), (None, 0, None))(*mixed)
            yield grad(lambda *x: vmap(value)(*x).sum(), every)(*batch)
            if not dtype.is_complex:
                yield jacrev(outputs, every)(*single)
                yield jacfwd(outputs, every)(*single)
                yield hessian(value, every)(*single)
                yield jacrev(jacrev(value, every), every)(*single)
                yield vmap(hessian(value))(*batch)
            yield jvp(outputs, tuple(single), tuple(other))
            results, pull = vjp(outputs, *single)
            yield pull(tuple(map(torch.ones_like, results)))

        self.assert_like_composition(lambda function: [*run(function)])

    @parametrize(
        "function", [torch.attn, torch.linalg.qr], name_fn=lambda f: f.__name__
    )
    def test_the_named_tuple_is_the_structure_of_the_outputs(self, function):
        """What torch.func asks for one entry of per output wants it in the named tuple, as for linalg.qr."""
        inputs = make_inputs()[: 3 if function is torch.attn else 1]
        outputs, pull = vjp(function, *inputs)
        given = [torch.ones_like(x) for x in outputs]
        self.assertEqual(len(pull(type(outputs)(given))), len(inputs))
        with self.assertRaisesRegex(RuntimeError, "pytree structure of cotangents"):
            pull(tuple(given))
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
                return loss(self.function(*self.project(x).chunk(3, dim=-1)))

        x = make((5, 4, 2))[0]

        def run(function):
            torch.manual_seed(0)
            model = Model(function)
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            one = grad(lambda p, x: functional_call(model, p, x))
            return vmap(one, (None, 0))(parameters, x)

        self.assert_like_composition(run)


class TestAutocast(TestCase):
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_forward_and_backward_in_lower_precision(self, dtype):
        inputs = leaves(make_inputs(8, 4, 4, dtype=torch.float32))
        with torch.autocast("cpu", dtype):
            outputs = torch.attn(*inputs)
        expected = torch.attn(*[x.to(dtype) for x in inputs])
        self.assertEqual(outputs, expected, rtol=0, atol=0)
        loss(outputs).backward()
        self.assertEqual([x.grad.dtype for x in inputs], [torch.float32] * 3)

    def test_mixed_inputs(self):
        q, k, v = make_inputs(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = torch.attn(q, k.bfloat16(), v)
        self.assertEqual(output.dtype, torch.bfloat16)

    @parametrize("device", ["CPU", "CUDA", "XPU", "MTIA", "MPS"])
    def test_every_list_has_it(self, device):
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self.assertTrue(has_kernel("aten::attn", f"Autocast{device}"))


def exported(dtype, pack):
    """A program whose N is dynamic, and inputs of another N than that of its trace."""

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return pack(torch.attn(q, k, v))

    n = torch.export.Dim("n")
    inputs = tuple(make_inputs(dtype=dtype))
    program = torch.export.export(Model(), inputs, dynamic_shapes=({0: n},) * 3)
    return program, make_inputs(9, dtype=dtype)


class TestTracing(DynamoTestCase):
    @in_all_dtypes
    @of_all_sizes
    def test_meta_and_fake_tensors(self, sizes, dtype):
        """Sizes, strides and dtypes as eager has them, forward and backward, whatever the strides of the inputs."""
        n, d, e = sizes

        def run(q, k, v):
            output, attn = results = torch.attn(q, k, v)
            if EXPLICIT:
                args = output.mT.mT, attn.mT, q, k, v, attn
                results = *results, *aten._attn_backward(*args, [True] * 3)
            return [(x.shape, x.stride(), x.dtype) for x in results]

        for inputs in (
            make_inputs(*sizes, dtype=dtype),
            [x.mT for x in make((d, n), (d, n), (e, n), dtype=dtype)],
            [x.expand(n, -1) for x in make((1, d), (1, d), (1, e), dtype=dtype)],
        ):
            expected = run(*inputs)
            self.assertEqual(run(*[x.to("meta") for x in inputs]), expected)
            with FakeTensorMode() as mode:
                self.assertEqual(run(*map(mode.from_tensor, inputs)), expected)

    def test_unbacked_sizes(self):
        shapes = ShapeEnv()
        n, m, d, e = (shapes.create_unbacked_symint() for _ in range(4))
        with FakeTensorMode(shape_env=shapes):
            q, k, v = inputs = torch.empty(n, d), torch.empty(n, d), torch.empty(n, e)
            output, attn = torch.attn(*inputs)
            self.assertEqual(str([*output.shape, *attn.shape]), f"[{n}, {e}, {n}, {n}]")
            if EXPLICIT:
                grads = aten._attn_backward(output, attn, *inputs, attn, [True] * 3)
                self.assertEqual(
                    *[str([x.shape for x in xs]) for xs in (grads, inputs)]
                )
            # Sizes that may differ are checked when the program runs.
            torch.attn(q, torch.empty(m, d), v)
        checks = itertools.chain(*shapes.deferred_runtime_asserts.values())
        self.assertIn(f"Eq({n}, {m})", [str(check.expr) for check in checks])

    @in_all_dtypes
    @parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_gradients_are_the_eager_ones(self, backend, dtype):
        """Bit for bit: the same kernels, forward and backward."""
        inputs = leaves(make_inputs(37, 16, 24, dtype=dtype))

        def step(function):
            outputs = function(*inputs)
            return *outputs, *torch.autograd.grad(loss(outputs), inputs)

        compiled = torch.compile(torch.attn, backend=backend, fullgraph=True)
        self.assertEqual(step(compiled), step(torch.attn), rtol=0, atol=0)

    def test_inductor_keeps_it_whole(self):
        inputs = leaves(make_inputs(33, 8, 5))

        def function(*inputs):
            return loss(torch.attn(*inputs))

        def step(function):
            value = function(*inputs)
            return value, *torch.autograd.grad(value, inputs)

        result, code = run_and_get_code(step, torch.compile(function, fullgraph=True))
        self.assertEqual(result, step(function))
        for operator in "attn", "_attn_backward":
            call = f"torch.ops.aten.{operator}.default("
            self.assertEqual("".join(code).count(call), 1)

    def test_inductor_with_every_subset_of_inputs_and_outputs(self):
        """In one graph, which has a call for each."""
        wanted = (1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)
        cases = [*itertools.product(wanted, ((1, 1), (1, 0), (0, 1)))]
        cases.remove(((0, 0, 1), (0, 1)))  # attn is no function of v
        values = make_inputs(9, 4, 3, dtype=torch.float32)
        inputs = [leaves(values, map(bool, wanted)) for wanted, _ in cases]

        def function(inputs):
            total = 0
            for each, (_, used) in zip(inputs, cases):
                for x, use in zip(torch.attn(*each), used):
                    total = total + x.square().sum() if use else total
            return total

        wanted = [x for x in itertools.chain(*inputs) if x.requires_grad]
        compiled = torch.compile(function, fullgraph=True)
        values = compiled(inputs), function(inputs)
        found = [torch.autograd.grad(x, wanted, allow_unused=True) for x in values]
        self.assertEqual(*found)

    def test_dynamic_sizes_compile_once(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            torch.attn, backend=counter, fullgraph=True, dynamic=True
        )
        for sizes in (4, 2, 3), (7, 5, 6), (9, 3, 8):
            inputs = leaves(make_inputs(*sizes))
            self.assertEqual(compiled(*inputs), torch.attn(*inputs))
        self.assertEqual(counter.frame_count, 1)

    def test_export(self):
        program, inputs = exported(torch.float64, lambda outputs: outputs)
        self.assertIn("aten.attn.default", str(program.graph))
        self.assertEqual(program.module()(*inputs), torch.attn(*inputs))
        # With export's own table all that is left are core operators.
        program = program.run_decompositions()
        called = {x.target for x in program.graph.nodes if x.op == "call_function"}
        self.assertTrue(all(torch.Tag.core in x.tags for x in called), called)
        self.assertEqual(program.module()(*inputs), torch.attn(*inputs))

    def test_aot_inductor(self):
        """A packaged model calls the kernel, through the proxy executor since attn has no C shim."""
        program, inputs = exported(torch.float32, tuple)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "attn.pt2")
            torch._inductor.aoti_compile_and_package(program, package_path=path)
            result = torch._inductor.aoti_load_package(path)(*inputs)
        self.assertEqual(result, torch.attn(*inputs), rtol=0, atol=0)

    def test_compiled_autograd(self):
        inputs = leaves(make_inputs())
        expected = gradients(torch.attn, inputs)
        compiler = torch.compile(backend="aot_eager", fullgraph=True)
        with compiled_autograd._enable(compiler):
            loss(torch.attn(*inputs)).backward()
        self.assertEqual([x.grad for x in inputs], expected, rtol=0, atol=0)

    @parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx(self, mode):
        """Forward and backward are one node each; their decompositions say the same."""
        inputs = leaves(make_inputs())

        def trace(**options):
            def function(*inputs):
                return gradients(torch.attn, inputs)

            graph = make_fx(function, tracing_mode=mode, **options)(*inputs)
            self.assertEqual(graph(*inputs), function(*inputs))
            return graph.code

        code = trace()
        if EXPLICIT:
            self.assertEqual(code.count("aten.attn.default"), 1)
            self.assertEqual(code.count("aten._attn_backward.default"), 1)
            operators = [aten.attn, aten._attn_backward]
            table = torch._decomp.get_decompositions(operators)
            self.assertNotIn("attn", trace(decomposition_table=table))

    def test_script_and_trace(self):
        def function(q, k, v):
            output, attn = torch.attn(q, k, v)
            return output * 2, attn

        inputs = leaves(make_inputs())
        expected = with_gradients(function, inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled = [torch.jit.script(function), torch.jit.trace(function, inputs)]
            for scripted in compiled:
                self.assertIn("aten::attn", str(scripted.graph))
                for _ in range(3):  # the profiling executor makes what runs later
                    self.assertEqual(with_gradients(scripted, inputs), expected)
                buffer = io.BytesIO()
                torch.jit.save(scripted, buffer)
                buffer.seek(0)
                self.assertEqual(torch.jit.load(buffer)(*inputs), function(*inputs))


def peak_memory(function):
    """Bytes that a call allocates at its worst moment, results included."""
    function()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = (event.nbytes() for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(changes))


class TestTools(AttnTestCase):
    def test_flop_counter_is_that_of_composition(self):
        """It counts what it does of composition, for whatever is wanted and defined."""
        values = make_inputs(8, 3, 5)
        for wanted, used in itertools.product(subsets(3), subsets(2)):

            def run(function):
                inputs = leaves(values, wanted)
                with FlopCounterMode(display=False) as forward:
                    outputs = function(*inputs)
                outputs = itertools.compress(outputs, used)
                value = sum(x.sum() for x in outputs if x.requires_grad)
                with FlopCounterMode(display=False) as backward:
                    if torch.is_tensor(value):
                        value.backward()
                return forward.get_total_flops(), backward.get_total_flops()

            self.assert_like_composition(run, msg=f"{wanted} {used}")

    def test_flop_counter_without_gradients(self):
        *_, q, k, v, attn = make_all()
        with FlopCounterMode(display=False) as counter:
            aten._attn_backward(None, None, q, k, v, attn, [True] * 3)
        self.assertEqual(counter.get_total_flops(), 0)

    @parametrize("use_reentrant", [True, False])
    def test_checkpointing(self, use_reentrant):
        values = make_inputs()
        inputs, others = leaves(values), leaves(values)
        loss(torch.attn(*inputs)).backward()
        loss(checkpoint(torch.attn, *others, use_reentrant=use_reentrant)).backward()
        grads = [[x.grad for x in xs] for xs in (inputs, others)]
        self.assertEqual(*grads, rtol=0, atol=0)

    def test_saved_tensors_hooks(self):
        inputs = leaves(make_inputs())
        packed = []

        def pack(x):
            packed.append(tuple(x.shape))
            return x.to(torch.float32)

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, torch.Tensor.double)
        with hooks:
            outputs = torch.attn(*inputs)
        if EXPLICIT:
            self.assertEqual(sorted(packed), [(4, 2), (4, 2), (4, 3), (4, 4)])
        result = torch.autograd.grad(outputs, inputs, outputs)
        outputs = torch.attn(*inputs)
        expected = torch.autograd.grad(outputs, inputs, outputs)
        self.assertEqual(result, expected, rtol=1e-6, atol=1e-6)

    def test_names_in_the_graph(self):
        inputs = leaves(make_inputs())
        output, attn = torch.attn(*inputs)
        node = output.grad_fn
        self.assertEqual(node.name(), "AttnBackward0")
        for name, x in zip(("q", "k", "v"), inputs):
            self.assertIs(getattr(node, f"_saved_{name}"), x)
        self.assertEqual(node._saved_attn, attn)
        for name in ("q", "k", "v", "attn"):
            raw = getattr(node, f"_raw_saved_{name}")
            self.assertIsInstance(raw, torch._C._autograd.SavedTensor)
        grads = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        self.assertEqual(grads[0].grad_fn.name(), "AttnBackwardBackward0")

    def test_names_in_the_profiler(self):
        inputs = leaves(make_inputs())
        with torch.profiler.profile(record_shapes=True) as profile:
            torch.attn(*inputs).output.sum().backward()
        shapes = {event.name: event.input_shapes for event in profile.events()}
        names = {"aten::attn", "AttnBackward0", "aten::_attn_backward"}
        self.assertLessEqual(names, set(shapes))
        self.assertEqual(shapes["aten::attn"], [[4, 2], [4, 2], [4, 3]])

    @parametrize("what", ["forward", "backward", "forward mode", "double backward"])
    @parametrize("dtype", [torch.float32, torch.complex64])
    def test_memory_is_less_than_composition_takes(self, dtype, what):
        """By the kernels and, for complex numbers, by products."""
        sizes = 1024, 8, 8
        values, tangents = (tuple(make_inputs(*sizes, dtype=dtype)) for _ in range(2))

        def peak(function):
            if what == "forward":
                return peak_memory(lambda: function(*values))
            if what == "forward mode":
                return peak_memory(lambda: jvp(function, values, tangents))
            inputs = leaves(values)
            roots, weights = function(*inputs)[0].abs().sum(), None
            if what == "double backward":
                roots = torch.autograd.grad(roots, inputs, create_graph=True)
                weights = tangents
            return peak_memory(
                lambda: torch.autograd.grad(roots, inputs, weights, retain_graph=True)
            )

        self.assertLess(peak(torch.attn), peak(composition))

    def test_deepcopy_and_pickle(self):
        result = torch.attn(*make_inputs())
        buffer = io.BytesIO()
        torch.save(result, buffer)
        buffer.seek(0)
        for other in (
            copy.deepcopy(result),
            pickle.loads(pickle.dumps(result)),
            torch.load(buffer, weights_only=False),
        ):
            self.assertIs(type(other), torch.return_types.attn)
            self.assertEqual(other, result)

    @in_all_dtypes
    def test_lazy_copies_stay_lazy(self, dtype):
        values = make_inputs(dtype=dtype)
        inputs = [torch._lazy_clone(x).requires_grad_() for x in values]
        outputs = torch.attn(*inputs)
        given = [torch._lazy_clone(torch.ones_like(x)) for x in outputs]
        torch.autograd.backward(outputs, given)
        for x in (*inputs, *given):
            self.assertTrue(torch._C._is_cow_tensor(x))

    def test_results_are_deterministic(self):
        inputs = make_inputs(1090, 17, 33, dtype=torch.float32)
        first = with_gradients(torch.attn, inputs)
        for _ in range(5):
            result = with_gradients(torch.attn, inputs)
            self.assertEqual(result, first, rtol=0, atol=0)


class TestSubclasses(TestCase):
    def test_wrapper_subclass(self):
        """Operators below a subclass are attn and its backward, and gradients are subclasses again."""
        values, others = make_inputs(), make_inputs()
        inputs = [TwoTensor(a, b).requires_grad_() for a, b in zip(values, others)]
        grads = gradients(torch.attn, inputs)
        for part, plain in ("a", values), ("b", others):
            expected = gradients(torch.attn, leaves(plain))
            self.assertEqual([getattr(x, part) for x in grads], expected)

    def test_undefined_gradients_of_a_subclass(self):
        for wanted in subsets(3):
            pairs = [TwoTensor(x, x.clone()) for x in make_inputs()]
            inputs = [x.requires_grad_(want) for x, want in zip(pairs, wanted)]
            if any(wanted[:2]):
                torch.attn(*inputs).attn.sum().backward()
                found = [x.grad is not None for x in inputs]
                self.assertEqual(found, [*wanted[:2], False])


def run_dtensor():
    """One process of test_dtensor: every layout of the inputs against what one process alone computes."""
    # A PyTorch without torch.distributed has no such module.
    import torch.distributed.tensor as dt

    check = unittest.TestCase()
    dist.init_process_group("gloo")
    count = dist.get_world_size()
    mesh = dt.init_device_mesh("cpu", (count,))
    replicated, rows, columns = (dt.Replicate(),), (dt.Shard(0),), (dt.Shard(1),)
    # Composition gathers lazy conjugates, which torch.distributed refuses.
    dtypes = PRECISE if EXPLICIT else [torch.float64]
    for dtype, n in itertools.product(dtypes, (12, 13)):  # divisible by count, and not
        torch.manual_seed(0)
        values = make_inputs(n, 3, 2, dtype=dtype)
        weights = make_outputs(n, 2, dtype=dtype)
        local = leaves(values)
        expected = torch.attn(*local)
        expected = *expected, *torch.autograd.grad(expected, local, weights)

        def distributed(tensors, placements):
            each = zip(tensors, placements, strict=True)
            return [dt.distribute_tensor(x, mesh, placement) for x, placement in each]

        for placements in itertools.product((replicated, rows, columns), repeat=3):
            inputs = [x.requires_grad_() for x in distributed(values, placements)]
            with torch.profiler.profile() as forward:
                outputs = torch.attn(*inputs)
            # rows of the gradients with rows of the results, else all of them
            by_rows = [x.placements == rows for x in outputs]
            given = distributed(weights, [rows if x else replicated for x in by_rows])
            with torch.profiler.profile() as backward:
                grads = torch.autograd.grad(outputs, inputs, given)
            results = *outputs, *grads
            for x, reference in zip(results, expected, strict=True):
                check.assertIsInstance(x, dt.DTensor)
                torch.testing.assert_close(x.full_tensor(), reference)
            layouts = [x.placements for x in results]
            names = [x.name for x in (*forward.events(), *backward.events())]
            if EXPLICIT and placements == (replicated, replicated, replicated):
                check.assertEqual(layouts, [replicated] * 5)
                # Autograd's own call, and the kernel's on the local tensors
                check.assertEqual(names.count("aten::attn"), 2, names)
                check.assertEqual(names.count("aten::_attn_backward"), 2, names)
            if EXPLICIT and placements == (rows, replicated, replicated):
                check.assertEqual(layouts, [rows] * 3 + [(dt.Partial(),)] * 2)
                check.assertLess(outputs[1].to_local().shape[0], n)
                check.assertFalse([x for x in names if x.startswith("c10d::")])
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{count} processes agree with one")
    dist.destroy_process_group()


@unittest.skipIf(not dist.is_available(), "this PyTorch is built without distributed")
class TestDTensor(TestCase):
    @parametrize("count", [2, 4])
    def test_dtensor(self, count):
        torchrun = "-m", "torch.distributed.run", "--standalone"
        script = f"--nproc-per-node={count}", os.path.abspath(__file__), "--dtensor"
        result = subprocess.run(
            [sys.executable, *torchrun, *script],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=300,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertIn(f"{count} processes agree with one", result.stdout)


instantiate_parametrized_tests(TestGradients)
instantiate_parametrized_tests(TestErrors)
instantiate_parametrized_tests(TestContexts)
instantiate_device_type_tests(
    TestContextsOfDevices, globals(), only_for=("cpu", "cuda")
)
instantiate_parametrized_tests(TestTransforms)
instantiate_parametrized_tests(TestAutocast)
instantiate_parametrized_tests(TestTracing)
instantiate_parametrized_tests(TestTools)
instantiate_parametrized_tests(TestDTensor)

if __name__ == "__main__":
    if sys.argv[-1] == "--dtensor":
        run_dtensor()
        # The threads of gloo outlive destroy_process_group. One that frees a tensor while
        # Python ends asks for the GIL and aborts, so this process ends without ending Python.
        sys.stdout.flush()
        os._exit(0)
    else:
        run_tests()
