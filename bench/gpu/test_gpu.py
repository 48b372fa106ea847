"""Checks attn on a GPU: the rule of the numerics for every dtype and layout, derivatives, limits, streams, graphs."""

from __future__ import annotations

import itertools
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
CHECKS: list[Callable[[], None]] = []


def check_of(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a check; its docstring is the line of the report."""
    CHECKS.append(function)
    return function


def random(*shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    # tanh has poles at i pi / 2, so complex scores are kept nearer to zero.
    wide, scale = (torch.complex128, scale / 2) if dtype.is_complex else (torch.float64, scale)
    return (torch.randn(*shape, dtype=wide, device="cuda") * scale).to(dtype)


def inputs(n: int, d: int, e: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scale = max(d, 1) ** -0.25
    return random(n, d, dtype=dtype, scale=scale), random(n, d, dtype=dtype, scale=scale), random(n, e, dtype=dtype)


def compose(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    attn = torch.tanh(q @ k.t())
    return attn @ v, attn


def poison() -> None:
    """Leaves NaN, in any dtype, in the allocator's free memory, so that what a kernel does not write shows."""
    sizes = 2**29, *[2**22] * 64, *[2**14] * 64  # the allocator's kinds of blocks; large results are cut from the first
    filled = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes]
    del filled


def largest(x: Any) -> float:
    """The largest absolute value of a tensor or array, 0 of an empty one."""
    return float(abs(x).max()) if math.prod(x.shape) else 0.0


def rule(what: str, result: Tensor, plain: Tensor, exact: Any, factor: float) -> None:
    """Error against `exact` at most `factor` times the plain composition's, or one rounding of the sums."""

    def error(t: Tensor) -> float:
        return largest((t.cpu().numpy() if isinstance(exact, np.ndarray) else t.to(exact.dtype)) - exact)

    allowed = max(factor * error(plain), torch.finfo(result.dtype).eps * max(1.0, largest(exact)))
    if not error(result) <= allowed:
        raise AssertionError(f"{what}: error {error(result):.3g}, allowed {allowed:.3g}")


def exact_results(tensors: tuple[Tensor, ...], grads: tuple[Tensor | None, Tensor | None]) -> list[Any]:
    """output, attn and the gradients by their formulas, in float64 or, for inputs of 64 bits, in long double."""
    if tensors[0].real.dtype == torch.float64:

        def wide(t: Tensor | None) -> Any:
            return None if t is None else t.cpu().numpy().astype(np.clongdouble if t.is_complex() else np.longdouble)

        tanh: Any = np.tanh
    else:

        def wide(t: Tensor | None) -> Any:
            return None if t is None else t.to(torch.complex128 if t.is_complex() else torch.float64)

        tanh = torch.tanh
    q, k, v, grad_output, grad_attn = (wide(t) for t in (*tensors, *grads))
    attn = tanh(q @ k.T)
    x = 0 if grad_output is None else grad_output @ v.conj().T
    x = (x if grad_attn is None else x + grad_attn) * (1 - attn**2).conj()
    grad_v = None if grad_output is None else attn.conj().T @ grad_output
    return [attn @ v, attn, x @ k.conj(), x.T @ q.conj(), grad_v]


def compare(tensors: tuple[Tensor, ...], grads: tuple[Tensor | None, Tensor | None], what: str) -> None:
    """Forward and gradients of attn against exact ones and against the composition of the same dtype."""

    def run(function: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor | None]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        results = function(*leaves)
        given = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None]
        gradients = torch.autograd.grad([r for r, _ in given], leaves, [g for _, g in given], allow_unused=True)
        return [*(r.detach() for r in results), *gradients]

    poison()
    mine, plain, exact = run(torch.attn), run(compose), exact_results(tensors, grads)
    for name, a, b, c in zip(("output", "attn", "grad_q", "grad_k", "grad_v"), mine, plain, exact, strict=True):
        if c is None:
            if a is not None and largest(a) != 0:
                raise AssertionError(f"{what}: {name} should have no gradient")
            continue
        assert a is not None and b is not None, f"{what}: {name} is missing"
        rule(f"{what}, {name}", a, b, c, 2 if name in ("output", "attn") else 3)


@check_of
def sizes() -> None:
    """the rule at N = 1, 17, 63, 64, 65, 127, 1000, 4097, every dtype"""
    for dtype, n in itertools.product(DTYPES, (1, 17, 63, 64, 65, 127, 1000, 4097)):
        # long double is slow: large matrices of 64-bit numbers are narrow.
        d = 64 if n < 1000 or dtype.itemsize < (16 if dtype.is_complex else 8) else max(2, 8000 // n)
        compare(inputs(n, d, d, dtype), (random(n, d, dtype=dtype), None), f"{dtype} N={n}")


@check_of
def widths() -> None:
    """the rule at D != E from 1 to 300 and at D = E = 128, every dtype"""
    widths = (1, 3), (40, 24), (64, 128), (200, 72), (256, 256), (300, 10), (128, 128)
    for dtype, (d, e) in itertools.product(DTYPES, widths):
        n = 256 if d == e else 200
        grads = (random(n, e, dtype=dtype), random(n, n, dtype=dtype))
        compare(inputs(n, d, e, dtype), grads, f"{dtype} D={d} E={e}")
        compare(inputs(n, d, e, dtype), (grads[0], None), f"{dtype} D={d} E={e}, of output alone")


@check_of
def tensor_float_32() -> None:
    """the rule with TF32 allowed, against a composition that uses it too, and that it is used"""
    q, k, v = inputs(1000, 64, 64, torch.float32)
    full = torch.attn(q, k, v).output
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        compare((q, k, v), (random(1000, 64, dtype=torch.float32), None), "TF32")
        if torch.equal(full, torch.attn(q, k, v).output):
            raise AssertionError("TF32 was allowed and not used")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.testing.assert_close(torch.attn(q, k, v).output, full, rtol=0, atol=0)


@check_of
def layouts() -> None:
    """transposed, expanded, offset inputs, and grad_attn with any strides, every dtype"""
    n, d = 136, 64  # Nothing is padded, and every row of attn is whole 16 bytes: all that is odd is the layout.
    for dtype in DTYPES:
        q, k, v = inputs(n, d, d, dtype)
        offset = random(n * d + 1, dtype=dtype, scale=0.3)[1:].view(n, d)
        variants = {
            "transposed": (q.t().contiguous().t(), k, v.t().contiguous().t()),
            "expanded": (q[:1].expand(n, d), k, v[:, :1].expand(n, d)),
            "offset": (offset, k, v),
            "sliced": (random(n, 2 * d, dtype=dtype, scale=0.3)[:, ::2], k, v),
        }
        for name, views in variants.items():
            output, attn = torch.attn(*views)
            plain = torch.attn(*(t.clone(memory_format=torch.contiguous_format) for t in views))
            # cuBLAS, which complex numbers take, may sum another layout in another order.
            exact = {} if dtype.is_complex else {"rtol": 0, "atol": 0}
            torch.testing.assert_close((output, attn), tuple(plain), **exact, msg=f"{dtype} {name}")
        one = random(1, dtype=dtype)
        for name, grad_attn in {
            "transposed": random(n, n, dtype=dtype).t(),
            "one number": one.expand(n, n),
            "rows": random(1, n, dtype=dtype).expand(n, n),
            "offset": random(n * n + 1, dtype=dtype)[1:].view(n, n),
            "none of output": random(n, n, dtype=dtype),
        }.items():
            compare((q, k, v), (None, grad_attn), f"{dtype} grad_attn {name}")
            compare((q, k, v), (random(n, d, dtype=dtype), grad_attn), f"{dtype} both, grad_attn {name}")


@check_of
def empty() -> None:
    """N, D or E = 0"""
    for dtype, (n, d, e) in itertools.product(DTYPES, ((0, 3, 4), (5, 0, 4), (5, 3, 0))):
        compare(inputs(n, d, e, dtype), (random(n, e, dtype=dtype), random(n, n, dtype=dtype)), f"{dtype} {n, d, e}")


@check_of
def messages() -> None:
    """inputs that do not fit are refused before a kernel sees them, in the operator's own words"""
    tensors = inputs(20, 3, 4, torch.float32)
    attn, grad = torch.attn(*tensors).attn, random(20, 4, dtype=torch.float32)
    for i in range(3):
        mixed = [t.cpu() if i == j else t for j, t in enumerate(tensors)]
        short = [t[:8] if i == j else t for j, t in enumerate(tensors)]
        for call, message in (
            (lambda given=mixed: torch.attn(*given), "attn: expected q, k and v to be on the same device"),
            (lambda given=short: torch.attn(*given), "attn: expected q, k and v to have the same number of rows"),
            (
                lambda given=short: torch.ops.aten._attn_backward(grad, None, *given, attn, [True] * 3),
                "_attn_backward: expected",
            ),
        ):
            try:
                call()
            except RuntimeError as error:
                assert message in str(error), str(error)
            else:
                raise AssertionError(f"not refused: {message}")


@check_of
def special_values() -> None:
    """infinities, NaN, zero and saturation stay where they belong"""
    for dtype in DTYPES[:4]:
        q, k, v = inputs(70, 16, 16, dtype)
        q[3, 0] = float("inf")
        q[7, 2] = float("nan")
        output, attn = torch.attn(q, k, v)
        assert torch.equal(attn[3].abs(), torch.ones_like(attn[3])), f"{dtype}: tanh(inf)"
        assert attn.isnan().any(1).nonzero().flatten().tolist() == [7], f"{dtype}: NaN left its row"
        assert output.isnan().any(1).nonzero().flatten().tolist() == [7], f"{dtype}: NaN left its row"
        for scale in (1e-3, 1.0, 10.0, 100.0):
            q, k, v = inputs(65, 32, 32, dtype)
            compare((q * scale, k, v), (random(65, 32, dtype=dtype), None), f"{dtype} scale {scale}")


@check_of
def derivatives() -> None:
    """gradcheck and gradgradcheck in float64 and complex128"""
    for dtype in (torch.float64, torch.complex128):
        leaves = [t.requires_grad_() for t in inputs(5, 3, 4, dtype)]
        torch.autograd.gradcheck(torch.attn, leaves, check_forward_ad=True)
        torch.autograd.gradgradcheck(torch.attn, leaves)


@check_of
def same_every_time() -> None:
    """bitwise equal results in ten runs, also under use_deterministic_algorithms"""
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in DTYPES[:4]:
            leaves = [t.requires_grad_() for t in inputs(3000, 64, 64, dtype)]
            grad = random(3000, 64, dtype=dtype)

            def run(leaves: list[Tensor] = leaves, grad: Tensor = grad) -> list[Tensor]:
                output, attn = torch.attn(*leaves)
                return [output.detach(), attn.detach(), *torch.autograd.grad(output, leaves, grad)]

            first = run()
            for _ in range(9):
                assert all(map(torch.equal, run(), first)), f"{dtype} differs from run to run"
    finally:
        torch.use_deterministic_algorithms(False)


@check_of
def beyond_2_31() -> None:
    """N^2 > 2^31: rows of attn and of every gradient, bfloat16 and an odd N too"""
    for n in (46400, 50001):
        leaves = [t.requires_grad_() for t in inputs(n, 64, 64, torch.bfloat16)]
        q, k, v = (t.detach().double() for t in leaves)
        grad_output = random(n, 64, dtype=torch.bfloat16)
        output, attn = torch.attn(*leaves)
        gradients = torch.autograd.grad(output, leaves, grad_output)
        g = grad_output.double()
        for i in (0, 1, n // 2, n - 2, n - 1):
            row = torch.tanh(q[i] @ k.t())
            x = (g[i] @ v.t()) * (1 - row**2)
            column = torch.tanh(q @ k[i])
            y = (g @ v[i]) * (1 - column**2)
            for name, mine, exact, scale in (
                ("attn", attn[i], row, 1.0),
                ("output", output[i], row @ v, n**0.5),
                ("grad_q", gradients[0][i], x @ k, n**0.5),
                ("grad_k", gradients[1][i], y @ q, n**0.5),
                ("grad_v", gradients[2][i], column @ g, n**0.5),
            ):
                # Far above bfloat16's rounding and far below what a wrong index gives.
                error = (mine.double() - exact).abs().max().item()
                if not error < 0.05 * scale:
                    raise AssertionError(f"N={n}: row {i} of {name} is off by {error:.3g}")
        del output, attn, gradients
        torch.cuda.empty_cache()


@check_of
def streams() -> None:
    """on a stream of its own, without waiting for the device"""
    leaves = [t.requires_grad_() for t in inputs(2000, 64, 64, torch.float16)]
    expected = torch.attn(*leaves)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.attn(*leaves)  # so that the allocator has memory for this stream
        torch.cuda._sleep(100_000_000)
        begin = time.perf_counter()
        result = torch.attn(*leaves)
        launched = time.perf_counter() - begin
    if stream.query():
        raise AssertionError("the stream was not used, or the launch waited for it")
    torch.cuda.current_stream().wait_stream(stream)
    assert all(map(torch.equal, result, expected))
    assert launched < 0.02, f"the launch took {launched:.3f} s"


@check_of
def graphs() -> None:
    """forward and backward captured in a CUDA graph, replayed on new inputs"""
    for dtype, n in itertools.product((torch.bfloat16, torch.float32, torch.complex64), (100, 1500)):
        leaves = [t.requires_grad_() for t in inputs(n, 40, 64, dtype)]
        grad = random(n, 64, dtype=dtype)

        def run(leaves: list[Tensor] = leaves, grad: Tensor = grad) -> list[Tensor]:
            output, attn = torch.attn(*leaves)
            return [output, attn, *torch.autograd.grad(output, leaves, grad)]

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        with torch.no_grad():
            for leaf, new in zip(leaves, inputs(n, 40, 64, dtype), strict=True):
                leaf.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        # cuBLAS, which complex numbers take, may choose another order in a graph.
        exact = {} if dtype.is_complex else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(captured, run(), **exact, msg=f"{dtype} N={n}: a replay differs")


@check_of
def memory() -> None:
    """at most N^2 elements and a quarter forward, a quarter backward (the parts that are summed)"""
    for dtype in DTYPES[:4]:
        n = 4096
        leaves = [t.requires_grad_() for t in inputs(n, 64, 64, dtype)]
        grad = random(n, 64, dtype=dtype)
        square = n * n * dtype.itemsize

        def peak(function: Callable[[], object]) -> tuple[object, float]:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            result = function()
            return result, (torch.cuda.max_memory_allocated() - before) / square  # noqa: B023

        result, forward = peak(lambda: torch.attn(*leaves))  # noqa: B023
        _, backward = peak(lambda: torch.autograd.grad(result.output, leaves, grad))  # type: ignore[attr-defined]  # noqa: B023
        print(f"    {dtype}: forward {forward:.2f} N^2, backward {backward:.2f} N^2")
        # The allocator may hand out a block that is 1 MiB larger than asked for.
        assert forward <= 1.35 and backward <= 0.35, f"{dtype}: {forward:.2f} and {backward:.2f} N^2"


def outcomes() -> Iterator[bool]:
    for check in CHECKS:
        torch.manual_seed(0)
        begin = time.perf_counter()
        try:
            check()
            torch.cuda.synchronize()
            status = "pass"
        except Exception as error:
            status = "FAIL"
            traceback.print_exc(file=sys.stderr, limit=-3)
            print(f"    {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        print(f"{status} {check.__name__}: {check.__doc__} ({time.perf_counter() - begin:.1f} s)", flush=True)
        yield status == "pass"


def main() -> int:
    if not torch.cuda.is_available():
        print("gpu_check: torch finds no GPU on this machine", file=sys.stderr)
        return 1
    if not hasattr(torch, "attn"):
        print("gpu_check: this torch has no attn: run it as `python -m fork run --cuda on -- ...`", file=sys.stderr)
        return 1
    return 0 if all(list(outcomes())) else 1


if __name__ == "__main__":
    sys.exit(main())
