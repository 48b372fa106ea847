"""`pytest bench/gpu` tests attn on a GPU: numerics of every dtype and layout, derivatives, limits, streams, graphs."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.gpu import peak_memory
from bench.reference import composition

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
FUSED = DTYPES[:2]  # All others are composed, as all widths but 64 and 128 are.
REAL = DTYPES[:4]
SIZES = (1, 17, 63, 64, 65, 127, 1000, 4097)
WIDTHS = (1, 3), (40, 24), (64, 64), (64, 128), (256, 256), (300, 10), (128, 128)

sys.path.append(str(Path(__file__).parents[2] / "test"))
RULE: Any = importlib.import_module("test_attn_kernels")

if not torch.cuda.is_available():
    pytest.exit("bench/gpu: torch finds no GPU on this machine", returncode=1)
if not hasattr(torch, "attn"):
    pytest.exit(
        "bench/gpu: this torch has no attn: run `python -m fork run --cuda on -- pytest bench/gpu`", returncode=1
    )


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """The same numbers for every test, and errors of its kernels within it."""
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


def random(*shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    # tanh has poles at i pi / 2, so complex scores stay closer to zero.
    wide, scale = (torch.complex128, scale / 2) if dtype.is_complex else (torch.float64, scale)
    return (torch.randn(*shape, dtype=wide, device="cuda") * scale).to(dtype)


def inputs(n: int, d: int, e: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scale = max(d, 1) ** -0.25
    return random(n, d, dtype=dtype, scale=scale), random(n, d, dtype=dtype, scale=scale), random(n, e, dtype=dtype)


def poison() -> None:
    """Fills the allocator's free memory with NaN (in any dtype), so that tests see what a kernel did not write."""
    sizes = 2**29, *[2**22] * 64, *[2**14] * 64  # One size of each kind of block; large results come from the first.
    filled = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes]
    del filled


def largest(x: Any) -> float:
    """The largest absolute value of a tensor or array, 0 of an empty one."""
    return float(abs(x).max()) if math.prod(x.shape) else 0.0


def rule(what: str, name: str, result: Tensor, plain: Tensor, exact: Any, magnitude: Any) -> None:
    """The rule of errors, as test/test_attn_kernels.py states it for the CPU; complex numbers count as two."""
    numbers = [result.cpu(), plain.cpu()]
    exact = exact if isinstance(exact, np.ndarray) else exact.cpu().numpy()
    if result.is_complex():
        numbers = [torch.view_as_real(t.resolve_conj()) for t in numbers]
        exact, magnitude = np.stack([exact.real, exact.imag], -1), np.stack([magnitude] * 2, -1)
    broken = RULE.broken_rule(name, numbers[0].dtype, [(*numbers, exact, magnitude)])
    if broken:
        raise AssertionError(f"{what}: {broken}")


def magnitudes(tensors: Iterable[Tensor | None]) -> Any:
    """The sum of absolute products behind every result."""
    wide = (None if t is None else t.to(torch.complex128 if t.is_complex() else torch.float64) for t in tensors)
    return RULE.magnitudes(*(None if t is None else t.cpu().numpy() for t in wide))


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


def compare(tensors: tuple[Tensor, ...], grads: tuple[Tensor | None, Tensor | None], what: str = "attn") -> None:
    """Forward and gradients of attn against exact ones and against the composition of the same dtype."""

    def run(function: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor | None]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        results = function(*leaves)
        given = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None]
        gradients = torch.autograd.grad([r for r, _ in given], leaves, [g for _, g in given], allow_unused=True)
        return [*(r.detach() for r in results), *gradients]

    poison()
    results = run(torch.attn), run(composition), exact_results(tensors, grads), magnitudes((*tensors, *grads))
    for name, a, b, c, size in zip(RULE.NAMES, *results, strict=True):
        if c is None:
            if a is not None and largest(a) != 0:
                raise AssertionError(f"{what}: {name} should have no gradient")
            continue
        assert a is not None and b is not None, f"{what}: {name} is missing"
        rule(what, name, a, b, c, size)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numerics_of_every_size(dtype: torch.dtype, n: int) -> None:
    # long double is slow: large matrices of 64-bit numbers are narrow.
    d = 64 if n < 1000 or dtype.itemsize < (16 if dtype.is_complex else 8) else max(2, 8000 // n)
    compare(inputs(n, d, d, dtype), (random(n, d, dtype=dtype), None))


@pytest.mark.parametrize("d, e", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numerics_of_every_width(dtype: torch.dtype, d: int, e: int) -> None:
    n = 256 if d == e else 200
    grads = (random(n, e, dtype=dtype), random(n, n, dtype=dtype))
    compare(inputs(n, d, e, dtype), grads, "gradients of both outputs")
    compare(inputs(n, d, e, dtype), (grads[0], None), "gradient of output alone")


@pytest.mark.parametrize("layout", ["transposed", "expanded", "offset", "sliced"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_layout_of_inputs_gives_the_same_bits(dtype: torch.dtype, layout: str) -> None:
    n, d = 136, 64  # Nothing is padded, and every row of attn is whole 16 bytes: only the layout is unusual.
    q, k, v = inputs(n, d, d, dtype)
    views = {
        "transposed": (q.t().contiguous().t(), k, v.t().contiguous().t()),
        "expanded": (q[:1].expand(n, d), k, v[:, :1].expand(n, d)),
        "offset": (random(n * d + 1, dtype=dtype, scale=0.3)[1:].view(n, d), k, v),
        "sliced": (random(n, 2 * d, dtype=dtype, scale=0.3)[:, ::2], k, v),
    }[layout]
    plain = torch.attn(*(t.clone(memory_format=torch.contiguous_format) for t in views))
    torch.testing.assert_close(tuple(torch.attn(*views)), tuple(plain), **bits_of(dtype))


def bits_of(dtype: torch.dtype) -> dict[str, float]:
    """Tolerances: none for the kernels; elsewhere cuBLAS may choose another order of the sums."""
    return {"rtol": 0, "atol": 0} if dtype in FUSED else {}


@pytest.mark.parametrize("layout", ["transposed", "one number", "rows", "offset", "contiguous"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numerics_of_any_layout_of_grad_attn(dtype: torch.dtype, layout: str) -> None:
    n, d = 136, 64
    grad_attn = {
        "transposed": random(n, n, dtype=dtype).t(),
        "one number": random(1, dtype=dtype).expand(n, n),
        "rows": random(1, n, dtype=dtype).expand(n, n),
        "offset": random(n * n + 1, dtype=dtype)[1:].view(n, n),
        "contiguous": random(n, n, dtype=dtype),
    }[layout]
    tensors = inputs(n, d, d, dtype)
    compare(tensors, (None, grad_attn), "gradient of attn alone")
    compare(tensors, (random(n, d, dtype=dtype), grad_attn), "gradients of both outputs")


@pytest.mark.parametrize("n, d, e", [(0, 3, 4), (5, 0, 4), (5, 3, 0)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_inputs(dtype: torch.dtype, n: int, d: int, e: int) -> None:
    compare(inputs(n, d, e, dtype), (random(n, e, dtype=dtype), random(n, n, dtype=dtype)))


@pytest.mark.parametrize("wrong", range(3), ids="qkv")
def test_inputs_that_do_not_fit_are_refused_before_a_kernel_sees_them(wrong: int) -> None:
    tensors = inputs(20, 3, 4, torch.float32)
    attn, grad = torch.attn(*tensors).attn, random(20, 4, dtype=torch.float32)
    mixed = [t.cpu() if i == wrong else t for i, t in enumerate(tensors)]
    short = [t[:8] if i == wrong else t for i, t in enumerate(tensors)]
    with pytest.raises(RuntimeError, match="attn: expected q, k and v to be on the same device"):
        torch.attn(*mixed)
    with pytest.raises(RuntimeError, match="attn: expected q, k and v to have the same number of rows"):
        torch.attn(*short)
    with pytest.raises(RuntimeError, match="_attn_backward: expected"):
        torch.ops.aten._attn_backward(grad, None, *short, attn, [True] * 3)


@pytest.mark.parametrize("d", [16, 64, 128])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_infinity_and_nan_stay_in_their_rows(dtype: torch.dtype, d: int) -> None:
    q, k, v = inputs(70, d, d, dtype)
    q[3, 0] = float("inf")
    q[7, 2] = float("nan")
    output, attn = torch.attn(q, k, v)
    assert torch.equal(attn[3].abs(), torch.ones_like(attn[3]))
    assert attn.isnan().any(1).nonzero().flatten().tolist() == [7]
    assert output.isnan().any(1).nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_numerics_up_to_saturation(dtype: torch.dtype, scale: float) -> None:
    q, k, v = inputs(65, 64, 64, dtype)
    compare((q * scale, k, v), (random(65, 64, dtype=dtype), None))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_derivatives(dtype: torch.dtype) -> None:
    leaves = [t.requires_grad_() for t in inputs(5, 3, 4, dtype)]
    torch.autograd.gradcheck(torch.attn, leaves, check_forward_ad=True)
    torch.autograd.gradgradcheck(torch.attn, leaves)


def results(leaves: list[Tensor], grad_output: Tensor) -> list[Tensor]:
    """output, attn and the gradients of output."""
    output, attn = torch.attn(*leaves)
    return [output.detach(), attn.detach(), *torch.autograd.grad(output, leaves, grad_output)]


@pytest.mark.parametrize("dtype", FUSED, ids=str)
def test_ten_runs_give_the_same_bits(dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        leaves = [t.requires_grad_() for t in inputs(3000, 64, 64, dtype)]
        grad = random(3000, 64, dtype=dtype)
        first = results(leaves, grad)
        for _ in range(9):
            assert all(map(torch.equal, results(leaves, grad), first))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n", [46400, 50001])
def test_more_than_2_31_elements(n: int) -> None:
    leaves = [t.requires_grad_() for t in inputs(n, 64, 64, torch.bfloat16)]
    q, k, v = (t.detach().double() for t in leaves)
    grad_output = random(n, 64, dtype=torch.bfloat16)
    output, attn, *gradients = results(leaves, grad_output)
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
            assert (mine.double() - exact).abs().max().item() < 0.05 * scale, f"row {i} of {name}"
    del output, attn, gradients
    torch.cuda.empty_cache()


def test_a_stream_of_its_own_is_used_without_waiting() -> None:
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
    assert not stream.query(), "the stream was not used, or the launch waited for it"
    torch.cuda.current_stream().wait_stream(stream)
    assert all(map(torch.equal, result, expected))
    assert launched < 0.02, f"the launch took {launched:.3f} s"


@pytest.mark.parametrize("n", [100, 1500])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64], ids=str)
def test_a_graph_replays_on_new_inputs(dtype: torch.dtype, n: int) -> None:
    leaves = [t.requires_grad_() for t in inputs(n, 64, 64, dtype)]
    grad = random(n, 64, dtype=dtype)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        results(leaves, grad)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(leaves, grad)
    with torch.no_grad():
        for leaf, new in zip(leaves, inputs(n, 64, 64, dtype)):
            leaf.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, results(leaves, grad), **bits_of(dtype))


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_memory(dtype: torch.dtype) -> None:
    """Kernels take N^2 elements for attn and at most a quarter for partial sums; composed, backward takes N^2 once."""
    n = 4096
    leaves = [t.requires_grad_() for t in inputs(n, 64, 64, dtype)]
    grad = random(n, 64, dtype=dtype)
    output = torch.attn(*leaves).output
    forward = peak_memory(lambda: torch.attn(*leaves)) / (n * n * dtype.itemsize)
    backward = peak_memory(lambda: torch.autograd.grad(output, leaves, grad)) / (n * n * dtype.itemsize)
    print(f"forward {forward:.2f} N^2, backward {backward:.2f} N^2")
    # The allocator may hand out a block that is 1 MiB larger than asked for.
    assert forward <= 1.35 and backward <= (0.35 if dtype in FUSED else 1.35)


@pytest.mark.parametrize("d", [64, 32], ids=["kernels", "composed"])
def test_a_call_that_runs_out_of_memory_says_so_and_the_next_one_works(d: int) -> None:
    n = 16384  # attn has 512 MiB
    leaves = [t.requires_grad_() for t in inputs(n, d, d, torch.bfloat16)]
    grad = random(n, d, dtype=torch.bfloat16)
    expected = [t.clone() for t in results(leaves, grad)]
    output = torch.attn(*leaves).output

    def limited(call: Callable[[], object]) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
        try:
            with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
                call()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    limited(lambda: torch.attn(*leaves))
    if d == 32:  # The kernels' backward takes no memory of that size.
        limited(lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True))
    assert all(map(torch.equal, results(leaves, grad), expected))
