"""attn's CUDA tile kernels, compiled for the CPU from their own source and run in an emulator of a thread block."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = pytest.mark.xdist_group("cuda_tiles")
ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
sys.path.append(str(ROOT / "test"))
RULE: Any = importlib.import_module("test_attn_kernels")

# (name, dtype, whether TensorFloat-32), in the order of attn_tiles' switch
ARITHMETICS = [
    ("half", torch.float16, False),
    ("bfloat16", torch.bfloat16, False),
    ("tf32", torch.float32, True),
    ("float", torch.float32, False),
    ("double", torch.float64, False),
]
NAMES = [name for name, _, _ in ARITHMETICS]
FORWARD, ROWS, COLS = range(3)


class Problem(ctypes.Structure):
    """The struct of the same name in cuda_tiles.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n", "d", "e", "part", "row_stride", "column_stride")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "grad_output", "grad_attn")),
        *((name, ctypes.c_void_p) for name in ("attn", "output", "grad_q", "grad_k", "grad_v")),
        ("seed", ctypes.c_uint),
        ("early", ctypes.c_int),
    ]


Tiles = Callable[..., None]


@pytest.fixture(scope="session")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Tiles:
    """Runs one kernel: tiles(arithmetic, kernel, width, q=..., ..., n=..., d=..., e=...)."""
    folder = tmp_path_factory.mktemp("tiles")
    library = folder / "libtiles.so"
    # The emulator stands before the header with the instructions on the compiler's path.
    instructions = folder / "ATen/native/cuda/AttnIntrinsics.cuh"
    instructions.parent.mkdir(parents=True)
    instructions.write_text('#include "cuda_emulator.h"\n')
    folders = [folder, ROOT / "aten/src", Path(torch.__file__).parent / "include", HERE]
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w", *(f"-I{path}" for path in folders)]
    subprocess.run(["c++", *flags, str(HERE / "cuda_tiles.cpp"), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).attn_tiles

    def run(arithmetic: str, kernel: int, width: int, **fields: Tensor | int) -> None:
        values = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()}
        function(ctypes.byref(Problem(**values)), NAMES.index(arithmetic), kernel, width)

    return run


class Case:
    """Inputs of one run with its results in float64 and as the plain composition of the same dtype gives them."""

    def __init__(self, arithmetic: str, n: int, d: int, e: int, seed: int = 0) -> None:
        self.name, self.dtype, self.tf32 = ARITHMETICS[NAMES.index(arithmetic)]
        self.n, self.d, self.e = n, d, e
        generator = torch.Generator().manual_seed(seed + n)

        def random(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(rows, columns, generator=generator, dtype=torch.float64) * scale).to(self.dtype)

        self.q, self.k = random(n, d, d**-0.25), random(n, d, d**-0.25)
        self.v, self.grad_output, self.grad_attn = random(n, e), random(n, e), random(n, n)

    def sizes(self) -> dict[str, int]:
        return {"n": self.n, "d": self.d, "e": self.e}

    def operands(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}

    def exact(self, with_output: bool = True, grad_attn: Tensor | None = None) -> dict[str, Any]:
        """Every result in the widest numbers of this machine, as arrays of NumPy."""

        def wide(t: Tensor) -> Any:
            return t.double().numpy().astype(np.longdouble)

        given = None if grad_attn is None else wide(grad_attn)
        q, k, v, grad_output = map(wide, (self.q, self.k, self.v, self.grad_output))
        return _formulas(q, k, v, grad_output, np.tanh, np.matmul, with_output, given)

    def plain(self, with_output: bool = True, grad_attn: Tensor | None = None) -> dict[str, Tensor]:
        """The same by the plain composition in this dtype."""
        round_ = _round_tf32 if self.tf32 else lambda t: t
        inputs = (self.q, self.k, self.v, self.grad_output)
        return _formulas(*inputs, torch.tanh, lambda a, b: round_(a) @ round_(b), with_output, grad_attn)

    def magnitudes(self, with_output: bool = True, grad_attn: Tensor | None = None) -> dict[str, Any]:
        """The sum of the absolute products behind every result."""
        grad_output = self.grad_output if with_output else None
        tensors = (self.q, self.k, self.v, grad_output, grad_attn)
        names = ("output", "attn", "grad_q", "grad_k", "grad_v")
        return dict(zip(names, RULE.magnitudes(*map(RULE.extended, tensors)), strict=True))

    def empty(self, name: str) -> Tensor:
        columns = {"attn": self.n, "output": self.e, "grad_v": self.e}.get(name, self.d)
        return torch.empty(self.n, columns, dtype=self.dtype)


def _formulas(
    q: Any, k: Any, v: Any, grad_output: Any, tanh: Any, product: Any, with_output: bool, grad_attn: Any
) -> dict[str, Any]:
    attn = tanh(product(q, k.T))
    x = product(grad_output, v.T) if with_output else attn * 0
    if grad_attn is not None:
        x = x + grad_attn
    x = x * (1 - attn * attn)
    return {
        "attn": attn,
        "output": product(attn, v),
        "grad_q": product(x, k),
        "grad_k": product(x.T, q),
        "grad_v": product(attn.T, grad_output),
    }


def _round_tf32(t: Tensor) -> Tensor:
    return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


Draw = tuple[Tensor, Tensor, Any, Any]
"""A result, the plain composition's, the exact one, and the sum of absolute products behind it."""


def check(case: Case, draws: dict[str, list[Draw]]) -> None:
    """Every result obeys the rule of errors, which test/test_attn_kernels.py states; TF32 rounds factors too."""
    unit = 2**13 if case.tf32 else 1
    for name, of_name in draws.items():
        scaled = [(got, plain, exact, magnitude * unit) for got, plain, exact, magnitude in of_name]
        broken = RULE.broken_rule(name, case.dtype, scaled)
        assert broken is None, broken


def forward(tiles: Tiles, case: Case, width: int, **options: int) -> dict[str, Tensor]:
    results = {name: case.empty(name) for name in ("attn", "output")}
    tiles(case.name, FORWARD, width, **case.operands(), **results, **case.sizes(), **options)
    return results


def backward(
    tiles: Tiles, case: Case, width: int, attn: Tensor, *, with_output: bool = True, grad_attn: Tensor | None = None,
    want_v: bool = True, **options: int,
) -> dict[str, Tensor]:  # fmt: skip
    inputs = {**case.operands(), "attn": attn}
    if with_output:
        inputs["grad_output"] = case.grad_output
    if grad_attn is not None:
        inputs["grad_attn"] = grad_attn
        options |= {"row_stride": grad_attn.stride(0), "column_stride": grad_attn.stride(1)}
    names = ["grad_q", "grad_k"] + (["grad_v"] if want_v and with_output else [])
    results = {name: case.empty(name) for name in names}
    rows, cols = {"grad_q": results["grad_q"]}, {n: results[n] for n in names[1:]}
    tiles(case.name, ROWS, width, **inputs, **rows, **case.sizes(), **options)
    tiles(case.name, COLS, width, **inputs, **cols, **case.sizes(), **options)
    return results


def check_all(tiles: Tiles, cases: list[Case], width: int, **options: Any) -> None:
    """Values and gradients of some draws of one size obey the rule together."""
    draws: dict[str, list[Draw]] = {}
    for case in cases:
        exact, plain, magnitudes = case.exact(), case.plain(), case.magnitudes()
        results = forward(tiles, case, width, **options)
        results |= backward(tiles, case, width, results["attn"], **options)
        for name, result in results.items():
            draws.setdefault(name, []).append((result, plain[name], exact[name], magnitudes[name]))
    check(cases[0], draws)


@pytest.mark.parametrize("arithmetic", NAMES)
def test_one_row(tiles: Tiles, arithmetic: str) -> None:
    """One score has no sum in which errors of tanh cancel: the usual tolerances serve, as in test_attn_kernels.py."""
    for seed in range(20):
        case = Case(arithmetic, 1, 64, 64, seed)
        results = forward(tiles, case, 64)
        results |= backward(tiles, case, 64, results["attn"])
        exact, magnitudes = case.exact(), case.magnitudes()
        epsilon = torch.finfo(case.dtype).eps * (2**13 if case.tf32 else 1)
        for name, result in results.items():
            # Where attn is near 1, its rounding is a large part of 1 - attn^2.
            slope = 1 - exact["attn"] ** 2 if name in ("grad_q", "grad_k") else 1
            error = abs(RULE.extended(result) - exact[name])
            assert (error <= epsilon * (4 * magnitudes[name] / slope + 8 * abs(exact[name]))).all(), name


@pytest.mark.parametrize("n", [17, 63, 64, 65, 127])
@pytest.mark.parametrize("arithmetic", NAMES)
def test_odd_sizes(tiles: Tiles, arithmetic: str, n: int) -> None:
    # Few numbers say little about an error: small inputs are drawn several times.
    check_all(tiles, [Case(arithmetic, n, 64, 64, seed) for seed in range(1 + 100 // n)], 64)


@pytest.mark.parametrize("d,e,width", [(1, 3, 64), (40, 24, 64), (64, 128, 128), (128, 40, 128), (17, 200, 128)])
@pytest.mark.parametrize("arithmetic", NAMES)
def test_unequal_widths(tiles: Tiles, arithmetic: str, d: int, e: int, width: int) -> None:
    check_all(tiles, [Case(arithmetic, 70, d, e)], width)


@pytest.mark.parametrize("arithmetic", NAMES)
def test_widest(tiles: Tiles, arithmetic: str) -> None:
    check_all(tiles, [Case(arithmetic, 33, 256, 256)], 128)


@pytest.mark.parametrize("n,part", [(256, 0), (328, 0), (320, 192)])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("arithmetic", ["half", "bfloat16", "float"])
def test_whole_operands_away_from_edges(tiles: Tiles, arithmetic: str, width: int, n: int, part: int) -> None:
    check_all(tiles, [Case(arithmetic, n, width, width)], width, part=part)


@pytest.mark.parametrize("n,part", [(200, 64), (130, 128), (192, 64)])
@pytest.mark.parametrize("arithmetic", NAMES)
def test_parts_are_summed(tiles: Tiles, arithmetic: str, n: int, part: int) -> None:
    check_all(tiles, [Case(arithmetic, n, 32, 16)], 64, part=part)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded rows", "expanded columns", "one number"])
@pytest.mark.parametrize("with_output", [True, False])
@pytest.mark.parametrize("arithmetic,n", list(itertools.product(NAMES, [64, 67])))
def test_grad_attn(tiles: Tiles, arithmetic: str, n: int, with_output: bool, layout: str) -> None:
    case = Case(arithmetic, n, 32, 24)
    grad_attn = {
        "contiguous": case.grad_attn,
        "transposed": case.grad_attn.T,
        "expanded rows": case.grad_attn[:1].expand(n, n),
        "expanded columns": case.grad_attn[:, :1].contiguous().expand(n, n),
        "one number": case.grad_attn[0, 0].clone().expand(n, n),
    }[layout]
    exact, plain, magnitudes = (f(with_output, grad_attn) for f in (case.exact, case.plain, case.magnitudes))
    attn = forward(tiles, case, 64)["attn"]
    results = backward(tiles, case, 64, attn, with_output=with_output, grad_attn=grad_attn)
    assert ("grad_v" in results) == with_output
    check(case, {name: [(x, plain[name], exact[name], magnitudes[name])] for name, x in results.items()})


@pytest.mark.parametrize("arithmetic", NAMES)
def test_gradient_of_k_alone(tiles: Tiles, arithmetic: str) -> None:
    case = Case(arithmetic, 65, 40, 72)
    attn = forward(tiles, case, 64)["attn"]
    both = backward(tiles, case, 128, attn)
    alone = backward(tiles, case, 128, attn, want_v=False)
    assert torch.equal(both["grad_k"], alone["grad_k"])


@pytest.mark.parametrize("arithmetic", NAMES)
def test_the_order_of_threads_and_copies_changes_nothing(tiles: Tiles, arithmetic: str) -> None:
    case = Case(arithmetic, 131, 32, 32)
    first = forward(tiles, case, 64, seed=0, early=0)
    first |= backward(tiles, case, 64, first["attn"], seed=0, early=0)
    for seed, early in [(1, 0), (2, 1), (3, 1)]:
        again = forward(tiles, case, 64, seed=seed, early=early)
        again |= backward(tiles, case, 64, again["attn"], seed=seed, early=early)
        for name, result in again.items():
            assert torch.equal(result, first[name]), name


@pytest.mark.parametrize("arithmetic", NAMES)
def test_infinity_stays_in_its_row(tiles: Tiles, arithmetic: str) -> None:
    """The zeros that fill the last tile must not meet an infinity and become NaN."""
    case = Case(arithmetic, 37, 16, 16)
    case.q[3, 0] = float("inf")
    results = forward(tiles, case, 64)
    assert torch.equal(results["attn"][3].abs(), torch.ones(37, dtype=case.dtype))
    assert torch.isfinite(results["output"]).all()
    case.v[5, 0] = float("inf")
    case.q[3, 0] = 0
    attn = forward(tiles, case, 64)["attn"]
    results = backward(tiles, case, 64, attn)
    assert torch.isfinite(results["grad_v"]).all()
    rows = torch.arange(37) != 5
    assert torch.isfinite(results["grad_k"][rows]).all()


@pytest.mark.parametrize("arithmetic", NAMES)
def test_nan_comes_out(tiles: Tiles, arithmetic: str) -> None:
    case = Case(arithmetic, 20, 16, 16)
    case.q[7, 2] = float("nan")
    results = forward(tiles, case, 64)
    nan_rows = torch.zeros(20, dtype=torch.bool)
    nan_rows[7] = True
    assert torch.equal(results["attn"].isnan().any(1), nan_rows)
    assert torch.equal(results["output"].isnan().any(1), nan_rows)
