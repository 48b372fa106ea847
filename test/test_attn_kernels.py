# Owner(s): ["module: linear algebra"]
"""The CPU kernels of attn against higher precision: errors, special values, strides, masks, memory, determinism."""

import itertools
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np

import torch
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    IS_LINUX,
    parametrize,
    run_tests,
    subtest,
    TestCase,
)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NAMES = ("output", "attn", "grad_q", "grad_k", "grad_v")
# (N, D, E): below and beyond a vector, a register tile, a panel and a block, and the widths of the marks
SIZES = [
    (2, 3, 4),
    (17, 5, 33),
    (63, 16, 65),
    (64, 64, 64),
    (65, 1, 100),
    (129, 70, 90),
    (200, 128, 16),
    (300, 64, 64),
    (9, 200, 300),
]

# How releases name the kernels for no instruction set in particular
PLAIN_NAMES = ("DEFAULT", "NO AVX")
PLAIN = torch.backends.cpu.get_cpu_capability() in PLAIN_NAMES
WIDEST = torch.backends.cpu.get_cpu_capability() == "AVX512"


def make_inputs(n, d, e, dtype, scale=1.0, draw=0):
    """q (n, d), k (n, d), v (n, e), grad_output (n, e), grad_attn (n, n); scores have about the deviation `scale`."""
    generator = torch.Generator().manual_seed(((n * 211 + d) * 211 + e) * 211 + draw)
    shapes = ((n, d), (n, d), (n, e), (n, e), (n, n))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    tensors = [torch.randn(shape, generator=generator, dtype=wide) for shape in shapes]
    root = (scale / max(d, 1) ** 0.5) ** 0.5
    return [(t * root if i < 2 else t).to(dtype) for i, t in enumerate(tensors)]


def precise(t):
    """As an array of a type that is more exact: float64, and extended precision for float64 itself."""
    if t is None:
        return None
    array = t.double().numpy()
    return array.astype(np.longdouble) if t.dtype == torch.float64 else array


def reference(q, k, v, grad_output=None, grad_attn=None):
    """output, attn and the three gradients, as `precise` arrays."""
    q, k, v, grad_output, grad_attn = map(precise, (q, k, v, grad_output, grad_attn))
    attn = np.tanh(q @ k.T)
    grad = np.zeros_like(attn)
    if grad_output is not None:
        grad = grad + grad_output @ v.T
    if grad_attn is not None:
        grad = grad + grad_attn
    grad = grad * ((1 - attn) * (1 + attn))
    grad_v = None if grad_output is None else attn.T @ grad_output
    return attn @ v, attn, grad @ k, grad.T @ q, grad_v


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
    attn = rounded(torch.tanh(rounded(q @ k.t())))
    output = attn @ v
    grads = [grad_attn, None if grad_output is None else rounded(grad_output @ v.t())]
    grads = [g for g in grads if g is not None]
    results = [output, attn, None, None, None]
    if grads:
        scores = rounded(
            torch.ops.aten.tanh_backward(rounded(sum(grads[1:], grads[0])), attn)
        )
        results[2:4] = scores @ k, scores.t() @ q
    if grad_output is not None:
        results[4] = attn.t() @ grad_output
    return [None if t is None else t.to(dtype) for t in results]


def kernels(q, k, v, grad_output=None, grad_attn=None, mask=(True, True, True)):
    """The same by the operator and its backward."""
    output, attn = torch.attn(q, k, v)
    return output, attn, *backward(grad_output, grad_attn, q, k, v, attn, mask)


def backward(grad_output, grad_attn, q, k, v, attn, mask=(True, True, True)):
    return torch.ops.aten._attn_backward(grad_output, grad_attn, q, k, v, attn, mask)


def magnitudes(q, k, v, grad_output=None, grad_attn=None):
    """The sum of absolute products behind every element of `reference`, for any numbers: arrays or tensors."""
    attn, scores = abs(np.tanh(q @ k.T)), abs(q) @ abs(k).T
    slope = 1 - attn * attn
    grad = 0 if grad_output is None else abs(grad_output) @ abs(v).T
    grad = (grad if grad_attn is None else grad + abs(grad_attn)) * slope
    grad_v = None if grad_output is None else attn.T @ abs(grad_output)
    return attn @ abs(v), attn + scores * slope, grad @ abs(k), grad.T @ abs(q), grad_v


def statistics(values):
    """The root mean square and the largest of all the numbers in some arrays."""
    values = [x for x in values if x.size] or [np.zeros(1)]
    squares = sum(float((x * x).sum()) for x in values)
    mean = (squares / sum(x.size for x in values)) ** 0.5
    return mean, max(float(x.max()) for x in values)


def broken_rule(name, dtype, draws):
    """THE RULE of errors: None if they obey it, else what is wrong.

    draws: for each draw of the inputs (result, plain, exact, magnitude), where plain is the composition's result in the
    same dtype and magnitude is the sum of absolute products (`magnitudes`). Over all draws together, the root mean
    square and the largest error are at most 2 (output, attn) or 3 (gradients) times those of the composition. A few
    numbers may be right by luck, so neither bound is below that of one unit: the magnitude times the epsilon of the
    sums, float32's for 16 bits, or the exact number times the epsilon of the result.
    """
    factor = 2 if name in ("output", "attn") else 3
    epsilon = torch.finfo(dtype).eps
    sums = min(epsilon, torch.finfo(torch.float32).eps)
    errors, plains, units = [], [], []
    for result, plain, exact, magnitude in draws:
        errors.append(abs(precise(result) - exact))
        plains.append(abs(precise(plain) - exact))
        units.append(np.maximum(epsilon * abs(exact), sums * magnitude))
    for what, got, plain, unit in zip(
        ("root mean square", "largest"),
        *map(statistics, (errors, plains, units)),
        strict=True,
    ):
        allowed = max(factor * plain, unit)
        # An error that is not a number is broken too.
        if not got <= allowed:
            return (
                f"{name} {dtype}: the {what} error is {got:.3g}; allowed is {allowed:.3g}, "
                f"from {factor} times the composition's {plain:.3g} and one unit, {unit:.3g}"
            )
    return None


def all_floats_matrix(values, n):
    """Inputs whose scores are exactly `values` (at most n * n finite floats): k is the identity."""
    scores = torch.zeros(n * n, dtype=values.dtype)
    scores[: values.numel()] = values
    return scores.view(n, n), torch.eye(n, dtype=values.dtype)


def available_memory():
    """Bytes; 0 where it is not known."""
    known = Path("/proc/meminfo")
    lines = known.read_text().splitlines() if known.exists() else []
    return next(
        (
            int(line.split()[1]) * 1024
            for line in lines
            if line.startswith("MemAvailable")
        ),
        0,
    )


def operators(function, *arguments):
    """The names of all operators that a call runs."""
    with torch.autograd.profiler.profile() as profile:
        function(*arguments)
    return {event.name for event in profile.function_events}


class TestAttnKernels(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The kernels run for every size, also where ATen's products are faster. The operator reads this once.
        os.environ.setdefault("TORCH_ATTN_CPU_KERNELS", "1")
        for dtype, size in itertools.product(DTYPES, ((4, 2, 3), (70, 600, 600))):
            names = operators(kernels, *make_inputs(*size, dtype))
            if "aten::mm" in names or "aten::_attn_backward" not in names:
                raise AssertionError(
                    f"the kernels do not run for {dtype} and N, D, E = {size}: run this file in a process of its own, "
                    "without TORCH_ATTN_CPU_KERNELS=0"
                )
        # The first call of MKL's tanh is less exact where several threads make it (pytorch#188792): one makes it here.
        for dtype in (torch.float32, torch.float64):
            torch.tanh(torch.ones(1, dtype=dtype))

    def assert_rule(self, draws, dtype, run=kernels):
        """The errors of `run` for some draws of its arguments obey the rule (see broken_rule)."""
        by_name = {name: [] for name in NAMES}
        for arguments in draws:
            values = (
                run(*arguments),
                composition(*arguments),
                reference(*arguments),
                magnitudes(*map(precise, arguments)),
            )
            for name, got, plain, exact, size in zip(NAMES, *values, strict=True):
                if exact is None or got is None:
                    continue
                self.assertEqual(got.shape, exact.shape, msg=name)
                self.assertEqual(got.dtype, dtype, msg=name)
                by_name[name].append((got, plain, exact, size))
        for name, results in by_name.items():
            self.assertIsNone(broken_rule(name, dtype, results))

    @parametrize("dtype", DTYPES)
    @parametrize("size", [subtest(s, name="x".join(map(str, s))) for s in SIZES])
    def test_errors_against_composition(self, size, dtype):
        # Few numbers say little about an error: small inputs are drawn several times.
        count = 1 + (1000 if size[0] < 8 else 250) // (size[0] + 4)
        for scale, defined in itertools.product(
            (0.1, 1.0, 10.0), ((True, True), (True, False), (False, True))
        ):
            draws = []
            for draw in range(count):
                q, k, v, *grads = make_inputs(*size, dtype, scale, draw)
                draws.append(
                    (
                        q,
                        k,
                        v,
                        *(
                            g if keep else None
                            for g, keep in zip(grads, defined, strict=True)
                        ),
                    )
                )
            self.assert_rule(draws, dtype)

    @parametrize("dtype", DTYPES)
    def test_errors_of_many_rows(self, dtype):
        n = 602 if dtype == torch.float64 else 1090
        self.assert_rule([make_inputs(n, 33, 70, dtype)], dtype)

    @parametrize("d,e", ((1, 1), (2, 1), (1, 2), (2, 2), (1, 64), (64, 1)))
    @parametrize("dtype", DTYPES)
    def test_narrow(self, dtype, d, e):
        """One or two columns leave few sums to share the terms among, and each is long."""
        # Extended precision, which float64 is compared with, has no BLAS.
        many = 400 if dtype == torch.float64 else 1100
        for n, positive in itertools.product((65, many), (False, True)):
            count = 4 if n < 100 else 1
            draws = [make_inputs(n, d, e, dtype, 1.0, draw) for draw in range(count)]
            if positive:
                draws = [[abs(t) for t in draw] for draw in draws]
            self.assert_rule(draws, dtype)

    @parametrize("n,d,e", ((500, 2000, 500), (500, 500, 2000), (2000, 30, 30)))
    def test_long_sums(self, n, d, e):
        """Of positive numbers, so that errors of one sign add up."""
        generator = torch.Generator().manual_seed(0)

        def positive(*size):
            return torch.rand(size, generator=generator) / size[1] ** 0.5

        inputs = [positive(n, x) for x in (d, d, e, e)]
        self.assert_rule([inputs], torch.float32)

    @parametrize("dtype", DTYPES)
    def test_one_row(self, dtype):
        # One score is too few to compare errors by; the usual tolerances serve.
        for d, e in ((1, 1), (30, 40), (64, 1)):
            arguments = make_inputs(1, d, e, dtype)
            for got, wanted in zip(
                kernels(*arguments), composition(*arguments), strict=True
            ):
                self.assertEqual(
                    got,
                    wanted,
                    atol=4 * torch.finfo(dtype).eps,
                    rtol=8 * torch.finfo(dtype).eps,
                )

    @parametrize("dtype", DTYPES)
    def test_saturation(self, dtype):
        # k is the identity, so that scores are q, and grad_q is 1 - attn^2 for grad_attn of ones.
        n = 256
        q = torch.linspace(-100, 100, n * n, dtype=torch.float64).to(dtype).view(n, n)
        k, ones = torch.eye(n, dtype=dtype), torch.ones(n, n, dtype=dtype)
        arguments = (q, k, torch.zeros(n, 1, dtype=dtype), None, ones)
        results = kernels(*arguments)
        composed = composition(*arguments)
        expected = reference(*arguments)
        distance = q.double().abs().numpy()
        for low in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20):
            inside = (distance >= low) & (distance < (low + 1 if low < 20 else 101))
            for i, factor in ((1, 2), (2, 3)):
                exact = expected[i][inside]
                errors = [
                    float(np.abs(precise(x[i])[inside] - exact).max())
                    for x in (results, composed)
                ]
                # attn is right within two units in the last place, and so is its square.
                unit = torch.finfo(dtype).eps * float(np.abs(exact).max())
                self.assertLessEqual(
                    errors[0],
                    max(factor * errors[1], unit),
                    msg=f"{NAMES[i]} from {low}",
                )

    @parametrize("dtype", DTYPES)
    def test_infinity_and_nan(self, dtype):
        inf, nan = float("inf"), float("nan")
        q = torch.tensor([[inf], [-inf], [nan], [1.0], [0.0], [1e4]], dtype=dtype)
        k = torch.ones(6, 1, dtype=dtype)
        v = torch.tensor([[1.0, inf, nan]], dtype=dtype).expand(6, 3)
        output, attn = torch.attn(q, k, v)
        self.assertEqual(
            attn[:, 0].float(),
            torch.tensor([1.0, -1.0, nan, 0.76159416, 0.0, 1.0]),
            atol=4e-3,
            rtol=0,
        )
        self.assertEqual(output.float(), (attn @ v).float(), atol=0.05, rtol=0)
        grad_output = torch.ones(6, 3, dtype=dtype)
        for got, plain in zip(
            backward(grad_output, None, q, k, v, attn),
            composition(q, k, v, grad_output)[2:],
            strict=True,
        ):
            self.assertEqual(got.isnan(), plain.isnan())

    @parametrize("n", (6, 7))
    @parametrize("dtype", DTYPES)
    def test_infinity_stays_in_its_row(self, dtype, n):
        """Nothing beyond the last column, which an odd N pairs with it, may meet an infinity and become NaN."""
        inf = float("inf")
        q, k, v, grad_output, _ = make_inputs(n, 3, 4, dtype)
        q[1] = torch.tensor([inf, 0.0, 0.0])
        output, attn = torch.attn(q, k.abs(), v)
        self.assertEqual(attn[1], torch.ones(n, dtype=dtype))
        self.assertTrue(output.isfinite().all())
        grad_output[2] = torch.tensor([inf, 0.0, 0.0, 0.0])
        grad_q = backward(grad_output, None, q, k.abs(), v.abs(), attn / 2)[0]
        self.assertEqual(grad_q[2], torch.full((3,), inf, dtype=dtype))
        self.assertTrue(grad_q[torch.arange(n) != 2].isfinite().all())

    @parametrize("dtype", (torch.float32, torch.float64, torch.float16))
    def test_denormals_and_zero_are_exact(self, dtype):
        tiny = torch.finfo(dtype).smallest_normal
        q = torch.tensor(
            [0.0, tiny, tiny / 2, tiny / 4, -tiny / 8, 3 * tiny, -tiny], dtype=dtype
        ).view(7, 1)
        _, attn = torch.attn(q, torch.ones(7, 1, dtype=dtype), q)
        self.assertEqual(attn, q.expand(7, 7), atol=0, rtol=0)

    def test_denormals_of_bfloat16(self):
        """Exact, or zeros: an instruction that multiplies pairs of them takes them so."""
        tiny = torch.finfo(torch.bfloat16).smallest_normal
        q = torch.tensor([[tiny], [tiny / 2], [-tiny / 4]], dtype=torch.bfloat16)
        _, attn = torch.attn(q, torch.ones_like(q), q)
        flushed = torch.tensor([[tiny], [0.0], [0.0]], dtype=torch.bfloat16)
        self.assertIn(attn.tolist(), [x.expand(3, 3).tolist() for x in (q, flushed)])

    def check_float32(self, values):
        """values: finite float32. attn is within 2 ulp, odd and at most 1."""
        n = 512
        for chunk in values.split(n * n):
            q, k = all_floats_matrix(chunk, n)
            attn = torch.attn(q, k, k[:, :1])[1].flatten()[: chunk.numel()]
            exact = torch.tanh(chunk.double())
            nearest = exact.float().abs()
            ulp = (torch.nextafter(nearest, torch.tensor(2.0)) - nearest).double()
            self.assertLessEqual(((attn.double() - exact).abs() / ulp).max().item(), 2)
            self.assertLessEqual(attn.abs().max().item(), 1)
            mirrored = torch.attn(-q, k, k[:, :1])[1].flatten()[: chunk.numel()]
            self.assertEqual(mirrored, -attn, atol=0, rtol=0)

    def test_tanh_within_two_ulp(self):
        # Every 4001st float from 0 up to the largest
        bits = torch.arange(0, 0x7F800000, 4001, dtype=torch.int64).to(torch.int32)
        self.check_float32(bits.view(torch.float32))

    @parametrize(
        "joint", (1.0, 0.34657359, 1.0397208, 9.01, 10.0, 2.0**-12, 1.17549435e-38)
    )
    def test_tanh_at_joints(self, joint):
        # All of the 200,000 floats around a place where the formula changes
        middle = torch.tensor(joint).view(torch.int32).item()
        bits = torch.arange(
            max(0, middle - 100_000), middle + 100_000, dtype=torch.int64
        ).to(torch.int32)
        self.check_float32(bits.view(torch.float32))

    @parametrize("dtype", DTYPES)
    def test_strides(self, dtype):
        q, k, v, grad_output, grad_attn = make_inputs(150, 20, 70, dtype)
        expected = kernels(q, k, v, grad_output, grad_attn)

        def layouts(t):
            wide = torch.zeros(2 * t.size(0), 3 * t.size(1), dtype=t.dtype)
            wide[::2, ::3] = t
            return t.t().contiguous().t(), wide[::2, ::3], t.flip(0).flip(0)

        for arguments in zip(
            *map(layouts, (q, k, v, grad_output, grad_attn)), strict=True
        ):
            for got, wanted in zip(kernels(*arguments), expected, strict=True):
                self.assertEqual(got, wanted, atol=0, rtol=0)
        attn = expected[1]
        for got, wanted in zip(
            backward(grad_output, grad_attn, q, k, v, attn.t().contiguous().t()),
            expected[2:],
            strict=True,
        ):
            self.assertEqual(got, wanted, atol=0, rtol=0)

    @parametrize("dtype", DTYPES)
    @parametrize("n", (1, 33, 1155))
    def test_nothing_is_read_past_the_end(self, n, dtype):
        # Odd sizes, so that the last pair, vector and tile of rows are not whole.
        inputs = make_inputs(n, 7, 5, dtype)
        expected = kernels(*inputs)

        def before_nans(t):
            longer = torch.full((n + 8, t.size(1)), float("nan"), dtype=dtype)
            longer[:n] = t
            return longer[:n]

        got = kernels(*map(before_nans, inputs))
        q, k, v, grad_output, grad_attn = map(before_nans, inputs)
        again = backward(grad_output, grad_attn, q, k, v, before_nans(expected[1]))
        self.assertEqual(got, expected, atol=0, rtol=0)
        self.assertEqual(again, expected[2:], atol=0, rtol=0)

    @parametrize("dtype", DTYPES)
    def test_expanded_gradients(self, dtype):
        n = 150
        q, k, v, *_ = make_inputs(n, 20, 70, dtype)
        attn = torch.attn(q, k, v)[1]
        one = torch.ones((), dtype=dtype)
        expanded = backward(one.expand(n, 70), one.expand(n, n), q, k, v, attn)
        filled = backward(
            torch.ones(n, 70, dtype=dtype),
            torch.ones(n, n, dtype=dtype),
            q,
            k,
            v,
            attn,
        )
        for got, wanted in zip(expanded, filled, strict=True):
            self.assertEqual(got, wanted, atol=0, rtol=0)

    @parametrize("dtype", DTYPES)
    def test_every_mask(self, dtype):
        inputs = make_inputs(140, 20, 30, dtype)
        q, k, v, grad_output, grad_attn = inputs
        attn = torch.attn(q, k, v)[1]
        for given, mask in itertools.product(
            itertools.product((False, True), repeat=2), self.masks()
        ):
            chosen = [
                g if keep else None
                for g, keep in zip((grad_output, grad_attn), given, strict=True)
            ]
            wanted = [
                keep and (given[0] or (given[1] and i < 2))
                for i, keep in enumerate(mask)
            ]
            # Only what a wanted gradient needs is there.
            needed = (
                q if wanted[1] else None,
                k if wanted[0] else None,
                v if given[0] and (wanted[0] or wanted[1]) else None,
            )
            got = torch.ops.aten._attn_backward(*chosen, *needed, attn, mask)
            full = torch.ops.aten._attn_backward(
                *chosen, q, k, v, attn, (True, True, True)
            )
            for keep, some, all_ in zip(wanted, got, full, strict=True):
                self.assertEqual(some is not None and some.numel() > 0, keep)
                if keep:
                    self.assertEqual(some, all_, atol=0, rtol=0)

    @staticmethod
    def masks():
        return itertools.product((False, True), repeat=3)

    @parametrize("dtype", DTYPES)
    @parametrize(
        "size",
        [
            subtest(s, name="x".join(map(str, s)))
            for s in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0))
        ],
    )
    def test_empty(self, size, dtype):
        n, d, e = size
        q, k, v, grad_output, grad_attn = make_inputs(n, d, e, dtype)
        output, attn, grad_q, grad_k, grad_v = kernels(q, k, v, grad_output, grad_attn)
        composed = composition(q, k, v, grad_output, grad_attn)
        for got, wanted in zip(
            (output, attn, grad_q, grad_k, grad_v), composed, strict=True
        ):
            self.assertEqual(got, wanted, atol=0.02, rtol=0.02)

    @parametrize("dtype", DTYPES)
    def test_deterministic(self, dtype):
        inputs = make_inputs(700, 64, 32, dtype)
        threads = torch.get_num_threads()
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                first = kernels(*inputs)
                for _ in range(3):
                    for got, wanted in zip(kernels(*inputs), first, strict=True):
                        self.assertEqual(got, wanted, atol=0, rtol=0)
        finally:
            torch.set_num_threads(threads)

    @parametrize("dtype", DTYPES)
    def test_many_threads(self, dtype):
        """More threads than cores, and more than may have sums of grad_q of their own."""
        q, k, v, grad_output, grad_attn = make_inputs(301, 64, 50, dtype)
        attn = torch.attn(q, k, v)[1]
        threads = torch.get_num_threads()
        for given in (
            (grad_output, None),
            (None, grad_attn.t()),
            (grad_output, grad_attn),
        ):
            for mask in (True, True, True), (True, False, False), (False, True, True):

                def run(*arguments, attn=attn, mask=mask):
                    torch.set_num_threads(16)
                    try:
                        grads = backward(*arguments[3:], *arguments[:3], attn, mask)
                    finally:
                        torch.set_num_threads(threads)
                    wanted = zip(grads, mask, strict=True)
                    return None, None, *(g if keep else None for g, keep in wanted)

                self.assert_rule([(q, k, v, *given)], dtype, run)

    def test_inputs_stay_copy_on_write(self):
        tensors = [
            torch._lazy_clone(t) for t in make_inputs(100, 16, 16, torch.float32)
        ]
        attn = torch._lazy_clone(torch.attn(*tensors[:3])[1])
        backward(*tensors[3:], *tensors[:3], attn)
        for t in (*tensors, attn):
            self.assertTrue(torch._C._is_cow_tensor(t))

    @unittest.skipIf(not IS_LINUX, "reads /proc")
    @parametrize("dtype", (torch.float32, torch.bfloat16))
    def test_no_temporary_as_large_as_attn(self, dtype):
        # In a process of its own, whose peak is then that of these calls.
        script = f"""
import pathlib, torch
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
def run(n):
    q, k, v, g = (torch.full((n, 64), 0.01, dtype={dtype}) for _ in range(4))
    start = peak()
    output, attn = torch.attn(q, k, v)
    forward = peak()
    one = torch.ones((), dtype={dtype}).expand(n, n)
    grads = torch.ops.aten._attn_backward(g, one, q, k, v, attn, (True, True, True))
    return forward - start, peak() - forward
run(256)
print(*run(4096))
"""
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        forward, back = map(int, run.stdout.split())
        whole = 4096 * 4096 * dtype.itemsize
        self.assertGreater(forward, 0.9 * whole)
        self.assertLess(forward, 1.1 * whole + 2**21)
        self.assertLess(back, 0.1 * whole + 2**21)

    @unittest.skipIf(available_memory() < 6 * 2**30, "needs 6 GiB of memory")
    def test_more_than_int32_elements(self):
        n = 46_400
        q = torch.linspace(-1, 1, n).to(torch.bfloat16).view(n, 1)
        v = torch.ones(n, 1, dtype=torch.bfloat16)
        output, attn = torch.attn(q, v, v)
        self.assertGreater(attn.numel(), 2**31)
        self.assertEqual(attn[-1], attn[-1, :1].expand(n), atol=0, rtol=0)
        self.assertEqual(attn[:, -1], torch.tanh(q[:, 0]), atol=0.01, rtol=0)
        grad_q, grad_k, grad_v = backward(None, v.expand(n, n), q, v, v, attn)
        self.assertEqual(
            grad_q[-1].float(), n * (1 - attn[-1, :1].float() ** 2), atol=0, rtol=0.05
        )
        self.assertEqual(grad_k[-1], grad_k[0], atol=0, rtol=0)

    def run_restricted(self, environment, names, least, setup="pass"):
        """Tests of this file whose names hold one of `names`, in a process of its own; at least so many must run."""
        program = (
            f"import runpy, sys, torch; {setup}; sys.argv = sys.argv[1:]; "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        chosen = [word for name in names.split() for word in ("-k", name)]
        # Beside another process, threads that wait must not spin.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **environment}
        # there run_tests writes a report, for which a bare machine lacks the package
        environment.pop("CI", None)
        run = subprocess.run(
            [sys.executable, "-c", program, __file__, *chosen],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(run.returncode, 0, msg=run.stderr[-4000:])
        ran = re.search(r"^Ran (\d+) tests", run.stderr, re.MULTILINE)
        self.assertGreaterEqual(int(ran[1]), least)

    @unittest.skipIf(PLAIN, "this processor has the plain kernels only")
    def test_plain_kernels(self):
        """The kernels for processors without AVX2 pass the same tests of values."""
        self.run_restricted(
            {"ATEN_CPU_CAPABILITY": "default"},
            f"{self.PRODUCTS} one_row saturation infinity two_ulp strides mask empty",
            60,
            f"assert torch.backends.cpu.get_cpu_capability() in {PLAIN_NAMES}",
        )

    @unittest.skipIf(not WIDEST, "this processor has no kernels with AVX-512")
    def test_avx2_kernels(self):
        self.run_restricted(
            {"ATEN_CPU_CAPABILITY": "avx2"},
            f"{self.PRODUCTS} one_row saturation infinity two_ulp strides mask empty",
            60,
            "assert torch.backends.cpu.get_cpu_capability() == 'AVX2'",
        )

    @unittest.skipIf(not WIDEST, "oneDNN has no other products on this processor")
    @parametrize("level", ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16"))
    def test_lesser_instructions_of_onednn(self, level):
        """Whichever products oneDNN has: a level beyond those of the processor takes nothing away."""
        self.run_restricted({"ONEDNN_MAX_CPU_ISA": level}, self.PRODUCTS, 20)

    def test_without_onednn(self):
        self.run_restricted(
            {}, self.PRODUCTS, 20, "torch.backends.mkldnn.set_flags(False)"
        )

    # The tests in which products matter: tails of every kind, few columns, pairs, and sums over threads
    PRODUCTS = (
        "17x5x33 63x16x65 129x70x90 narrow_d_2_e_1 infinity_stays past_the_end_n_33"
    )

    def test_rule_finds_faults(self):
        """Planted in the composition, each of these breaks the rule of errors."""

        def composed(draw, slope=lambda a: (1 - a) * (1 + a), last=None, chain=False):
            q, k, v, grad_output, grad_attn = draw
            attn = torch.tanh(q @ k.t())
            grad = (grad_output @ v.t() + grad_attn) * slope(attn)
            if chain:
                output = torch.zeros_like(v)
                for i in range(attn.size(1)):
                    output += attn[:, i : i + 1] * v[i]
            else:
                output = attn[:, :last] @ v[:last]
            return output, attn, grad[:, :last] @ k[:last], grad.t() @ q

        def forgotten_grad_attn(draw):
            return composed((*draw[:4], torch.zeros_like(draw[4])))

        faults = {
            "none": composed,
            "1 + attn": lambda draw: composed(draw, slope=lambda a: 1 - a),
            "the last column": lambda draw: composed(draw, last=-1),
            "grad_attn": forgotten_grad_attn,
        }
        draws = [make_inputs(65, 20, 30, torch.float32, 1.0, i) for i in range(4)]
        for fault, run in faults.items():
            self.assertEqual(self.rule_is_broken(draws, run), fault != "none", fault)

        def chained(draw):
            return composed(draw, chain=True)

        # A BLAS may err as much as one chain does, so the chain is measured by the unit alone.
        long = [[abs(t) for t in make_inputs(2000, 3, 8, torch.float32)]]
        self.assertFalse(self.rule_is_broken(long, composed))
        self.assertTrue(self.rule_is_broken(long, chained, plain=reference))

    def rule_is_broken(self, draws, run, plain=composition):
        """Whether any result of `run` breaks the rule, but for grad_v, which it leaves out."""
        results = []
        for draw in draws:
            like = [
                torch.from_numpy(x) if isinstance(x, np.ndarray) else x
                for x in plain(*draw)
            ]
            sizes = magnitudes(*map(precise, draw))
            results.append((run(draw), like, reference(*draw), sizes))
        return any(
            broken_rule(name, torch.float32, [[part[i] for part in r] for r in results])
            for i, name in enumerate(NAMES[:4])
        )


instantiate_parametrized_tests(TestAttnKernels)

if __name__ == "__main__":
    run_tests()
