"""torch.attn with kernels and formulas of its own: every gradient, every transform, every subsystem of PyTorch."""
# Owner(s): ["module: autograd"]

import itertools
import math
import unittest
from contextlib import nullcontext
from functools import partial

import sympy

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch._dynamo import compiled_autograd
from torch._dynamo.test_case import TestCase as DynamoTestCase
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    dtypes,
    instantiate_device_type_tests,
    onlyCPU,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    skipIfTorchDynamo,
    TemporaryFileName,
    TestCase,
)
from torch.testing._internal.logging_tensor import capture_logs_with_logging_tensor_mode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


aten = torch.ops.aten
CPU_KERNELS = torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", "CPU")

PRECISE = [torch.float64, torch.complex128]
ALL = [*PRECISE, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
# N, D and E: all different, all one, N the smallest, and each of them empty
SIZES = [(4, 2, 3), (1, 1, 1), (2, 5, 3), (0, 2, 3), (3, 0, 2), (3, 2, 0)]

NAMES = "grad_output", "grad_attn", "q", "k", "v", "attn"
# B is the leading dimension.
LETTERS = dict(zip(NAMES, ("BME", "BMN", "BMD", "BND", "BNE", "BMN")))

# One matrix, and a batch in which q has fewer rows than k
LAYOUTS = {}, {"m": 3, "leading": (2, 1)}

in_precise_dtypes = parametrize("dtype", PRECISE)
in_all_layouts = parametrize("layout", LAYOUTS, lambda x: "batch" if x else "matrix")


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
    """What runs on backends without kernels of their own; HPU, which is not in this PyTorch, stands for them."""
    backend = torch._C.DispatchKeySet(torch._C.DispatchKey.HPU)
    return lambda *args: operator.default.redispatch(backend, *args)


def make(*shapes, dtype=torch.float64, device="cpu"):
    """Tensors so small that tanh does not saturate: there, every gradient is zero and every test passes."""
    bound = 0.5 if dtype.is_complex else 1.0
    options = {"dtype": dtype, "device": device, "low": -bound, "high": bound}
    return [make_tensor(x, **options) for x in shapes]


def make_all(n=4, d=2, e=3, dtype=torch.float64, m=None, leading=(), device="cpu"):
    """What the backward operator takes: grad_output, grad_attn, q, k, v and attn."""
    m = n if m is None else m
    shapes = (m, e), (m, n), (m, d), (n, d), (n, e), (m, n)
    return make(*[(*leading, *x) for x in shapes], dtype=dtype, device=device)


def make_inputs(*sizes, **options):
    return make_all(*sizes, **options)[2:5]


def all_results(tensors):
    """Those of attn and of its backward for all gradients, of what `make_all` makes."""
    return *torch.attn(*tensors[2:5]), *aten._attn_backward(*tensors, [True] * 3)


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


def precise(tensors):
    wide = {True: torch.complex128, False: torch.float64}
    return [x if x is None else x.to(wide[x.is_complex()]) for x in tensors]


def require_cpu_inductor():
    # It imports Inductor, which wants torch.distributed.
    from torch.testing._internal.inductor_utils import HAS_CPU

    if not HAS_CPU:
        raise unittest.SkipTest("Inductor has no C++ compiler here")


def package(module, inputs, dynamic_shapes=None):
    """The module as AOTInductor compiles it."""
    program = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    with TemporaryFileName(suffix=".pt2") as path:
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        return torch._inductor.aoti_load_package(path)


def products(inputs):
    """How many products ATen makes forward and backward: none, where a kernel runs."""
    inputs = leaves(inputs)
    with torch.autograd.profiler.profile() as forward:
        outputs = torch.attn(*inputs)
    with torch.autograd.profiler.profile() as backward:
        torch.autograd.grad(outputs, inputs, outputs)
    names = [[x.name for x in y.function_events] for y in (forward, backward)]
    return [x.count("aten::mm") + x.count("aten::bmm") for x in names]


class AttnTestCase(TestCase):
    def assert_like_composition(self, run, *choices):
        """`run` makes of attn what it makes of composition, None included, in every case of the choices."""
        for case in itertools.product(*choices):
            results = []
            for function in torch.attn, composition:
                torch.manual_seed(0)  # so that `run` makes the same inputs for both
                results.append(run(function, *case))
            self.assertEqual(*results, msg=f"{case}")

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


class TestGradients(AttnTestCase):
    @in_precise_dtypes
    @parametrize("sizes", SIZES, name_fn=lambda x: "N{}_D{}_E{}".format(*x))
    def test_every_subset_of_inputs_and_gradients(self, sizes, dtype):
        """Values, and which gradients there are at all."""

        def run(function, layout, wanted, defined):
            *given, q, k, v, _ = make_all(*sizes, dtype, **layout)
            inputs = leaves((q, k, v), wanted)
            pairs = itertools.compress(zip(function(*inputs), given), defined)
            used = [pair for pair in pairs if pair[0].requires_grad]
            if used:
                torch.autograd.backward(*zip(*used))
            return [x.grad for x in inputs]

        self.assert_like_composition(run, LAYOUTS, subsets(3), subsets(2))

    def test_undefined_gradients_of_both_outputs(self):
        inputs = leaves(make_inputs())
        undefine = torch._C._functions.UndefinedGrad()
        torch.autograd.backward([undefine(x).sum() for x in torch.attn(*inputs)])
        self.assertEqual([x.grad for x in inputs], [None] * 3)

    @parametrize("dtype", ALL)
    @in_all_layouts
    def test_every_mask_of_the_backward_operator(self, layout, dtype):
        """What the mask or an undefined gradient leaves out is None; operands that are not needed may be missing."""
        *given, q, k, v, _ = make_all(5, 9, 8, dtype, **layout)
        plain, exact = composition(q, k, v), composition(*precise((q, k, v)))
        self.assert_as_good(generic(aten.attn)(q, k, v), plain, exact)
        attn = plain[1]
        functions = [f(aten._attn_backward) for f in (generic, decomposed)]
        for defined, mask in itertools.product(subsets(2), subsets(3)):
            args = [*keep(given, defined), q, k, v, attn]
            plain = composition_backward(*args, mask)
            exact = composition_backward(*precise(args), mask)
            used = any(defined)
            args[2:4] = keep((q, k), [used and any(mask[:2])] * 2)
            for function in aten._attn_backward, *functions:
                self.assert_as_good(function(*args, mask), plain, exact)
            with FakeTensorMode(allow_non_fake_inputs=True):
                fakes = aten._attn_backward(*args, mask)
            self.assertEqual([x is None for x in fakes], [x is None for x in plain])

    @skipIfTorchDynamo("compiled autograd adds gradients that are undefined")
    @in_precise_dtypes
    def test_every_subset_of_the_double_backward(self, dtype):
        """gradgradcheck gives a gradient to one of the gradients of q, k and v at a time."""

        def run(function, layout, chosen):
            values, given = (make_inputs(dtype=dtype, **layout) for _ in range(2))
            inputs = leaves(values)
            grads = gradients(function, inputs, create_graph=True)
            grads, weights = (present(keep(x, chosen)) for x in (grads, given))
            return torch.autograd.grad(grads, inputs, weights)

        self.assert_like_composition(run, LAYOUTS, filter(any, subsets(3)))

    @skipIfTorchDynamo("compiled autograd adds gradients that are undefined")
    @in_precise_dtypes
    def test_derivative_of_the_backward_operator(self, dtype):
        """Of all of its tensors, by itself; of a batch in random directions."""
        for layout, mask in itertools.product(LAYOUTS, filter(any, subsets(3))):
            inputs = leaves(make_all(2, 2, 2, dtype=dtype, **layout))

            def function(*x):
                return present(aten._attn_backward(*x, mask))

            how = {"fast_mode": bool(layout)}
            gradcheck(function, inputs, check_forward_ad=True, **how)
            gradgradcheck(function, inputs, check_fwd_over_rev=True, **how)

    @in_precise_dtypes
    def test_every_subset_of_tangents(self, dtype):
        def run(function, layout, chosen):
            values, tangents = (make_inputs(dtype=dtype, **layout) for _ in range(2))
            with fwAD.dual_level():
                triples = zip(values, tangents, chosen)
                inputs = [fwAD.make_dual(x, t) if use else x for x, t, use in triples]
                return [fwAD.unpack_dual(x).tangent for x in function(*inputs)]

        self.assert_like_composition(run, LAYOUTS, subsets(3))

    def test_output_is_no_function_of_attn_in_the_graph(self):
        """So a hook on attn sees only its own gradient, not what reaches it through output."""
        output, attn = torch.attn(*leaves(make_inputs()))
        with self.assertRaisesRegex(RuntimeError, "appears to not have been used"):
            torch.autograd.grad(output.sum(), attn, retain_graph=True)
        seen = []
        attn.register_hook(seen.append)
        (output.sum() + 2 * attn.sum()).backward()
        self.assertEqual(seen, [torch.full_like(attn, 2)])

    def test_saved_tensors_may_not_change(self):
        for i in range(5):
            tensors = [x.clone() for x in leaves(make_inputs())]
            tensors = *tensors, *reversed(torch.attn(*tensors))
            with torch.no_grad():
                tensors[i].mul_(2)
            refused = self.assertRaisesRegex(RuntimeError, "modified by an inplace")
            with refused if i < 4 else nullcontext():  # output is not saved
                tensors[4].sum().backward()

    @skipIfTorchDynamo("Dynamo does not trace sparse tensors")
    def test_sparse_gradients(self):
        """Of either output or of both, beside a dense one, or alone and differentiated again."""
        values, index = make_inputs(), torch.tensor([0, 2, 0])

        def run(sparse, chosen, beside):
            inputs = leaves(values)
            outputs = torch.attn(*inputs)
            rows = partial(F.embedding, index, sparse=sparse)
            value = sum(rows(x).sum() for x in itertools.compress(outputs, chosen))
            if beside:  # autograd's own sum of the two has no derivative
                return torch.autograd.grad(value + loss(outputs), inputs)
            grads = torch.autograd.grad(value, inputs[:2], create_graph=True)
            return *grads, *torch.autograd.grad(loss(grads), inputs[:2])

        for case in itertools.product(filter(any, subsets(2)), (True, False)):
            self.assertEqual(run(True, *case), run(False, *case))

    @skipIfTorchDynamo("Dynamo does not trace sparse tensors")
    @parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
    def test_sparse_inputs(self, layout):
        """As far as composition takes them: q or k, and v."""

        def run(function, chosen):
            pairs = zip(make_inputs(4, 3, 3), chosen)
            inputs = leaves(x.to_sparse(layout=layout) if y else x for x, y in pairs)
            loss(function(*inputs)).backward()
            return [x.grad.to_dense() for x in inputs]

        self.assert_like_composition(run, [x for x in subsets(3) if not all(x[:2])])

    def test_only_what_is_needed_is_saved(self):
        """v and attn always, q and k where one of them has a gradient."""
        for wanted in filter(any, subsets(3)):
            node = torch.attn(*leaves(make_inputs(), wanted)).output.grad_fn
            saved = [getattr(node, f"_saved_{x}") is not None for x in NAMES[2:]]
            self.assertEqual(saved, [any(wanted[:2])] * 2 + [True] * 2)


# How operands of two leading dimensions lie in memory
MEMORY = {
    "contiguous": make_tensor,
    "heads": lambda b, h, n, d, **x: make_tensor(b, n, h, d, **x).transpose(1, 2),
    "cache": lambda b, h, n, d, **x: make_tensor(b, h, n + 2, d, **x).narrow(2, 1, n),
    "permuted": lambda b, h, n, d, **x: make_tensor(h, b, n, d, **x).transpose(0, 1),
    "outer": lambda b, h, n, d, **x: make_tensor(n, d, h, b, **x).permute(3, 2, 0, 1),
    "mT": lambda b, h, n, d, **x: make_tensor(b, h, d, n, **x).mT,
    "group": lambda b, h, n, d, **x: make_tensor(b, 1, n, d, **x).expand(b, h, n, d),
    "shared": lambda b, h, n, d, **x: (
        make_tensor(b, n, 1, d, **x).expand(b, n, h, d).transpose(1, 2)
    ),
    "equal_rows": lambda b, h, n, d, **x: make_tensor(b, h, 1, d, **x).expand(
        b, h, n, d
    ),
}


def lay_out(where, sizes, **options):
    """q, k and v, of which one or all lie as the names say."""
    b, h, m, n, d, e = sizes
    shapes = (b, h, m, d), (b, h, n, d), (b, h, n, e)
    options = {
        "dtype": torch.float32,
        "device": "cpu",
        "low": -0.5,
        "high": 0.5,
    } | options
    return tuple(MEMORY[x](*shape, **options) for x, shape in zip(where, shapes))


def strides_like(x, columns):
    """Those of a result like x: see attn_empty_like."""
    *rows, last = range(x.dim())
    ones = [i for i in rows if x.shape[i] == 1]
    order = [i for i in rows if i not in ones]
    order.sort(key=lambda i: x.stride(i) or math.inf, reverse=True)
    order.append(last)
    for i in reversed(ones):
        order.insert(order.index(i + 1), i)
    return torch.empty_permuted((*x.shape[:-1], columns), order).stride()


def results_of(forward, backward):
    """The five results of attn and its backward, where their functions are given."""

    def run(q, k, v):
        output, attn = forward(q, k, v)
        return output, attn, *backward(output, attn, q, k, v, attn, [True] * 3)

    return run


def results_of_autograd(q, k, v):
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    outputs = torch.attn(*inputs)
    return *outputs, *torch.autograd.grad(outputs, inputs, outputs)


OPERATORS = aten.attn, aten._attn_backward


class TestLayout(DynamoTestCase):
    """output and grad_q lie as q does, grad_k as k and grad_v as v, whatever computes them; attn is contiguous."""

    MIXED = [("heads", "cache", "mT"), ("group", "heads", "permuted")]
    CASES = [*((x, x, x) for x in MEMORY), *MIXED]

    def assert_layout(self, results, q, k, v, case):
        (m, n), (d, e) = (q.shape[-2], k.shape[-2]), (q.shape[-1], v.shape[-1])
        expected = [strides_like(*x) for x in ((q, e), (q, d), (k, d), (v, e))]
        shape = *q.shape[:-2], m, n
        expected.insert(1, torch.empty(shape, device="meta").stride())
        self.assertEqual([x.stride() for x in results], expected, msg=f"{case}")

    @parametrize("dtype", ALL)
    def test_without_compilers(self, dtype):
        routes = {
            "operators": results_of(*OPERATORS),
            "autograd": results_of_autograd,
            "generic": results_of(*map(generic, OPERATORS)),
            "decomposition": results_of(*map(decomposed, OPERATORS)),
        }
        # b, h, M, N, D and E: fused, composed, and with ones and zeros
        sizes = [(2, 3, 32, 32, 30, 30), (2, 3, 5, 4, 500, 600), (2, 1, 5, 4, 3, 6)]
        sizes += [(1, 3, 1, 4, 3, 2), (2, 3, 1, 1, 1, 1)]
        for i in range(6):
            sizes.append([0 if i == j else x for j, x in enumerate((2, 3, 5, 4, 3, 6))])
        for where, size in itertools.product(self.CASES, sizes):
            inputs = lay_out(where, size, dtype=dtype)
            for name, run in routes.items():
                self.assert_layout(run(*inputs), *inputs, (name, where, size))
            with FakeTensorMode(allow_non_fake_inputs=True):
                fakes = routes["operators"](*inputs)
            self.assert_layout(fakes, *inputs, ("fake", where, size))
            meta = [
                torch.empty_strided(x.shape, x.stride(), device="meta") for x in inputs
            ]
            results = routes["operators"](*meta)
            self.assert_layout(results, *inputs, ("meta", where, size))

    @parametrize("where", MEMORY)
    def test_sizes_that_data_decide(self, where):
        """What a trace says of them is where results lie when it runs."""
        known = 2, 3, 5, 4, 7, 6
        expected = results_of(*OPERATORS)(*lay_out((where,) * 3, known))
        for route in (lambda x: x, generic, decomposed):
            for unknown in ({1}, {2}, {1, 2}, {*range(6)}):
                shapes = ShapeEnv()
                made = {i: shapes.create_unbacked_symint() for i in unknown}
                values = {x.node.expr: known[i] for i, x in made.items()}
                sizes = [made.get(i, x) for i, x in enumerate(known)]
                with FakeTensorMode(shape_env=shapes):
                    run = results_of(*map(route, OPERATORS))
                    results = run(*lay_out((where,) * 3, sizes))
                for result, like in zip(results, expected):
                    strides = [sympy.sympify(x).subs(values) for x in result.stride()]
                    self.assertEqual(strides, like.stride(), msg=f"{route} {unknown}")

    def test_under_vmap(self):
        """Results of a sample lie in the order in which those of a call by itself do."""

        def order(x):
            return sorted(range(x.dim()), key=x.stride, reverse=True)

        run, sizes = results_of(*OPERATORS), (2, 3, 5, 4, 6, 7)
        dims = itertools.cycle(range(3))
        for case, chosen in itertools.product(self.CASES, subsets(3)):
            dim = next(dims)
            batches = [x.unflatten(0, (2, 2)) for x in lay_out(case, (4, *sizes[1:]))]
            samples = [x[0] for x in batches]
            pairs = zip(batches, samples, chosen)
            inputs = [x.movedim(0, dim) if y else one for x, one, y in pairs]
            orders = []
            single = [order(x) for x in run(*samples)]

            def traced(*inputs):
                results = run(*inputs)
                orders.extend(map(order, results))
                return tuple(results)

            if any(chosen):
                vmap(traced, tuple(dim if y else None for y in chosen))(*inputs)
                self.assertEqual(orders, single, msg=f"{case} {chosen} {dim}")

    @skipIfTorchDynamo("Dynamo compiles the test itself")
    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_compiled_sizes_that_data_decide(self):
        """Of two equal sizes one may be known, and the other twice an unknown one."""
        require_cpu_inductor()

        def keys(q, v, count):
            k = v.new_ones(count.item(), 8)
            return loss(torch.attn(q, torch.cat([k, k]), v))

        def leading(q, v, count):
            k = v.new_ones(count.item(), 2, 40, 8).flatten(0, 1)
            return loss(torch.attn(q, k, v))

        for function, lead, count in (keys, (), 20), (leading, (4,), 2):
            q, v = make((*lead, 16, 8), (*lead, 40, 8))
            inputs = *leaves((q, v)), torch.tensor(count)
            compiled = torch.compile(function, fullgraph=True)
            results = [
                torch.autograd.grad(run(*inputs), inputs[:2])
                for run in (compiled, function)
            ]
            self.assertEqual(*results)

    @skipIfTorchDynamo("Dynamo compiles the test itself")
    @parametrize("backend", ["aot_eager", "inductor", "AOTInductor"])
    @parametrize("dynamic", [False, True])
    def test_compiled(self, backend, dynamic):
        """All cases in one program."""
        require_cpu_inductor()
        sizes = itertools.cycle([(2, 3, 32, 32, 30, 30), (2, 3, 5, 4, 50, 60)])
        cases = [*zip(self.CASES, sizes), (("heads",) * 3, (2, 1, 5, 4, 3, 6))]
        if backend == "AOTInductor":  # which compiles for seconds a case
            cases = cases[-3:]
        inputs = tuple(lay_out(*case) for case in cases)

        class Model(torch.nn.Module):
            def forward(self, *inputs):
                return [results_of(*OPERATORS)(*x) for x in inputs]

        if backend == "AOTInductor":
            dim = torch.export.Dim.AUTO if dynamic else None
            shapes = (({0: dim, 1: dim, 2: dim},) * 3,) * len(inputs)
            run = package(Model(), inputs, (shapes,))
        else:
            run = torch.compile(Model(), backend=backend, dynamic=dynamic)
        results = run(*inputs)
        self.assertEqual(results, Model()(*inputs))
        for found, case, operands in zip(results, cases, inputs, strict=True):
            self.assert_layout(found, *operands, (backend, case))


def bad_calls():
    """Tensors of attn and of its backward that break one rule for one tensor each."""
    for names in NAMES[2:5], NAMES:
        right = zip(NAMES, make_all(5, 3, 4, torch.float32, m=6, leading=(2,)))
        good = {name: x for name, x in right if name in names}
        for name in names:
            shape = good[name].shape
            shapes = [(), shape[1:2], shape[1:], (1, *shape)]
            for i, letter in enumerate(LETTERS[name]):
                # What no other tensor has may be of any size.
                if sum(letter in LETTERS[other] for other in names) > 1:
                    for size in 0, 1, shape[i] + 1:
                        shapes.append((*shape[:i], size, *shape[i + 1 :]))
            yield from (good | {name: torch.randn(shape)} for shape in shapes)
            yield good | {name: good[name].double()}
        yield {name: torch.randn(3) for name in names}
        for dtype in torch.int64, torch.bool, torch.complex32, torch.float8_e4m3fn:
            yield {name: x.to(dtype) for name, x in good.items()}
    yield from (good | {name: None} for name in NAMES[2:4])


def call(tensors, where):
    """attn of three tensors or its backward of six; where it runs is a device or a subsystem."""
    operator, mask = aten.attn, ()
    if "attn" in tensors:
        operator, mask = aten._attn_backward, ([True] * 3,)
    if where == "decomposition":
        return decomposed(operator)(*tensors.values(), *mask)
    given = {name: x for name, x in tensors.items() if x is not None}
    if where.startswith("vmap"):
        batch = {name: torch.stack([x] * 3, -1) for name, x in given.items()}
        function = vmap(lambda x: operator(*(tensors | x).values(), *mask), -1)
        if where == "vmap_of_one":
            name, x = next(iter(batch.items()))
            batch, function = {name: torch.stack([x] * 2)}, vmap(function)
        return function(batch)
    with FakeTensorMode() if where == "fake" else nullcontext() as mode:
        convert = mode.from_tensor if mode else lambda x: x.to(where)
        given = {name: convert(x) for name, x in given.items()}
        return operator(*(tensors | given).values(), *mask)


class TestErrors(TestCase):
    def test_meta_has_sizes_that_no_memory_holds(self):
        many = 2**40
        for m, n in (many, 5), (5, many):
            tensors = make_all(n, 2, 4, m=m, leading=(3,), device="meta")
            for got, like in zip(all_results(tensors), tensors[:5], strict=True):
                self.assertEqual(got.shape, like.shape)
        q = torch.empty(many, 1, device="meta")
        for function in torch.attn, composition:
            self.assertRaises(RuntimeError, function, q, q, q)

    @skipIfTorchDynamo("Dynamo has error messages of its own")
    @parametrize("where", ["meta", "fake", "vmap", "vmap_of_one", "decomposition"])
    def test_what_the_cpu_refuses_is_refused(self, where):
        """Under vmap by the same message, with the sizes that its function sees."""
        for tensors in bad_calls():
            name = "_attn_backward" if "attn" in tensors else "attn"
            given = [x if x is None else (x.dtype, *x.shape) for x in tensors.values()]
            with self.subTest(operator=name, tensors=str(given)):
                message = f"^{name}: expected .*, but got "
                with self.assertRaisesRegex(RuntimeError, message) as cpu:
                    call(tensors, "cpu")
                with self.assertRaisesRegex(RuntimeError, message) as other:
                    call(tensors, where)
                if where.startswith("vmap"):
                    self.assertEqual(str(other.exception), str(cpu.exception))

    def test_a_missing_operand_is_named(self):
        for name, wanted in itertools.product(NAMES[2:4], subsets(2)):
            tensors = {**dict(zip(NAMES, make_all())), name: None}.values()
            message = "expected q and k, which grad_q and grad_k need, but got None"
            for function in aten._attn_backward, decomposed(aten._attn_backward):
                refused = self.assertRaisesRegex(RuntimeError, message)
                with refused if any(wanted) else nullcontext():
                    function(*tensors, [*wanted, True])

    def test_devices(self):
        message = "^_attn_backward: expected .* to have the same device, but got"
        for i in range(6):
            tensors = make_all()
            tensors[i] = tensors[i].to("meta")
            with self.assertRaisesRegex(RuntimeError, message):
                aten._attn_backward(*tensors, [True] * 3)


# N, D and E. In float32 and float64, with AVX2 or more, the CPU kernels take them both ways, forward alone, and not at
# all; ATen's products take all of them in complex types, and on Intel's processors with AVX-512.
FUSED, MIXED, WIDE = (32, 30, 30), (16, 150, 150), (5, 500, 600)


# Gradients are given, not those of a loss: the derivative of most losses multiplies by a lazy conjugate itself.
def first_order(inputs, around):
    outputs = torch.attn(*inputs)
    given = [x.detach() * 2 for x in outputs]
    with around():
        return torch.autograd.grad(outputs, inputs, given)


def second_order(inputs, around):
    outputs = torch.attn(*inputs)
    given = [(x.detach() * 2).requires_grad_() for x in outputs]
    with around():
        grads = torch.autograd.grad(outputs, inputs, given, create_graph=True)
        more = [x.detach() * 0.5 for x in grads]
        return torch.autograd.grad(grads, (*inputs, *given), more)


def forward_over_reverse(inputs, around):
    with fwAD.dual_level():
        duals = [fwAD.make_dual(x, x.detach() * 0.5 + 0.25) for x in inputs]
        outputs = torch.attn(*duals)
        given = [x.detach() * 2 for x in outputs]
        with around():
            grads = torch.autograd.grad(outputs, duals, given, create_graph=True)
        return [fwAD.unpack_dual(x).tangent.detach() for x in grads]


def derivative(order, values, mode=nullcontext, around=nullcontext, wrap=torch.clone):
    """In a mode, or with a context around whatever differentiates; of tensors, or of a subclass around them."""
    with mode():
        inputs = [wrap(x).requires_grad_() for x in values]
        results = order(inputs, partial(around, values[0].device.type))
        return results if wrap is torch.clone else [x.b for x in results]


ORDERS = [first_order, second_order, forward_over_reverse]
CONTEXTS = {
    "dispatch_mode": {"mode": BaseTorchDispatchMode},
    "FLOP_counter": {"mode": lambda: FlopCounterMode(display=False)},
    "mutation_allowed": {"mode": torch.autograd.graph.allow_mutation_on_saved_tensors},
    # The forward is outside, where autocast would cast the inputs.
    "autocast": {"around": lambda device: torch.autocast(device, torch.bfloat16)},
    "TwoTensor": {"wrap": lambda x: TwoTensor(x, x.clone())},
}


# The orders of two derivatives. `given` are gradients of the outputs, `tangents` are of `given` and of q, k, v,
# and their last three also stand for gradients of the gradients.
def double_backward(function, values, given, tangents):
    inputs = leaves([*given, *values])
    outputs = function(*inputs[2:])
    grads = torch.autograd.grad(outputs, inputs[2:], inputs[:2], create_graph=True)
    return torch.autograd.grad(grads, inputs, tangents[2:])


def jvp_of_vjp(function, values, given, tangents):
    def pullback(*x):
        return vjp(lambda *y: tuple(function(*y)), *x[2:])[1](x[:2])

    return jvp(pullback, (*given, *values), tangents)[1]


def vjp_of_jvp(function, values, given, tangents):
    def pushforward(*x):
        return jvp(lambda *y: tuple(function(*y)), x[:3], x[3:])[1]

    return vjp(pushforward, *values, *tangents[2:])[1](given)


SECOND_ORDERS = [double_backward, jvp_of_vjp, vjp_of_jvp]


class TestSecondOrder(AttnTestCase):
    @skipIfTorchDynamo("Dynamo does not trace second derivatives")
    @parametrize("order", SECOND_ORDERS, name_fn=lambda order: order.__name__)
    @parametrize("large", ["given", "tangents"])
    @parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_what_is_finite_in_composition(self, dtype, large, order):
        """A loss scale makes the given gradients so large that twice one is infinite."""
        largest = torch.finfo(dtype).max
        for sizes, layout in itertools.product((FUSED, MIXED, WIDE), LAYOUTS):
            *given, q, k, v, _ = make_all(*sizes, **layout)
            tangents = make_all(*sizes, **layout)[:5]
            groups = {"values": [q, k, v], "given": given, "tangents": tangents}
            for name, group in groups.items():
                bound = 0.6 * largest if name == large else 1 / 8 / max(sizes)
                unit = max(x.abs().max() for x in group)
                groups[name] = tuple((x / unit * bound).to(dtype) for x in group)
            ours, theirs = (order(f, **groups) for f in (torch.attn, composition))
            self.assertTrue(all(x.isfinite().all() for x in (*ours, *theirs)))
            exact = {name: tuple(precise(group)) for name, group in groups.items()}
            self.assert_as_good(ours, theirs, order(composition, **exact))

    @skipIfTorchDynamo("Dynamo does not trace second derivatives")
    @parametrize("order", SECOND_ORDERS, name_fn=lambda order: order.__name__)
    @parametrize("dtype", ALL)
    def test_one_infinity_makes_no_other_nan(self, dtype, order):
        """Wherever it stands: no NaN where composition has none."""
        infinities = torch.inf, -torch.inf
        if dtype.is_complex:
            infinities = complex(torch.inf, 0), complex(0, -torch.inf)
        for layout, i, infinity in itertools.product(LAYOUTS, range(10), infinities):
            tensors = [*make_all(5, 3, 4, dtype, **layout)[:5]]
            tensors += make_all(5, 3, 4, dtype, **layout)[:5]
            tensors[i][..., 1, 2] = infinity
            given, values, tangents = tensors[:2], tensors[2:5], tensors[5:]
            groups = (*map(tuple, (values, given, tangents)),)
            ours, theirs = (order(f, *groups) for f in (torch.attn, composition))
            for x, y in zip(ours, theirs, strict=True):
                spoilt = x.isnan() & ~y.isnan()
                self.assertFalse(spoilt.any(), msg=f"{layout}, {i}, {infinity}")

    @skipIfTorchDynamo("it counts the operators of eager code")
    def test_products_are_those_of_composition_and_G(self):
        """Native products, for all that is wanted, given and used of the gradients. Composition has saved G."""
        n, d, e = 5, 8, 128  # e is more than all products of width d together
        dtype = torch.complex128  # no kernels, whose products no profiler sees
        names = "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"
        differentiate = partial(torch.autograd.grad, allow_unused=True)

        def products(function, layout, wanted, given, used):
            *weights, q, k, v, _ = leaves(make_all(n, d, e, dtype, **layout))
            inputs = leaves((q, k, v), wanted)
            pairs = itertools.compress(zip(function(*inputs), weights), given)
            outputs, weighted = zip(*(pair for pair in pairs if pair[0].requires_grad))
            inputs = [*itertools.compress(inputs, wanted)]
            grads = differentiate(outputs, inputs, weighted, create_graph=True)
            grads = present(keep(grads, itertools.compress(used, wanted)))
            with torch.autograd.profiler.profile(record_shapes=True) as profile:
                differentiate(grads, [*inputs, *weighted], grads)
            events = [x for x in profile.function_events if x.name in names]
            factors = [[*filter(len, x.input_shapes)][-2:] for x in events]
            flop = sum(math.prod(first) * second[-1] for first, second in factors)
            width = flop // weights[1].numel()
            return width % e // d, width // e

        for case in itertools.product(LAYOUTS, *map(subsets, (3, 2, 3))):
            _, wanted, given, used = case
            if any(use and not want for want, use in zip(wanted, used)):
                continue
            if not (given[0] and any(used) or given[1] and any(used[:2])):
                continue
            more = given[0] and any(used[:2])  # G
            # Autograd does not know that attn does not depend on v: it asks for W.
            more += given[0] and used[2] and not any(wanted[:2])
            of_d, of_e = products(composition, *case)
            if all((*wanted, *given, *used)):
                self.assertEqual((of_d, of_e), (6, 4))
            found = products(torch.attn, *case)
            self.assertEqual(found, (of_d, of_e + more), f"{case}")


class TestContexts(TestCase):
    """On every device. Below the Python key nobody resolves lazy conjugates, and autocast casts any product."""

    def assert_same(self, result, expected):
        """Equal bits, where the same code runs on the same operands; a BLAS sums complex numbers otherwise where a
        lazy conjugate is resolved before, so that those differ by some units of the largest.
        """
        for x, y in zip(result, expected, strict=True):
            self.assertTrue(y.isfinite().all())
            units = 16 * torch.finfo(y.dtype).eps if y.is_complex() else 0
            atol = units * y.abs().max().item() if y.numel() else 0
            self.assertEqual(x, y, rtol=0, atol=atol)

    def products(self, inputs, threads):
        capability = torch.backends.cpu.get_cpu_capability()
        if not CPU_KERNELS or capability not in ("AVX2", "AVX512"):
            self.skipTest("no CPU kernels take float32 and float64 here")
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        return products(inputs)

    @onlyCPU
    @skipIfTorchDynamo("Dynamo compiles the test itself")
    @dtypes(torch.float32, torch.float64)
    def test_sizes_reach_kernels_and_products(self, device, dtype):
        for sizes, expected in (FUSED, [0, 0]), (MIXED, [0, 4]), (WIDE, [2, 4]):
            found = self.products(make_inputs(*sizes, dtype=dtype), threads=2)
            self.assertEqual(found, expected, msg=f"{sizes}")
        for threads in 1, 3, 64:  # Kernels run by any number of threads.
            inputs = make_inputs(256, 16, 16, dtype=dtype)
            self.assertEqual(self.products(inputs, threads)[1], 0, msg=f"{threads}")

    @onlyCPU
    @skipIfTorchDynamo("Dynamo compiles the test itself")
    def test_threads_that_share_a_long_matrix(self, device):
        """Backward it is composed; as many matrices as threads are not."""
        for matrices, threads, count in ((1, 1, 0), (1, 2, 4), (2, 2, 0), (2, 3, 4)):
            inputs = [torch.randn(matrices, n, 16) for n in (2048, 64, 64)]
            self.assertEqual(self.products(inputs, threads)[1], count)

    @onlyCPU
    @skipIfTorchDynamo("Dynamo compiles the test itself")
    def test_small_matrices_of_a_batch(self, device):
        """Backward a batch of them is composed, and one of them is not."""
        for batch, d, count in ((1, 4, 0), (100, 4, 4), (100, 16, 0)):
            for shape in (batch,), (1, batch):
                inputs = make_inputs(40, d, d, torch.float32, leading=shape)
                self.assertEqual(self.products(inputs, 1)[1], count)
        heads = make_inputs(40, 4, 4, torch.float32, leading=(9,))
        heads = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in heads]
        self.assertEqual(self.products(heads, 1)[1], 0)

    @skipIfTorchDynamo("Dynamo traces neither these contexts nor second derivatives")
    @dtypes(*ALL)
    @parametrize("order", ORDERS, name_fn=lambda order: order.__name__)
    @parametrize("context", CONTEXTS, name_fn=str)
    def test_derivatives_are_those_outside(self, device, context, order, dtype):
        for sizes, layout in itertools.product((FUSED, MIXED, WIDE), LAYOUTS):
            values = make_inputs(*sizes, dtype, device=device, **layout)
            # or float16 overflows
            values = [x / max(sizes) ** 0.5 for x in values]
            result = derivative(order, values, **CONTEXTS[context])
            self.assert_same(result, derivative(order, values))

    @dtypes(*ALL)
    def test_lazy_views_below_the_python_key(self, device, dtype):
        """There the kernels get conjugate and negative views as they are."""
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)
        keys = keys | torch._C.DispatchKeySet(torch._C.DispatchKey.Negative)
        kinds = (
            lambda x: torch._neg_view(-x),
            lambda x: x.conj_physical().conj(),
            lambda x: torch._neg_view((-x).conj_physical()).conj(),
        )

        for sizes, layout, lazy in itertools.product((WIDE, FUSED), LAYOUTS, kinds):
            tensors = make_all(*sizes, dtype, device=device, **layout)
            views = [lazy(x) for x in tensors]
            with torch._C._ExcludeDispatchKeyGuard(keys):
                result = all_results(views)
            self.assertEqual(result, all_results(tensors))

    @dtypes(torch.float32, torch.float64)
    @in_all_layouts
    def test_tangents_of_the_backward_under_autocast(self, device, layout, dtype):
        """Called by itself, outside of what excludes autocast around the gradients of attn. Fakes keep the dtype."""
        tensors = make_all(dtype=dtype, device=device, **layout)

        def tangents():
            with fwAD.dual_level():
                duals = map(fwAD.make_dual, tensors, tensors)
                grads = aten._attn_backward(*duals, [True] * 3)
                return [fwAD.unpack_dual(x).tangent for x in grads]

        expected = tangents()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            self.assertEqual(tangents(), expected)
            with FakeTensorMode(allow_non_fake_inputs=True):
                fakes = aten._attn_backward(*tensors, [True] * 3)
        self.assertEqual([x.dtype for x in fakes], [dtype] * 3)

    @onlyCPU  # other devices have products of their own
    @dtypes(torch.complex64, torch.complex128)
    def test_infinite_gradients(self, device, dtype):
        """What is infinite and what is NaN, as composition has it; 1 + 0j times an infinity is NaN."""
        values = make_inputs(dtype=dtype, device=device)
        attn = composition(*values)[1]
        infinities = 0
        numbers = complex(torch.inf, 0), complex(0, -torch.inf), complex(torch.inf, 1)
        for number, which in itertools.product(numbers, range(2)):
            given = make_all(dtype=dtype, device=device)[:2]
            given[which][1, 2] = number
            inputs = leaves(values)
            grads = torch.autograd.grad(composition(*inputs), inputs, given)
            expected = [*map(torch.view_as_real, grads)]
            for function in aten._attn_backward, decomposed(aten._attn_backward):
                grads = function(*given, *values, attn, [True] * 3)
                result = [*map(torch.view_as_real, grads)]
                self.assertEqual(result, expected, equal_nan=True)
            infinities += which * expected[0].isinf().sum().item()
        if not infinities:
            self.skipTest("this BLAS makes NaN of infinite X, whatever is added first")

    def test_undefined_gradients_of_a_subclass(self, device):
        for wanted in subsets(3):
            pairs = [TwoTensor(x, x.clone()) for x in make_inputs()]
            inputs = [x.requires_grad_(want) for x, want in zip(pairs, wanted)]
            if any(wanted[:2]):
                torch.attn(*inputs).attn.sum().backward()
                found = [x.grad is not None for x in inputs]
                self.assertEqual(found, [*wanted[:2], False])


# in_dims of q, k and v, of which one or more have a batch
BATCHED = [x for x in itertools.product((0, None), repeat=3) if 0 in x]


def single_calls(function, in_dims):
    """What vmap makes of a function for three samples, by a call for each."""

    def run(*inputs):
        pairs = zip(inputs, in_dims)
        each = [[x] * 3 if dim is None else x.unbind(dim) for x, dim in pairs]
        return tuple(map(torch.stack, zip(*map(function, *each))))

    return run


class TestTransforms(AttnTestCase):
    def setUp(self):
        super().setUp()
        # A loop over the batch, which only warns, is an error here.
        enable = torch._C._functorch._set_vmap_fallback_enabled
        self.addCleanup(enable, torch._C._functorch._is_vmap_fallback_enabled())
        enable(False)

    def test_vmap_calls_the_operator_itself(self):
        """Once forward and once backward, at any nesting: else no kernel would run."""

        def run(function, outer, inner):
            dims = zip(outer, inner, ([5, 2], [4, 2], [4, 3]))
            inputs = make(*[[3] * (i == 0) + [2] * (j == 0) + x for i, j, x in dims])
            nested = vmap(vmap(lambda *x: tuple(function(*x)), inner), outer)
            return *nested(*inputs), *gradients(nested, leaves(inputs))

        self.assert_like_composition(run, BATCHED, BATCHED)
        for case in itertools.product(BATCHED, repeat=2):
            with capture_logs_with_logging_tensor_mode() as called:
                run(torch.attn, *case)
            products = "attn", "_attn_backward", "mm", "bmm"
            counts = ["".join(called).count(f".{x}.default(") for x in products]
            self.assertEqual(counts, [2, 1, 0, 0], msg=f"{case}")

    def test_vmap_over_v_makes_one_attn(self):
        """vmap itself refuses to return it without a batch if it has one."""
        q, k, v = make((2, 5, 3), (2, 4, 3), (7, 2, 4, 6))
        for dim in range(4):
            run = vmap(lambda *x: (*torch.attn(*x),), (None, None, dim), (0, None))
            output, attn = run(q, k, v.movedim(0, dim))
            self.assertEqual(attn, torch.tanh(q @ k.mT))
            self.assertEqual(output, attn @ v)

    @in_precise_dtypes
    def test_vmap_of_the_backward_operator(self, dtype):
        """Against a loop, by in_dims of q, k and v: those of all six tensors would be 4096."""
        dims = itertools.product((None, 0, 1, 2), repeat=3)
        for mask, defined, in_dims in itertools.product(subsets(3), subsets(2), dims):
            wanted = any(mask[:2]) or (mask[2] and defined[0])
            if not any(defined) or not wanted or set(in_dims) == {None}:
                continue

            def run(function, q, k, v):
                output, attn = composition(q, k, v)
                grads = keep((output, attn), defined)
                return present(function(*grads, q, k, v, attn, mask))

            pairs = zip(make_inputs(dtype=dtype, m=5, leading=(3, 2)), in_dims)
            inputs = [x[0] if dim is None else x.movedim(0, dim) for x, dim in pairs]
            result = vmap(partial(run, aten._attn_backward), in_dims)(*inputs)
            each = single_calls(partial(run, composition_backward), in_dims)
            self.assertEqual(result, each(*inputs), msg=f"{in_dims}")


class TestAutocast(TestCase):
    @parametrize("dtype", [torch.bfloat16, torch.float16])
    @in_all_layouts
    def test_forward_and_backward_in_lower_precision(self, layout, dtype):
        inputs = leaves(make_inputs(8, 4, 4, dtype=torch.float32, **layout))
        with torch.autocast("cpu", dtype):
            outputs = torch.attn(*inputs)
        expected = torch.attn(*[x.to(dtype) for x in inputs])
        self.assertEqual(outputs, expected, rtol=0, atol=0)
        loss(outputs).backward()
        self.assertEqual([x.grad.dtype for x in inputs], [torch.float32] * 3)

    def test_mixed_inputs_under_transforms(self):
        """Whichever are batched, and wherever autocast begins: as single calls have it."""
        autocast = torch.autocast("cpu", torch.bfloat16)

        def transforms(function, inputs):
            gradient = grad(lambda *x: loss(function(*x)), (0, 1, 2))
            tangents = jvp(function, inputs, inputs)[1]
            return function(*inputs), gradient(*inputs), tangents

        for in_dims in BATCHED:
            batch = make((3, 2, 5, 2), (3, 2, 4, 2), (3, 2, 4, 3))
            batch = [x if dim == 0 else x[0] for x, dim in zip(batch, in_dims)]
            single = autocast(single_calls(torch.attn, in_dims))
            inside = vmap(autocast(torch.attn), in_dims)
            outside = autocast(vmap(torch.attn, in_dims))
            compiled = torch.compile(outside, backend="aot_eager", fullgraph=True)
            for mixed in itertools.product((torch.float32, torch.bfloat16), repeat=3):
                inputs = tuple(x.to(dtype) for x, dtype in zip(batch, mixed))
                expected = transforms(single, inputs)
                results = [transforms(f, inputs) for f in (inside, outside)]
                if in_dims == (0, 0, 0):
                    results.append((compiled(*inputs), *expected[1:]))
                for result in results:  # sums of a few products in bfloat16
                    self.assertEqual(result, expected, rtol=2**-5, atol=2**-5)

    def test_nested_transforms_under_one_autocast(self):
        """Its cache keeps no tensor of a transform that has ended: each result is what it is alone."""
        q, k, v = make((2, 5, 2), (4, 2), (4, 3), dtype=torch.float32)
        k.requires_grad_()

        def value(x):
            return loss(vmap(lambda q: torch.attn(q, k, v))(x))

        def tangent(x):
            return jvp(grad(value), (x,), (x,))[1]

        def run(*functions):
            with torch.autocast("cpu", torch.bfloat16):
                return [function(q) for function in functions]

        twice = grad(lambda x: grad(value)(x).sum())
        functions = value, grad(value), twice, tangent, hessian(value)
        for pair in itertools.product(functions, repeat=2):
            self.assertEqual(run(*pair), [*run(pair[0]), *run(pair[1])])


class TestTracing(DynamoTestCase):
    def test_unbacked_sizes(self):
        """Sizes that may differ are compared when the program runs."""
        shapes = ShapeEnv()
        b, c, m, n, o, d, e = (shapes.create_unbacked_symint() for _ in range(7))
        with FakeTensorMode(shape_env=shapes):
            q, k, v = torch.empty(b, m, d), torch.empty(c, n, d), torch.empty(b, o, e)
            output, attn = torch.attn(q, k, v)
            aten._attn_backward(output, attn, q, k, v, attn, [True] * 3)
        checks = itertools.chain(*shapes.deferred_runtime_asserts.values())
        compared = [{*map(str, check.expr.args)} for check in checks]
        for pair in (b, c), (n, o):
            self.assertIn({*map(str, pair)}, compared)

    @skipIfTorchDynamo("Dynamo compiles the test itself")
    # Its key does not say which devices have kernels.
    @torch._functorch.config.patch(enable_autograd_cache=False)
    @parametrize("dynamic", [False, True])
    @parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_inductor_keeps_what_runs_fused(self, dtype, dynamic):
        """What it asks is what runs: no product of ATen's."""
        require_cpu_inductor()
        operators = "attn", "_attn_backward"
        for sizes, layout in itertools.product((FUSED, MIXED, WIDE), LAYOUTS):
            values = make_inputs(*sizes, dtype, **layout)
            meta = [x.to("meta") for x in values]
            fused = [
                CPU_KERNELS and aten._attn_is_fused(*meta, backward, "cpu")
                for backward in (False, True)
            ]
            for operator, is_fused in zip((0, 1), fused):
                self.assertEqual(products(values)[operator] == 0, is_fused)
            inputs = leaves(values)

            def step(function):
                value = loss(function(*inputs))
                return value, *torch.autograd.grad(value, inputs)

            torch._dynamo.reset()
            compiled = torch.compile(torch.attn, fullgraph=True, dynamic=dynamic)
            code = "".join(run_and_get_code(step, compiled)[1])
            calls = [f"torch.ops.aten.{x}.default(" in code for x in operators]
            self.assertEqual(calls, fused, msg=f"{sizes}")

    @in_all_layouts
    def test_compiled_autograd(self, layout):
        inputs = leaves(make_inputs(**layout))
        expected = gradients(torch.attn, inputs)
        compiler = torch.compile(backend="aot_eager", fullgraph=True)
        with compiled_autograd._enable(compiler):
            loss(torch.attn(*inputs)).backward()
        self.assertEqual([x.grad for x in inputs], expected, rtol=0, atol=0)

    @in_all_layouts
    def test_export(self, layout):
        """For every batch, M and N. With export's own table all that is left are core operators."""

        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return torch.attn(q, k, v)

        batch = {0: torch.export.Dim("batch")} if layout else {}
        rows = len(layout.get("leading", ()))
        sizes = [batch | {rows: torch.export.Dim(size)} for size in "mnn"]
        inputs = tuple(make_inputs(**({"m": 5} | layout)))
        program = torch.export.export(Model(), inputs, dynamic_shapes=sizes)
        self.assertIn("aten.attn.default", str(program.graph))
        inputs = make_inputs(9, m=7, leading=(4, 1) if layout else ())
        self.assertEqual(program.module()(*inputs), torch.attn(*inputs))
        program = program.run_decompositions()
        called = {x.target for x in program.graph.nodes if x.op == "call_function"}
        self.assertTrue(all(torch.Tag.core in x.tags for x in called), called)
        self.assertEqual(program.module()(*inputs), torch.attn(*inputs))

    def test_inductor_with_every_subset_of_inputs_and_outputs(self):
        """In one graph, by Python and as a package: C++ has no place for a result that is missing."""
        require_cpu_inductor()
        inputs = tuple(make_inputs(*FUSED, torch.float32, m=7, leading=(2,)))

        def every_gradient(*inputs):
            results = [*torch.attn(*inputs)]
            both = itertools.product([range(2)], filter(any, subsets(3)))
            for used, wanted in [*both, ((0,), (True,) * 3), ((1,), (True,) * 3)]:

                def value(*x):
                    return sum(torch.attn(*x)[i].square().sum() for i in used)

                places = tuple(itertools.compress(range(3), wanted))
                results += grad(value, places)(*inputs)
            return results

        graph = make_fx(every_gradient)(*inputs)
        expected = every_gradient(*inputs)
        results, code = run_and_get_code(torch.compile(graph), *inputs)
        self.assertEqual(results, expected)
        called = "torch.ops.aten._attn_backward.default(" in "".join(code)
        self.assertEqual(called, CPU_KERNELS)
        self.assertEqual(package(graph, inputs)(*inputs), expected)

    @unittest.skipIf(not hasattr(torch._C, "_lazy_ts_backend"), "no lazy backend")
    def test_backends_without_views(self):
        """XLA's and lazy tensors have none below functionalization, so that they call the CPU's kernel."""
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        for operator in "aten::attn", "aten::_attn_backward":
            self.assertFalse(has_kernel(operator, "XLA"))
        from torch._lazy import ts_backend

        ts_backend.init()
        for layout in LAYOUTS:
            values = make_inputs(**layout)
            inputs = [x.to("lazy").requires_grad_() for x in values]
            results = *torch.attn(*inputs), *gradients(torch.attn, inputs)
            plain = leaves(values)
            expected = *torch.attn(*plain), *gradients(torch.attn, plain)
            self.assertEqual([x.cpu() for x in results], [*expected])


class TestTools(AttnTestCase):
    def test_flop_counter_is_that_of_composition(self):
        """It counts what it does of composition, for whatever is wanted and defined."""

        def run(function, layout, wanted, used):
            inputs = leaves(make_inputs(8, 3, 5, **layout), wanted)
            with FlopCounterMode(display=False) as forward:
                outputs = function(*inputs)
            outputs = itertools.compress(outputs, used)
            value = sum(x.sum() for x in outputs if x.requires_grad)
            with FlopCounterMode(display=False) as backward:
                if torch.is_tensor(value):
                    value.backward()
            return forward.get_total_flops(), backward.get_total_flops()

        self.assert_like_composition(run, LAYOUTS, subsets(3), subsets(2))


instantiate_device_type_tests(TestContexts, globals(), only_for=("cpu", "cuda"))
for cases in (
    TestGradients,
    TestLayout,
    TestErrors,
    TestSecondOrder,
    TestTransforms,
    TestAutocast,
):
    instantiate_parametrized_tests(cases)
instantiate_parametrized_tests(TestTracing)

if __name__ == "__main__":
    run_tests()
