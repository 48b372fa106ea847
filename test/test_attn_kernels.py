# Owner(s): ["module: linear algebra"]
"""The fused kernels of attn against higher precision: errors, special values, layouts, masks, memory, determinism.

What a device has no kernels for is composed there, by the same rule of errors.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np

import torch
import torch.nn.functional as F
from torch.testing._internal.common_device_type import (
    dtypes,
    dtypesIfCUDA,
    instantiate_device_type_tests,
    largeTensorTest,
    onlyCPU,
    onlyCUDA,
)
from torch.testing._internal.common_utils import parametrize, run_tests, TestCase


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAMES = ("output", "attn", "grad_q", "grad_k", "grad_v")
# N, D and E: below and beyond a vector, a tile and a block; the kernels of CUDA take the last three.
SIZES = [(2, 3, 4), (17, 5, 33), (63, 16, 65), (65, 1, 100), (65, 2, 1), (1090, 1, 2)]
SIZES += [(400, 64, 1), (129, 70, 90), (200, 128, 16), (9, 200, 300)]
SIZES += [(64, 64, 64), (136, 128, 128), (304, 64, 64)]
SIZES += [(40, 0, 5), (40, 5, 0), (40, 0, 0)]
# Leading dimensions, M, N, D, E: whole matrices for each thread, and some that are cut
BATCHES = [((3,), 33, 65, 9, 20), ((2, 3), 200, 130, 64, 32), ((5,), 300, 1100, 8, 16)]
BATCHES += [((1, 2), 1100, 70, 20, 9), ((40,), 17, 17, 16, 16)]
PRODUCTS = {"aten::mm", "aten::matmul", "aten::bmm", "aten::baddbmm"}


def are_fused(q, k, v, grad_output=None, grad_attn=None):
    """Whether kernels take these inputs forward, and backward for all gradients."""
    n, d, e = k.size(-2), k.size(-1), v.size(-1)
    device = q.device.type.upper()
    has_kernels = torch._C._dispatch_has_kernel_for_dispatch_key("aten::attn", device)
    if 0 in (*q.shape[:-1], n) or not has_kernels:
        return False, False
    if device == "CPU":
        return d > 0, True
    old = torch.version.hip or torch.cuda.get_device_capability(q.device) < (8, 0)
    if old or q.dim() > 10:
        return False, False
    forward = q.dtype.itemsize == 2 and d == e and d in (64, 128)
    usual = grad_output is not None and grad_attn is None
    return forward, forward and d == 64 and usual


def make_inputs(n, d, e, dtype, device="cpu", scale=1.0, draw=0, m=None, lead=()):
    """q (m, d), k (n, d), v (n, e), grad_output (m, e), grad_attn (m, n) with leading dimensions, where m is n if it is
    not given; scores have about the deviation `scale`.
    """
    m = n if m is None else m
    generator = torch.Generator().manual_seed(((n * 211 + d) * 211 + e) * 211 + draw)
    shapes = [(*lead, *size) for size in ((m, d), (n, d), (n, e), (m, e), (m, n))]
    options = {"generator": generator, "dtype": torch.float64}
    tensors = [torch.randn(shape, **options) for shape in shapes]
    root = (scale / max(d, 1) ** 0.5) ** 0.5
    return [(t * root if i < 2 else t).to(device, dtype) for i, t in enumerate(tensors)]


def mT(matrices):
    """The transposes of arrays or tensors."""
    return matrices.swapaxes(-1, -2)


@torch.compiler.disable
def precise(t):
    """As an array of a type that is more exact: float64, and numpy's longest for float64 itself."""
    if t is None:
        return None
    array = t.cpu().double().numpy()
    return array.astype(np.longdouble) if t.dtype == torch.float64 else array


def reference(q, k, v, grad_output=None, grad_attn=None):
    """output, attn and the three gradients, as `precise` arrays."""
    q, k, v, grad_output, grad_attn = map(precise, (q, k, v, grad_output, grad_attn))
    attn = np.tanh(q @ mT(k))
    grad = 0 if grad_output is None else grad_output @ mT(v)
    grad = (grad if grad_attn is None else grad + grad_attn) * ((1 - attn) * (1 + attn))
    grad_v = None if grad_output is None else mT(attn) @ grad_output
    return attn @ v, attn, grad @ k, mT(grad) @ q, grad_v


def composition(q, k, v, grad_output=None, grad_attn=None):
    """The same by plain operators in the dtype of the inputs.

    For 16 bits each operator computes in float32 and rounds its result, as ATen's do. ATen's own products of 16 bits
    take seconds on processors without instructions for them.
    """
    dtype = q.dtype
    wide = torch.float32 if dtype.itemsize == 2 else dtype

    def rounded(t):
        return None if t is None else t.to(dtype).to(wide)

    q, k, v, grad_output, grad_attn = map(rounded, (q, k, v, grad_output, grad_attn))
    attn = rounded(torch.tanh(rounded(q @ mT(k))))
    through_output = None if grad_output is None else rounded(grad_output @ mT(v))
    grads = [g for g in (grad_attn, through_output) if g is not None]
    results = [attn @ v, attn, None, None, None]
    if grads:
        total = rounded(sum(grads[1:], grads[0]))
        scores = rounded(torch.ops.aten.tanh_backward(total, attn))
        results[2:4] = scores @ k, mT(scores) @ q
    if grad_output is not None:
        results[4] = mT(attn) @ grad_output
    return [None if t is None else t.to(dtype) for t in results]


def kernels(q, k, v, grad_output=None, grad_attn=None, mask=(True, True, True)):
    """The same by the operator and its backward, which gets the operands that it needs."""
    output, attn = torch.attn(q, k, v)
    operands = (q, k, v) if any(mask[:2]) else (None, None, v)
    return output, attn, *backward(grad_output, grad_attn, *operands, attn, mask)


def backward(grad_output, grad_attn, q, k, v, attn, mask=(True, True, True)):
    return torch.ops.aten._attn_backward(grad_output, grad_attn, q, k, v, attn, mask)


def magnitudes(q, k, v, grad_output=None, grad_attn=None):
    """What the rounding errors behind every element of `reference` add up to, in epsilons: they have either sign, so it
    is the root of the sum of the products' squares. For any numbers: arrays or tensors.
    """

    def norm(a, b):
        return ((a * a) @ (b * b)) ** 0.5

    attn, scores = abs(np.tanh(q @ mT(k))), norm(q, mT(k))
    slope = 1 - attn * attn
    grad = 0 if grad_output is None else norm(grad_output, mT(v))
    grad = (grad if grad_attn is None else grad + abs(grad_attn)) * slope
    grad_v = None if grad_output is None else norm(mT(attn), grad_output)
    grads = norm(grad, k), norm(mT(grad), q), grad_v
    return norm(attn, v), attn + scores * slope, *grads


def statistics(values):
    """The root mean square and the largest of all the numbers in some arrays."""
    values = [x for x in values if x.size] or [np.zeros(1)]
    squares = sum(float((x * x).sum()) for x in values)
    mean = (squares / sum(x.size for x in values)) ** 0.5
    return mean, max(float(x.max()) for x in values)


def broken_rule(name, dtype, draws):
    """THE RULE of errors: None if they obey it, else what is wrong.

    draws: for each draw of the inputs (result, plain, exact, magnitude), where plain is the composition's result in the
    same dtype and magnitude is from `magnitudes`. Over all draws together, the root mean square and the largest error
    are at most 2 (output, attn) or 3 (gradients) times those of the composition. A few numbers may be right by luck, so
    neither bound is below that of errors of one unit: the exact number times the epsilon of the result, or it or the
    magnitude times the epsilon of the sums, float32's for 16 bits. The largest of n of these is about sqrt(2 log n).
    """
    factor = 2 if name in ("output", "attn") else 3
    epsilon = torch.finfo(dtype).eps
    sums = min(epsilon, torch.finfo(torch.float32).eps)
    count = max(2, sum(exact.size for _, _, exact, _ in draws))
    largest = (2 * math.log(count)) ** 0.5
    rows = []
    for result, plain, exact, magnitude in draws:
        unit, rounding = sums * np.maximum(abs(exact), magnitude), epsilon * abs(exact)
        errors = abs(precise(result) - exact), abs(precise(plain) - exact)
        bounds = np.maximum(rounding, unit), np.maximum(rounding, largest * unit)
        rows.append((*errors, *bounds))
    got, plain, units, tops = map(statistics, zip(*rows))
    for i, what in enumerate(("root mean square", "largest")):
        unit = (units, tops)[i][i]
        allowed = max(factor * plain[i], unit)
        # An error that is not a number is broken too.
        if not got[i] <= allowed:
            return (
                f"{name} {dtype}: the {what} error is {got[i]:.3g}; allowed is {allowed:.3g}, "
                f"from {factor} times the composition's {plain[i]:.3g} and errors of one unit, {unit:.3g}"
            )
    return None


def norms_by_switch(switches, **variables):
    """In a process of its own, the norms of bfloat16 results with oneDNN on (1) or off (0), one after the other."""
    script = """
import sys, torch
torch.manual_seed(0)
q = torch.randn(300, 64).bfloat16()
for switch in sys.argv[1]:
    torch.backends.mkldnn.set_flags(switch == "1")
    output, attn = torch.attn(q, q, q)
    grads = torch.ops.aten._attn_backward(q, None, q, q, q, attn, (True, True, True))
    print([float(t.double().norm()) for t in (output, *grads)])
"""
    variables = os.environ | {"TORCH_ATTN_KERNELS": "1"} | variables
    command = [sys.executable, "-c", script, switches]
    said = subprocess.check_output(command, env=variables, text=True)
    return [json.loads(line) for line in said.splitlines()]


def peak_memory(function):
    """Bytes that a call allocates at its worst moment, results included."""
    function()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = (event.nbytes() for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(changes))


class TestAttnKernels(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The kernels run for all that they serve, also where ATen's products are faster.
        # The operators read this once, in their first call.
        if "TORCH_ATTN_KERNELS" not in os.environ:
            os.environ["TORCH_ATTN_KERNELS"] = "1"
            cls.addClassCleanup(os.environ.pop, "TORCH_ATTN_KERNELS")
        # The first call of MKL's tanh is less exact where several threads make it
        # (pytorch#188792): one makes it here.
        for dtype in (torch.float32, torch.float64):
            torch.tanh(torch.ones(1, dtype=dtype))

    def setUp(self):
        super().setUp()
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())

    @contextlib.contextmanager
    def runs(self, forward=True, backward=True):
        """What is called in it runs the fused kernels, or none where it says False.

        Composed, an operator calls ATen's products.
        """
        with torch.autograd.profiler.profile() as profile:
            yield
        events = profile.function_events
        products = [e.cpu_parent for e in events if e.name in PRODUCTS]
        composed = {parent.name for parent in products if parent}
        expected = {"aten::attn": forward, "aten::_attn_backward": backward}
        called = expected.keys() & {event.name for event in events}
        self.assertTrue(called, "nothing was called")
        fused = {name: name not in composed for name in called}
        hint = "this file wants its own process, no TORCH_ATTN_KERNELS=0"
        self.assertEqual(fused, {name: expected[name] for name in called}, hint)

    @torch.compiler.disable  # Dynamo takes numpy's arrays for tensors
    def assert_rule(self, draws, run=kernels, wanted=NAMES):
        """The errors of `run` for some draws of its arguments obey the rule (see broken_rule)."""
        dtype = draws[0][0].dtype
        if draws[0][0].is_cuda:  # so that numbers that a kernel does not write are seen
            for size in 2**26, *[2**16] * 64:  # of both pools of the allocator
                torch.full((size,), float("nan"), device="cuda")
        with self.runs(*are_fused(*draws[0])):
            results = [run(*arguments) for arguments in draws]
        rows = []
        for arguments, result in zip(draws, results, strict=True):
            others = composition(*arguments), reference(*arguments)
            sizes = magnitudes(*map(precise, arguments))
            rows.append(zip(result, *others, sizes, strict=True))
        for name, values in zip(NAMES, zip(*rows, strict=True), strict=True):
            plain = values[0][1]
            if name in wanted and plain is not None:
                for got, _, exact, _ in values:
                    self.assertEqual((got.shape, got.dtype), (exact.shape, dtype), name)
                self.assertIsNone(broken_rule(name, dtype, values))

    def size(self, n, d, e, width=64):
        """A size, or on CUDA one that has kernels there."""
        return (n, d, e) if self.device_type == "cpu" else (n, width, width)

    def fused_inputs(self, n, d, e, dtype, device):
        """Inputs that kernels serve backward too: those of CUDA know no grad_attn."""
        inputs = make_inputs(*self.size(n, d, e), dtype, device)
        inputs = inputs if self.device_type == "cpu" else [*inputs[:4], None]
        if not all(are_fused(*inputs)):
            self.skipTest("no kernels on this device")
        return inputs

    @dtypes(*DTYPES)
    @parametrize("size", SIZES, name_fn=lambda size: "x".join(map(str, size)))
    def test_errors_against_composition(self, device, dtype, size):
        # Few numbers say little about an error: small inputs are drawn several times.
        numbers = size[0] * min(size)
        count = 1 + 500 // numbers if numbers else 1
        for scale, keep in itertools.product((0.1, 1.0, 10.0), ((0, 1), (0,), (1,))):
            draws = [make_inputs(*size, dtype, device, scale, x) for x in range(count)]
            for draw in draws:
                draw[3:] = [g if i in keep else None for i, g in enumerate(draw[3:])]
            self.assert_rule(draws)

    @dtypes(*DTYPES)
    def test_errors_of_many_rows(self, device, dtype):
        """A part that one thread has alone is wider than a panel."""
        d, e = (9, 6) if dtype == torch.float64 else (33, 70)
        inputs = make_inputs(*self.size(1090, d, e, 128), dtype, device)
        for count, grad_attn in itertools.product((1, 2), (inputs[4], None)):
            torch.set_num_threads(count)
            self.assert_rule([[*inputs[:4], grad_attn]])

    @dtypes(*DTYPES)
    @parametrize("case", range(len(BATCHES)))
    def test_errors_of_batches(self, device, dtype, case):
        """Each of them by one thread, by some, and by more than there is work for."""
        lead, m, n, d, e = BATCHES[case]
        inputs = make_inputs(n, d, e, dtype, device, m=m, lead=lead)
        # strides of its own, and a gradient of one matrix for all
        inputs[4] = mT(mT(inputs[4]).contiguous())
        expanded = inputs[4][:1].expand_as(inputs[4])
        for count in (1, 2, 3, 16):
            torch.set_num_threads(count)
            self.assert_rule([inputs])
            self.assert_rule([[*inputs[:3], None, expanded]])
            self.assert_rule([[*inputs[:4], None]])

    @onlyCPU
    @dtypes(*DTYPES)
    @parametrize("m,n", ((5, 70), (90, 40), (1, 300)))
    def test_strided_batches(self, device, dtype, m, n):
        """Heads of a layer, a cache and groups of queries where they lie: the bits are those of contiguous ones."""
        heads = make_inputs(n, 16, 24, dtype, m=m, lead=(2, 3))
        lies = {
            "heads": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
            "narrow": lambda t: F.pad(t, (8, 8, 0, 3), value=math.nan)[
                ..., : t.size(-2), 8:-8
            ],
            "expanded": lambda t: t[:, :1].expand_as(t),
            "moved": lambda t: t.movedim(0, 2).contiguous().movedim(2, 0),
        }
        if m == 1:  # of shared keys they are computed together
            del lies["expanded"]
        for count, name in itertools.product((1, 3), lies):
            torch.set_num_threads(count)
            views = [lies[name](t) for t in heads]
            with self.runs():
                expected = kernels(*(t.contiguous() for t in views))
                results = kernels(*views)
            self.assertEqual(results, expected, atol=0, rtol=0, msg=name)

    @onlyCPU
    @dtypes(*DTYPES)
    def test_few_rows_of_many_keys(self, device, dtype):
        """Threads share the keys, and whole vectors of keys are read where they lie."""
        for m, e, count in itertools.product((1, 3, 4, 7, 17), (20, 48), (1, 2, 5)):
            torch.set_num_threads(count)
            self.assert_rule([make_inputs(1500, 32, e, dtype, m=m)])

    @onlyCPU
    @dtypes(*DTYPES)
    def test_single_queries_that_share_keys(self, device, dtype):
        """Heads in groups are rows of one matrix."""
        for lead, e in itertools.product(((2, 5), (1, 40), (6,)), (20, 48)):
            q, *own, grad_output, grad_attn = make_inputs(
                300, 32, e, dtype, m=1, lead=lead
            )
            grads = grad_output, grad_attn
            k, v = (t.narrow(-3, 0, 1).expand_as(t) for t in own)
            for keys, values in ((k, own[1]), (own[0], v)):  # only one is shared
                self.assert_rule([[q, keys, values, *grads]])
            for queries in (q, q.movedim(-3, 0).contiguous().movedim(0, -3)):
                self.assert_rule([[queries, k, v, *grads]])
                shared = torch.attn(queries, k, v)
                single = torch.attn(queries, k.contiguous(), v.contiguous())
                for got, expected in zip(shared, single):
                    self.assertEqual(got.stride(), expected.stride())

    @onlyCPU
    @dtypes(*DTYPES)
    def test_rows_that_overlap(self, device, dtype):
        """Rows of a window that slides over a sequence are copied."""
        q, k, v, grad_output, _ = make_inputs(40, 6, 6, dtype)
        sliding = k.flatten().unfold(0, 6, 2)[:40]
        attn = torch.attn(q, sliding.contiguous(), v)[1]
        with self.runs():
            results = torch.attn(q, sliding, sliding)
            results += backward(grad_output, None, q, sliding, sliding, attn)
        sliding = sliding.contiguous()
        expected = torch.attn(q, sliding, sliding)
        expected += backward(grad_output, None, q, sliding, sliding, attn)
        self.assertEqual(results, expected, atol=0, rtol=0)

    @dtypes(*DTYPES)
    @dtypesIfCUDA(torch.float16, torch.bfloat16)
    def test_a_batch_is_its_matrices(self, device, dtype):
        """Bit for bit, where one thread takes whole matrices: those of a batch follow each other in its memory."""
        n, d, e = self.size(70, 20, 9)
        inputs = make_inputs(n, d, e, dtype, device, m=50, lead=(2, 2))
        inputs = inputs if self.device_type == "cpu" else [*inputs[:4], None]
        torch.set_num_threads(1)
        with self.runs(*are_fused(*inputs)):
            results = kernels(*inputs)
        for i in itertools.product(range(2), repeat=2):
            single = kernels(*(None if t is None else t[i] for t in inputs))
            self.assertEqual([t[i] for t in results], list(single), atol=0, rtol=0)

    @onlyCUDA
    @dtypes(torch.float16, torch.bfloat16)
    @parametrize("m,n", ((70, 131), (1, 1100), (200, 7), (128, 128)))
    def test_heads(self, device, dtype, m, n):
        """Where they lie, grouped queries too; a gradient that is not wanted is no more than left out."""

        def heads(t):
            return t.transpose(1, 2).contiguous().transpose(1, 2)

        inputs = make_inputs(n, 64, 64, dtype, device, m=m, lead=(2, 3))[:4]
        q, *keys, grad_output = map(heads, inputs)
        for k, v in (keys, [t[:, :1].expand_as(t) for t in keys]):
            self.assert_rule([[q, k, v, grad_output, None]])
            forward, whole = are_fused(q, k, v, grad_output)
            with self.runs(forward, whole):
                _, attn, *grads = kernels(q, k, v, grad_output)
            for mask in itertools.product((True, False), repeat=3):
                fused = whole and any(mask[:2]) and (mask[1] or not mask[2])
                # Where nothing is wanted there are no products either.
                with self.runs(forward, fused or not any(mask)):
                    some = backward(grad_output, None, q, k, v, attn, mask)
                if fused:
                    wanted = [g if want else None for g, want in zip(grads, mask)]
                    self.assertEqual(list(some), wanted, atol=0, rtol=0)

    @dtypes(*DTYPES)
    def test_no_matrix_and_no_row(self, device, dtype):
        for lead, m, n in (((0,), 3, 4), ((2, 0), 3, 4), ((), 0, 4), ((2,), 3, 0)):
            inputs = make_inputs(n, 5, 6, dtype, device, m=m, lead=lead)
            for got, exact in zip(kernels(*inputs), reference(*inputs), strict=True):
                self.assertEqual(precise(got), exact, atol=0, rtol=0)

    @onlyCPU
    @dtypes(torch.float32, torch.float64, torch.bfloat16)
    def test_sizes_that_no_memory_holds(self, device, dtype):
        """Every size that a tensor can say is an error, as it is for composition, by any number of threads."""
        empty = torch.empty(2**40, 0, dtype=dtype)
        one = torch.zeros(1, 1, dtype=dtype)
        sizes = [empty, empty.expand(3, -1, -1)]
        sizes += [one.expand(2**x, 1) for x in (40, 41, 60)]
        for count, q in itertools.product((1, 2, 3, 64), sizes):
            torch.set_num_threads(count)
            self.assertRaises(RuntimeError, torch.attn, q, q, q)
            self.assertRaises(RuntimeError, torch.matmul, q, mT(q))

    @dtypes(torch.float32)
    @dtypesIfCUDA(torch.float16, torch.bfloat16)
    @parametrize("n,d,e", ((500, 2000, 500), (500, 500, 2000), (2000, 64, 64)))
    def test_long_sums(self, device, dtype, n, d, e):
        """Of positive numbers, so that errors of one sign add up."""
        generator = torch.Generator().manual_seed(0)
        draw = [torch.rand(n, x, generator=generator) / x**0.5 for x in (d, d, e, e)]
        self.assert_rule([[x.to(device, dtype) for x in draw]])

    @dtypes(*DTYPES)
    def test_saturation(self, device, dtype):
        # k is the identity, so that scores are q, and so is v: grad_q is 1 - attn^2 for
        # grad_output of ones.
        n = 256 if self.device_type == "cpu" else 128
        q = torch.linspace(-100, 100, n * n, dtype=torch.float64, device=device)
        one, ones = torch.eye(n, device=device), torch.ones(n, n, device=device)
        arguments = [t.to(dtype).view(n, n) for t in (q, one, one, ones)]
        with self.runs(*are_fused(*arguments)):
            results = kernels(*arguments)
        composed = composition(*arguments)
        expected = reference(*arguments)
        distance = abs(precise(arguments[0]))
        for low in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20):
            inside = (distance >= low) & (distance < (low + 1 if low < 20 else 101))
            for i, factor in ((1, 2), (2, 3)):
                exact = expected[i][inside]
                got, plain = (precise(x[i])[inside] for x in (results, composed))
                error, allowed = abs(got - exact).max(), abs(plain - exact).max()
                # attn is right within two units in the last place, and so is its square.
                unit = torch.finfo(dtype).eps * abs(exact).max()
                self.assertLessEqual(error, max(factor * allowed, unit), NAMES[i])

    @dtypes(*DTYPES)
    @parametrize("n", (6, 7, 72))
    def test_infinity_and_nan_stay_in_their_rows(self, device, dtype, n):
        """Nothing beyond the last column, which an odd N pairs with it, may meet an infinity and become NaN."""
        n, d, e = self.size(n, 3, 4)
        q, k, v, grad_output, _ = make_inputs(n, d, e, dtype, device)
        q[1], q[1, 0] = 0, math.inf
        with self.runs(*are_fused(q, k, v)):
            output, attn = torch.attn(q, k.abs(), v)
        self.assertEqual(attn[1], torch.ones_like(attn[1]))
        self.assertTrue(output.isfinite().all())
        grad_output[2], grad_output[2, 0] = 0, math.inf
        with self.runs(*are_fused(q, k, v, grad_output)):
            grad_q = backward(grad_output, None, q, k.abs(), v.abs(), attn / 2)[0]
        self.assertEqual(grad_q[2], torch.full_like(grad_q[2], math.inf))
        others = torch.arange(n, device=device) != 2
        self.assertTrue(grad_q[others].isfinite().all())
        q[3, 2] = float("nan")
        with self.runs(*are_fused(q, k, v)):
            for result in torch.attn(q, k.abs(), v):
                rows = result.isnan().any(1).nonzero().flatten()
                self.assertEqual(rows.tolist(), [3])

    @onlyCPU
    @dtypes(*DTYPES)
    def test_denormals_and_zero_are_exact(self, device, dtype):
        tiny = torch.finfo(dtype).smallest_normal
        values = [0.0, -0.0, tiny, tiny / 2, tiny / 4, -tiny / 8, 3 * tiny, -tiny]
        q = torch.tensor(values, dtype=dtype).view(8, 1)
        with self.runs():
            attn = torch.attn(q, torch.ones_like(q), q)[1].tolist()
        expected = [q]
        if dtype == torch.bfloat16:  # an instruction may take them as zeros
            expected.append(torch.where(abs(q) < tiny, 0, q))
        self.assertIn(attn, [x.expand(8, 8).tolist() for x in expected])

    @onlyCPU
    def test_tanh_is_odd_and_within_two_and_a_half_ulp(self, device):
        """Every 4001st float32, and 200,000 around each place where the formula changes."""
        joints = 1.0, 0.34657359, 1.0397208, 9.01, 10.0, 2.0**-12, 1.17549435e-38
        bits = [torch.arange(0, 0x7F800000, 4001)]
        for middle in torch.tensor(joints).view(torch.int32).tolist():
            bits.append(torch.arange(max(0, middle - 100_000), middle + 100_000))
        values = torch.cat(bits).to(torch.int32).view(torch.float32)
        n = 512
        k = torch.eye(n)  # so that scores are q
        values = F.pad(values, (0, -values.numel() % n**2))
        for q in values.view(-1, n, n):
            with self.runs():
                attn = torch.attn(q, k, k[:, :1])[1]
            exact = torch.tanh(q.double())
            nearest = exact.float().abs()
            ulp = (torch.nextafter(nearest, torch.tensor(2.0)) - nearest).double()
            self.assertLessEqual(
                ((attn.double() - exact).abs() / ulp).max().item(), 2.5
            )
            self.assertLessEqual(attn.abs().max().item(), 1)
            self.assertEqual(torch.attn(-q, k, k[:, :1])[1], -attn, atol=0, rtol=0)

    @dtypes(*DTYPES)
    @dtypesIfCUDA(torch.float16, torch.bfloat16)
    def test_strides(self, device, dtype):
        """The bits are those for contiguous tensors, and nothing behind the end of one reaches a result."""
        layouts = {
            "transposed": lambda t: t.t().contiguous().t(),
            "wide": lambda t: t.new_zeros(2 * len(t), 3 * t.size(1))[::2, ::3].copy_(t),
            "moved": lambda t: t.new_zeros(t.numel() + 1)[1:].view(t.shape).copy_(t),
            "before NaNs": lambda t: F.pad(t, (0, 0, 0, 8), value=math.nan)[: len(t)],
        }
        # Most are odd, so that the last pair, vector and tile of rows are not whole.
        sizes = (150, 20, 70), (1, 7, 5), (33, 7, 5), (1155, 7, 5)
        for size, (name, layout) in itertools.product(sizes, layouts.items()):
            inputs = self.fused_inputs(*size, dtype, device)
            others = [None if t is None else layout(t) for t in inputs]
            with self.runs():
                expected = kernels(*inputs)
                results = kernels(*others)
                results += backward(*others[3:], *others[:3], layout(expected[1]))
            expected += expected[2:]
            self.assertEqual(results, expected, atol=0, rtol=0, msg=f"{name} {size}")

    @dtypes(*DTYPES)
    @dtypesIfCUDA(torch.float16, torch.bfloat16)
    def test_deterministic(self, device, dtype):
        inputs = self.fused_inputs(700, 64, 32, dtype, device)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with self.runs():
                first, *others = [kernels(*inputs) for _ in range(4)]
            self.assertEqual(others, [first] * 3, atol=0, rtol=0)

    @onlyCPU
    @dtypes(*DTYPES)
    def test_many_threads(self, device, dtype):
        """For every mask, by 16 threads, more than may have sums of grad_q of their own."""
        q, k, v, grad_output, grad_attn = make_inputs(301, 64, 50, dtype)
        torch.set_num_threads(16)
        expanded = grad_attn[:1].expand(301, -1)
        pairs = (grad_output, None), (None, grad_attn.t()), (grad_output, expanded)
        masks = itertools.product((True, False), repeat=3)
        for given, mask in itertools.product(pairs, masks):
            wanted = list(itertools.compress(NAMES[2:], mask))
            inputs = [(q, k, v, *given)]
            self.assert_rule(inputs, lambda *x: kernels(*x, mask=mask), wanted)

    @onlyCPU
    def test_onednn_switched_off_at_first(self, device):
        """The instruction set is probed once, and the switch is read on every call."""
        if not torch.cpu._is_avx512_bf16_supported():
            self.skipTest("oneDNN multiplies no bfloat16 on this processor")
        every = {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "ALL"}
        first, then = (norms_by_switch(order, **every) for order in ("10", "01"))
        self.assertEqual(first, then[::-1], rtol=0, atol=0)
        # Its products take numbers that are rounded once more.
        self.assertNotEqual(*first)

    @onlyCPU
    @parametrize("isa", ("AVX512_CORE", "AVX512_CORE_VNNI", "AVX2", "SSE41"))
    def test_onednn_without_products_of_bfloat16(self, device, isa):
        """No call fails where ATen asks oneDNN for a product that it does not have."""
        # oneDNN's products of float32 and those of the BLAS
        norms = norms_by_switch("10", ONEDNN_MAX_CPU_ISA=isa)
        self.assertEqual(*norms, rtol=2**-7, atol=0)

    @onlyCPU
    @dtypes(*DTYPES)
    def test_memory_by_threads(self, device, dtype):
        """Beside the results: attn's bytes and 2^20 a thread, four MiB, or 7 * 2^16 numbers a thread."""
        cases = ((), 1024, 1024), ((64,), 128, 128), ((16,), 512, 512), ((3,), 512, 700)
        cases = [*((*case, 64) for case in cases), ((), 16, 2**18, 8)]
        for lead, m, n, d in cases:
            tensors = make_inputs(n, d, d, dtype, m=m, lead=lead)
            qkv, given = tensors[:3], tensors[3:]
            with self.runs():
                attn = kernels(*tensors)[1]
            calls = (lambda: torch.attn(*qkv), lambda: backward(*given, *qkv, attn))
            for count, call in itertools.product((1, 2, 4, 16, 64), calls):
                torch.set_num_threads(count)
                extra = peak_memory(call) - sum(t.nbytes for t in call())
                scratch = count * 7 * 2**16 * max(4, dtype.itemsize)
                bound = max(attn.nbytes + count * 2**20, 2**22, scratch)
                self.assertLessEqual(extra, bound, f"{lead}, {count} threads")

    @onlyCPU
    @dtypes(torch.float32, torch.complex64)
    def test_memory_is_less_than_composition_takes(self, device, dtype):
        """By kernels or, for complex numbers always, by products."""
        inputs = [torch.randn(1024, 8, dtype=dtype).requires_grad_() for _ in range(3)]

        def peaks(function):
            value = function(*inputs)[0].abs().sum()
            options = {"retain_graph": True}
            yield peak_memory(lambda: function(*inputs))
            yield peak_memory(lambda: torch.autograd.grad(value, inputs, **options))

        for ours, theirs in zip(peaks(torch.attn), peaks(composition), strict=True):
            self.assertLess(ours, theirs)

    @largeTensorTest("10GB")  # backward, composed, takes one more of attn's size
    def test_more_than_int32_elements(self, device):
        n, d, e = self.size(46_400, 1, 1)
        q = torch.zeros(n, d, dtype=torch.bfloat16, device=device)
        q[:, 0] = torch.linspace(-1, 1, n)
        v, one = torch.ones_like(q), torch.zeros_like(q)
        one[:, 0] = 1  # so that grad_output @ v.T is of ones
        with self.runs(*are_fused(q, v, v, one)):
            output, attn = torch.attn(q, v, v)
            grad_q, grad_k, grad_v = backward(one, None, q, v, v, attn)
        self.assertGreater(attn.numel(), 2**31)
        self.assertEqual(attn[-1], attn[-1, :1].expand(n), atol=0, rtol=0)
        self.assertEqual(attn[:, -1], torch.tanh(q[:, 0]), atol=0.01, rtol=0)
        slope = 1 - attn[-1, 0].float() ** 2
        self.assertEqual(grad_q[-1].float(), (n * slope).expand(d), atol=0, rtol=0.05)
        # Sums of odd terms, up to one large: zero, but for one rounding in 2^18 of each.
        for grad in grad_k, grad_v:
            self.assertEqual(grad, torch.zeros_like(grad), atol=n * 2.0**-18, rtol=0)
        self.assertEqual(output[-1], output[-1, :1].expand(e), atol=0, rtol=0)

    @onlyCUDA
    @dtypes(torch.float16, torch.bfloat16)
    @parametrize("n", (104, 1504))
    def test_a_graph_replays_on_new_inputs(self, device, dtype, n):
        *leaves, grad, _ = make_inputs(n, 64, 64, dtype, device)
        leaves = [t.requires_grad_() for t in leaves]

        def step():
            output, attn = torch.attn(*leaves)
            grads = torch.autograd.grad(output, leaves, grad)
            return output.detach(), attn.detach(), *grads

        with self.runs(*are_fused(*leaves, grad)):
            step()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            for leaf in leaves:
                leaf.copy_(leaf.flip(0))
        graph.replay()
        self.assertEqual(captured, step(), atol=0, rtol=0)

    @onlyCUDA
    @dtypes(*DTYPES)
    def test_memory_of_cuda(self, device, dtype):
        """attn, and at most a quarter of it for sums of parts; composed, backward takes one more of its size."""
        q, k, v, grad, _ = make_inputs(4096, 64, 64, dtype, device)
        fused = are_fused(q, k, v, grad)

        def peak(function, *arguments):
            function(*arguments)  # cuBLAS takes its workspace in the first call
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = function(*arguments)
            taken = torch.cuda.max_memory_allocated() - before
            return result, taken / (4096 * 4096 * dtype.itemsize)

        with self.runs(*fused):
            (_, attn), forward = peak(torch.attn, q, k, v)
            _, back = peak(backward, grad, None, q, k, v, attn)
        self.assertLess(forward, 1.35)
        self.assertLess(back, 0.35 if fused[1] else 1.35)


instantiate_device_type_tests(TestAttnKernels, globals(), only_for=("cpu", "cuda"))

if __name__ == "__main__":
    run_tests()
