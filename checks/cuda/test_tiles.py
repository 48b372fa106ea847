"""attn's CUDA kernels and the host code that launches them, compiled for the CPU from their own source: the kernels run
in an emulator of a thread block. And the rule that says which sizes they take."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

from checks import ROOT

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [pytest.mark.xdist_group("cuda_tiles"), pytest.mark.long]
HERE = Path(__file__).parent
sys.path.append(str(ROOT / "test"))
# The reference, the plain composition and the rule of errors are those of the operator's own test.
KERNELS: Any = importlib.import_module("test_attn_kernels")
TILES: Any = torch.ops.attn_tiles

DTYPES = [torch.float16, torch.bfloat16]
WIDTHS = [64, 128]
ALL = (True, True, True)
MASKS = [ALL, (True, True, False), (False, True, True), (True, False, False), (False, True, False)]
# What stands for headers of CUDA and of PyTorch around it; these come first on the compiler's path.
STUBS = {
    "ATen/native/cuda/AttnIntrinsics.cuh": "emulator.h",
    "ATen/cuda/CUDAContext.h": "runtime.h",
    "c10/cuda/CUDAException.h": "runtime.h",
}
Layout = Callable[[Tensor], Tensor]


@pytest.fixture(scope="session", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """tiles.cpp as operators: attn_tiles."""
    folder = tmp_path_factory.mktemp("tiles")
    for header, ours in STUBS.items():
        (folder / header).parent.mkdir(parents=True, exist_ok=True)
        (folder / header).write_text(f'#include "{ours}"\n')
    cpp_extension.load(
        "attn_tiles",
        str(HERE / "tiles.cpp"),
        extra_cflags=["-std=c++20", "-O2", "-w"],
        extra_include_paths=[str(path) for path in (folder, ROOT / "aten/src", HERE)],
        build_directory=str(folder),
        is_python_module=False,
    )


def forward(
    *qkv: Tensor, device: int = 1, seed: int = 0, early: bool = False, only: Iterable[int] = ()
) -> tuple[Tensor, Tensor, int]:
    """output, attn and the number of launches, on a device of so many multiprocessors; `only` these blocks run."""
    output, attn, launches = TILES.forward(*qkv, device, seed, early, only)
    return output, attn, launches


def backward(
    *operands: Tensor,
    mask: tuple[bool, ...] = ALL,
    device: int = 1,
    seed: int = 0,
    early: bool = False,
    only: Iterable[int] = (),
) -> tuple[Any, ...]:
    """The three gradients and the number of launches; the operands are grad_output, q, k, v and attn."""
    found: tuple[Any, ...] = TILES.backward(*operands, mask, device, seed, early, only)
    return found


def inputs(dtype: torch.dtype, m: int, n: int, width: int, *lead: int, draw: int = 0) -> list[Tensor]:
    """q, k, v and grad_output."""
    made: list[Tensor] = KERNELS.make_inputs(n, width, width, dtype, m=m, lead=lead, draw=draw)
    return made[:4]


def both(q: Tensor, k: Tensor, v: Tensor, grad_output: Tensor, **options: Any) -> list[Tensor]:
    """The results of forward, and of backward where it has kernels."""
    output, attn, _ = forward(q, k, v, **options)
    grads = backward(grad_output, q, k, v, attn, **options)[:3] if q.shape[-1] == 64 else ()
    return [output, attn, *grads]


def check(dtype: torch.dtype, draws: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    """The results for some inputs of one size obey the rule of errors, which test/test_attn_kernels.py states."""
    rows = []
    for tensors, results in draws:
        sizes = KERNELS.magnitudes(*map(KERNELS.precise, tensors))
        rows.append(list(zip(results, KERNELS.composition(*tensors), KERNELS.reference(*tensors), sizes)))
    for name, of_name in zip(KERNELS.NAMES, zip(*rows, strict=True)):
        broken = KERNELS.broken_rule(name, dtype, of_name)
        assert broken is None, broken


def check_all(dtype: torch.dtype, m: int, n: int, width: int, **options: Any) -> None:
    # Few numbers say little about an error: small inputs are drawn several times.
    draws = [inputs(dtype, m, n, width, draw=x) for x in range(1 + 3000 // (m * n))]
    check(dtype, [(tensors, both(*tensors, **options)) for tensors in draws[:12]])


@pytest.mark.parametrize("n", [1, 8, 56, 63, 64, 72, 120, 136])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_beside_those_of_blocks(dtype: torch.dtype, width: int, n: int) -> None:
    check_all(dtype, n, n, width)


@pytest.mark.parametrize("m,n", [(1, 200), (16, 333), (200, 1), (67, 129), (130, 66), (128, 256), (256, 64), (257, 7)])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_many_queries_as_there_are(dtype: torch.dtype, width: int, m: int, n: int) -> None:
    check_all(dtype, m, n, width)


# The device runs this many blocks at once, and the parts of the walk should fill it. Each result is summed by a launch
# of its own where there are parts.
@pytest.mark.parametrize(
    "m,n,device,parts",
    [
        (256, 256, 1, (1, 1)),
        (328, 328, 120, (2, 2)),
        (520, 520, 120, (4, 4)),
        (1, 901, 120, (7, 1)),
        (301, 9, 2, (1, 2)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts(dtype: torch.dtype, m: int, n: int, device: int, parts: tuple[int, int]) -> None:
    *qkv, grad_output = tensors = inputs(dtype, m, n, 64)
    output, attn, launches = forward(*qkv, device=device)
    *grads, launches_back = backward(grad_output, *qkv, attn, device=device)
    keys, queries = (count > 1 for count in parts)
    assert (launches, launches_back) == (1 + keys, 2 + keys + 2 * queries)
    check(dtype, [(tensors, [output, attn, *grads])])


@pytest.mark.parametrize("m,n,device", [(136, 136, 1), (70, 77, 1), (5, 300, 9)])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_order_of_threads_and_copies_changes_nothing(
    dtype: torch.dtype, width: int, m: int, n: int, device: int
) -> None:
    tensors = inputs(dtype, m, n, width, 2)
    first = both(*tensors, device=device)
    for seed, early in [(1, False), (2, True), (3, True)]:
        again = both(*tensors, device=device, seed=seed, early=early)
        for name, result, expected in zip(KERNELS.NAMES, again, first):
            assert torch.equal(result, expected), name


def heads(t: Tensor) -> Tensor:
    """(B, H, rows, width) as a layer has them: in memory (B, rows, H, width)."""
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def wide(t: Tensor) -> Tensor:
    """A third of the rows of one product for q, k and v, and the first of more rows; NaN beside them."""
    b, h, rows, width = t.shape
    whole = t.new_full((b, rows + 5, 3, h, width), math.nan)
    view = whole[:, :rows, 1].transpose(1, 2)
    return view.copy_(t)


def expanded(t: Tensor) -> Tensor:
    """One head for all."""
    return t[:, :1].expand_as(t)


def permuted(t: Tensor) -> Tensor:
    return t.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)


LAYOUTS: dict[str, tuple[Layout, Layout]] = {
    "contiguous": (torch.clone, torch.clone),
    "heads": (heads, heads),
    "slices of one product": (wide, wide),
    "grouped queries": (heads, lambda t: expanded(heads(t))),
    "permuted": (permuted, wide),
}


@pytest.mark.parametrize("m,n", [(70, 131), (1, 72), (136, 64)])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_are_read_and_written_where_they_lie(dtype: torch.dtype, name: str, m: int, n: int) -> None:
    """The bits are those for each matrix alone, and no operand is copied: guards and NaN lie around each."""
    of_queries, of_keys = LAYOUTS[name]
    q, k, v, grad_output = inputs(dtype, m, n, 64, 2, 3)
    q, k, v, grad_output = of_queries(q), of_keys(k), of_keys(v), of_queries(grad_output)
    output, attn, *grads = both(q, k, v, grad_output)
    assert attn.is_contiguous()
    for result, like in zip([output, *grads], (q, q, k, v), strict=True):
        if 0 not in like.stride() and 1 not in like.shape:
            order = [sorted(range(4), key=t.stride().__getitem__) for t in (result, like)]
            assert order[0] == order[1]
        assert result.numel() * result.element_size() == result.untyped_storage().nbytes()
    for place in itertools.product(range(2), range(3)):
        alone = both(*(t[place].contiguous() for t in (q, k, v, grad_output)))
        for result, expected in zip([output, attn, *grads], alone, strict=True):
            assert torch.equal(result[place], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_leading_dimensions(dtype: torch.dtype) -> None:
    q, k, v, grad_output = tensors = inputs(dtype, 9, 17, 64, 2, 1, 2, 1, 1, 3, 1, 2)
    k, v = k[:, :, :1].expand_as(k), v[..., :1, :, :].expand_as(v)
    tensors = [q.movedim(5, 0).contiguous().movedim(0, 5), k, v, grad_output]
    check(dtype, [(tensors, both(*tensors))])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_of_other_layouts(dtype: torch.dtype) -> None:
    """They are copied: transposed, misaligned, rows at odd places, one row for all."""
    q, k, v, grad_output = inputs(dtype, 73, 80, 64)  # 73 rows of 67 columns end, and so begin, at 16 bytes
    v = v[:1].expand_as(v).contiguous()
    expected = both(q, k, v, grad_output)

    def moved(t: Tensor) -> Tensor:
        return torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape)

    odd = torch.cat((grad_output, grad_output[:, :3]), 1)[:, :64]
    others = q.t().contiguous().t(), moved(k), v[:1].expand_as(v), odd
    attn = expected[1]
    for other in moved(attn), attn.t().contiguous().t(), attn.repeat_interleave(2, 0)[::2]:
        results = [*forward(*others[:3])[:2], *backward(odd, *others[:3], other)[:3]]
        for name, result, wanted in zip(KERNELS.NAMES, results, expected, strict=True):
            assert torch.equal(result, wanted), name


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: "".join(n for n, x in zip("qkv", mask) if x))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_that_are_not_wanted_take_no_launch(dtype: torch.dtype, mask: tuple[bool, ...]) -> None:
    *qkv, grad_output = inputs(dtype, 70, 300, 64, 2)
    for device in (1, 60):
        attn = forward(*qkv, device=device)[1]
        *expected, every = backward(grad_output, *qkv, attn, device=device)
        *grads, launches = backward(grad_output, *qkv, attn, mask=mask, device=device)
        assert every == (2, 3)[device > 1]
        assert launches == mask[0] * (every - 1) + mask[1]
        for wanted, grad, exact in zip(mask, grads, expected, strict=True):
            assert torch.equal(grad, exact) if wanted else grad is None


@pytest.mark.parametrize("n", [1, 33, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_stays_in_its_row(dtype: torch.dtype, n: int) -> None:
    """Beyond the last row and column zeros are loaded. None may meet an infinity and become NaN in a result."""
    m = 35
    q, k, v, grad_output = inputs(dtype, m, n, 64, 2)
    attn = forward(q, k, v)[1]
    inf = math.inf
    for tensor, where in ((q, "q"), (k, "k"), (v, "v"), (grad_output, "grad_output")):
        row, kept = tensor[1, -1].clone(), {}
        tensor[1, -1] = 0
        tensor[1, -1, 0] = inf
        for name, result in zip(KERNELS.NAMES, [*forward(q, k, v)[:2], *backward(grad_output, q, k, v, attn)[:3]]):
            assert result[0].isfinite().all(), f"{name}, {where}"
            kept[name] = ~result[1].isfinite().all(-1)
        tensor[1, -1] = row
        last = {size: torch.arange(size) == size - 1 for size in (m, n)}
        none, every = (lambda size: torch.zeros(size).bool()), (lambda size: torch.ones(size).bool())
        # Where the row takes part in a sum: an infinity in v in every output, as its weight is not 0.
        expected = {
            "q": {"grad_k": every(n)},
            "k": {"grad_q": every(m)},
            "v": {"output": every(m), "grad_q": every(m), "grad_k": last[n]},
            "grad_output": {"grad_q": last[m], "grad_k": every(n), "grad_v": every(n)},
        }[where]
        for name, found in kept.items():
            size = m if name in ("output", "attn", "grad_q") else n
            assert torch.equal(found, expected.get(name, none(size))), f"{name}, {where}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_comes_out(dtype: torch.dtype) -> None:
    q, k, v, _ = inputs(dtype, 24, 21, 64)
    q[7, 2] = math.nan
    for result in forward(q, k, v)[:2]:
        assert result.isnan().any(1).nonzero().flatten().tolist() == [7]


def test_tanh_of_float16() -> None:
    """Of every finite number within 0.57 units in the last place, where rounding alone takes 0.5."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[every.isfinite()]
    q = torch.cat((every, every.new_zeros(-len(every) % 64))).view(-1, 64)
    one = torch.eye(64, dtype=torch.float16)  # so that scores are q
    attn = forward(q, one, one)[1].flatten()[: len(every)].double()
    exact = torch.tanh(every.double())
    units = 2.0 ** (exact.abs().clamp(min=2**-14).log2().floor() - 10)
    assert ((attn - exact).abs() / units).max() <= 0.57
    assert (attn[every.abs() >= 4.6].abs() == 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_seventy_thousand_matrices(dtype: torch.dtype) -> None:
    """More than grid.y holds. Some blocks run; each has a matrix."""
    count, places = 70_000, [0, 1, 65_535, 65_536, 69_999]
    q, k, v, grad_output = inputs(dtype, 9, 13, 64, 5)
    whole = [t.new_zeros(count, *t.shape[1:]) for t in (q, k, v, grad_output)]
    for all_of_it, some in zip(whole, (q, k, v, grad_output)):
        all_of_it[places] = some
    output, attn, _ = forward(*whole[:3], only=places)
    grads = backward(whole[3], *whole[:3], attn, only=places)[:3]
    for result, expected in zip((output, attn, *grads), both(q, k, v, grad_output), strict=True):
        assert torch.equal(result[places], expected)
        assert result[2:1000].isnan().all()  # these blocks did not run


LONG = 34_000_000  # rows, of 64 columns more than 2^31 elements


def test_more_than_int32_elements() -> None:
    """In q, attn and the results; only the last block runs. All but the last rows are zeros that take no memory."""
    last, n = LONG % 128 or 128, 72
    few, k, v, few_grad = inputs(torch.float16, last, n, 64)
    q, grad_output = (TILES.sparse([LONG, 64], [64, 1]) for _ in range(2))
    q[-last:], grad_output[-last:] = few, few_grad
    block = [(LONG + 127) // 128 - 1]
    output, attn, *grads = both(few, k, v, few_grad)
    long_output, long_attn, _ = forward(q, k, v, only=block)
    assert min(long_attn.numel(), long_output.numel()) > 2**31
    assert torch.equal(long_output[-last:], output) and torch.equal(long_attn[-last:], attn)
    grad_q = backward(grad_output, q, k, v, long_attn, mask=(True, False, False), only=block)[0]
    assert torch.equal(grad_q[-last:], grads[0])
    # As many keys instead: attn's rows are far from each other.
    m = 72
    few_q, few_k, few_v, few_grad = inputs(torch.float16, m, last, 64)
    k, v, long_attn = (
        TILES.sparse([LONG, 64], [64, 1]),
        TILES.sparse([LONG, 64], [64, 1]),
        TILES.sparse([m, LONG], [LONG, 1]),
    )
    output, attn, *grads = both(few_q, few_k, few_v, few_grad)
    k[-last:], v[-last:], long_attn[:, -last:] = few_k, few_v, attn
    long_grads = backward(few_grad, few_q, k, v, long_attn, mask=(False, True, True), only=block)[1:3]
    for result, expected in zip(long_grads, grads[1:], strict=True):
        assert torch.equal(result[-last:], expected)


def test_matrices_that_are_far_from_each_other() -> None:
    """Strides beyond 2^31, of elements and, between rows, of bytes: those are copied."""
    tensors = inputs(torch.float16, 3, 4, 64, 2)
    expected = both(*tensors)
    for far, row in ((2**31 + 64, 64), (2**20, 2**31 + 64)):
        others = []
        for t in tensors:
            others.append(TILES.sparse([2, t.shape[1], 64], [far, row, 1]))
            others[-1].copy_(t)
        for result, wanted in zip(both(*others), expected, strict=True):
            assert torch.equal(result, wanted)


def rule(
    dtype: torch.dtype,
    m: int,
    n: int,
    d: int,
    backward: bool,
    *lead: int,
    e: int | None = None,
    capability: int = 9,
) -> int:
    """0 composed, 1 by kernels if a test forces them, 2 by kernels."""
    sizes = (len(lead), math.prod(lead), m, n, d, d if e is None else e)
    said: int = TILES.rule(dtype, *sizes, backward, capability)
    return said


def test_what_kernels_compute() -> None:
    for dtype, back in itertools.product(DTYPES, (False, True)):
        for m, n, *lead in (1, 1), (16, 4096, 8, 12), (197, 197, 70_000), (9, 7, *[1] * 8), (2**29, 1):
            assert rule(dtype, m, n, 64, back, *lead) == 1
            assert rule(dtype, m, n, 128, back, *lead) == (not back)
        for m, n, *lead in (0, 8), (8, 0), (8, 8, 0), (8, 8, *[1] * 9), (2**30, 8), (8, 2**31, 2):
            assert rule(dtype, m, n, 64, back, *lead) == 0
        # Between the rows of a result may lie all matrices: their bytes are an int.
        assert rule(dtype, 2, 1, 64, back, 2**24 - 1) == 1 and rule(dtype, 2, 1, 64, back, 2**24) == 0
        assert rule(dtype, 2**20, 8, 64, back, 2**16) == 0  # blocks beyond grid.x
        for d, e in ((64, 128), (128, 64), (32, 32), (256, 256), (0, 0)):
            assert rule(dtype, 9000, 9000, d, back, e=e) == 0
        for wide in (torch.float32, torch.float64, torch.complex64):
            assert rule(wide, 9000, 9000, 64, back) == 0


def test_the_rule_takes_what_was_measured() -> None:
    """One matrix of M = N rows on capability 9: nothing else ran on a GPU, nor did float16's tanh."""
    for dtype, d, back, least in (
        (torch.bfloat16, 64, False, 3000),
        (torch.bfloat16, 128, False, 4096),
        (torch.bfloat16, 64, True, 3000),
        (torch.float16, 64, True, 3000),
    ):
        assert [rule(dtype, n, n, d, back) for n in (least - 8, least, least + 4, 2 * least)] == [1, 2, 1, 2]
        n = 2 * least
        assert [rule(dtype, n, n, d, back, capability=x) for x in (8, 9, 10, 12)] == [1, 2, 1, 1]
        assert rule(dtype, n - 8, n, d, back) == rule(dtype, n, n, d, back, 1) == rule(dtype, n, n, d, back, 8, 12) == 1
    assert rule(torch.float16, 9000, 9000, 64, False) == rule(torch.float16, 9000, 9000, 128, False) == 1
