"""attn's CUDA kernels, compiled for the CPU from their own source and run in an emulator of a thread block, and the
rule that says which sizes they take."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.gpu.report import RULE as RULE_FILE
from bench.gpu.report import Result, records, rule, speedup, with_rule
from checks import ROOT

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [pytest.mark.xdist_group("cuda_tiles"), pytest.mark.long]
HERE = Path(__file__).parent
sys.path.append(str(ROOT / "test"))
RULE: Any = importlib.import_module("test_attn_kernels")

DTYPES = [torch.float16, torch.bfloat16]  # in the order of attn_tiles' argument
WIDTHS = [64, 128]
FORWARD, ROWS, COLS = range(3)
KINDS = ("forward", "both")


class Problem(ctypes.Structure):
    """The struct of the same name in tiles.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n", "part")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "grad_output")),
        *((name, ctypes.c_void_p) for name in ("attn", "output", "grad_q", "grad_k", "grad_v")),
        ("seed", ctypes.c_uint),
        ("early", ctypes.c_int),
    ]


Tiles = Callable[..., None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """tiles.cpp as a library."""
    folder = tmp_path_factory.mktemp("tiles")
    # The emulator stands before the header with the instructions on the compiler's path.
    instructions = folder / "ATen/native/cuda/AttnIntrinsics.cuh"
    instructions.parent.mkdir(parents=True)
    instructions.write_text('#include "emulator.h"\n')
    folders = [folder, ROOT / "aten/src", Path(torch.__file__).parent / "include", HERE]
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w", *(f"-I{path}" for path in folders)]
    subprocess.run(["c++", *flags, str(HERE / "tiles.cpp"), "-o", str(folder / "libtiles.so")], check=True)
    return ctypes.CDLL(str(folder / "libtiles.so"))


@pytest.fixture(scope="session")
def tiles(library: ctypes.CDLL) -> Tiles:
    """Runs one kernel: tiles(dtype, kernel, width, q=..., ..., n=...)."""

    def run(dtype: torch.dtype, kernel: int, width: int, **fields: Tensor | int) -> None:
        values = {name: value.data_ptr() if isinstance(value, Tensor) else value for name, value in fields.items()}
        library.attn_tiles(ctypes.byref(Problem(**values)), DTYPES.index(dtype), kernel, width)

    return run


class Case:
    """Inputs of one run with its results in float64 and as the plain composition of the same dtype gives them."""

    def __init__(self, dtype: torch.dtype, n: int, width: int, seed: int = 0) -> None:
        self.dtype, self.n, self.width = dtype, n, width
        generator = torch.Generator().manual_seed(seed + n)

        def random(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(rows, columns, generator=generator, dtype=torch.float64) * scale).to(dtype)

        self.q, self.k = random(n, width, width**-0.25), random(n, width, width**-0.25)
        self.v, self.grad_output = random(n, width), random(n, width)

    def operands(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}

    def exact(self) -> dict[str, Any]:
        """Every result in the widest numbers of this machine, as arrays of NumPy."""
        tensors = (self.q, self.k, self.v, self.grad_output)
        q, k, v, grad_output = (t.double().numpy().astype(np.longdouble) for t in tensors)
        return _formulas(q, k, v, grad_output, np.tanh, np.matmul)

    def plain(self) -> dict[str, Tensor]:
        """The same by the plain composition in this dtype."""
        return _formulas(self.q, self.k, self.v, self.grad_output, torch.tanh, torch.matmul)

    def magnitudes(self) -> dict[str, Any]:
        """The sum of the absolute products behind every result."""
        tensors = (self.q, self.k, self.v, self.grad_output)
        names = ("output", "attn", "grad_q", "grad_k", "grad_v")
        return dict(zip(names, RULE.magnitudes(*map(RULE.precise, tensors)), strict=True))

    def empty(self, name: str) -> Tensor:
        return torch.empty(self.n, self.n if name == "attn" else self.width, dtype=self.dtype)


def _formulas(q: Any, k: Any, v: Any, grad_output: Any, tanh: Any, product: Any) -> dict[str, Any]:
    attn = tanh(product(q, k.T))
    x = product(grad_output, v.T) * (1 - attn * attn)
    return {
        "attn": attn,
        "output": product(attn, v),
        "grad_q": product(x, k),
        "grad_k": product(x.T, q),
        "grad_v": product(attn.T, grad_output),
    }


Draw = tuple[Tensor, Tensor, Any, Any]
"""A result, the plain composition's, the exact one, and the sum of absolute products behind it."""


def check(case: Case, draws: dict[str, list[Draw]]) -> None:
    """Every result obeys the rule of errors, which test/test_attn_kernels.py states."""
    for name, of_name in draws.items():
        broken = RULE.broken_rule(name, case.dtype, of_name)
        assert broken is None, broken


def forward(tiles: Tiles, case: Case, **options: int) -> dict[str, Tensor]:
    results = {name: case.empty(name) for name in ("attn", "output")}
    tiles(case.dtype, FORWARD, case.width, **case.operands(), **results, n=case.n, **options)
    return results


def backward(tiles: Tiles, case: Case, attn: Tensor, **options: int) -> dict[str, Tensor]:
    inputs = {**case.operands(), "attn": attn, "grad_output": case.grad_output}
    results = {name: case.empty(name) for name in ("grad_q", "grad_k", "grad_v")}
    for kernel in (ROWS, COLS):
        tiles(case.dtype, kernel, case.width, **inputs, **results, n=case.n, **options)
    return results


def check_all(tiles: Tiles, cases: list[Case], **options: Any) -> None:
    """Values and gradients of some draws of one size obey the rule together."""
    draws: dict[str, list[Draw]] = {}
    for case in cases:
        exact, plain, magnitudes = case.exact(), case.plain(), case.magnitudes()
        results = forward(tiles, case, **options)
        results |= backward(tiles, case, results["attn"], **options)
        for name, result in results.items():
            draws.setdefault(name, []).append((result, plain[name], exact[name], magnitudes[name]))
    check(cases[0], draws)


@pytest.mark.parametrize("n", [8, 56, 64, 72, 120, 136])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_beside_those_of_blocks(tiles: Tiles, dtype: torch.dtype, width: int, n: int) -> None:
    # Few numbers say little about an error: small inputs are drawn several times.
    check_all(tiles, [Case(dtype, n, width, seed) for seed in range(1 + 100 // n)])


@pytest.mark.parametrize("n,part", [(256, 0), (328, 0), (320, 192), (136, 128), (192, 64)])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_away_from_edges_and_parts(tiles: Tiles, dtype: torch.dtype, width: int, n: int, part: int) -> None:
    check_all(tiles, [Case(dtype, n, width)], part=part)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_order_of_threads_and_copies_changes_nothing(tiles: Tiles, dtype: torch.dtype, width: int) -> None:
    case = Case(dtype, 136, width)
    first = forward(tiles, case, seed=0, early=0)
    first |= backward(tiles, case, first["attn"], seed=0, early=0)
    for seed, early in [(1, 0), (2, 1), (3, 1)]:
        again = forward(tiles, case, seed=seed, early=early)
        again |= backward(tiles, case, again["attn"], seed=seed, early=early)
        for name, result in again.items():
            assert torch.equal(result, first[name]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_stays_in_its_row(tiles: Tiles, dtype: torch.dtype) -> None:
    """The zeros that fill the last tile must not meet an infinity and become NaN."""
    case = Case(dtype, 40, 64)
    case.q[3, 0] = float("inf")
    results = forward(tiles, case)
    assert torch.equal(results["attn"][3].abs(), torch.ones(40, dtype=dtype))
    assert torch.isfinite(results["output"]).all()
    case.v[5, 0] = float("inf")
    case.q[3, 0] = 0
    results = backward(tiles, case, forward(tiles, case)["attn"])
    assert torch.isfinite(results["grad_v"]).all()
    rows = torch.arange(40) != 5
    assert torch.isfinite(results["grad_k"][rows]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_comes_out(tiles: Tiles, dtype: torch.dtype) -> None:
    case = Case(dtype, 24, 64)
    case.q[7, 2] = float("nan")
    results = forward(tiles, case)
    nan_rows = torch.zeros(24, dtype=torch.bool)
    nan_rows[7] = True
    assert torch.equal(results["attn"].isnan().any(1), nan_rows)
    assert torch.equal(results["output"].isnan().any(1), nan_rows)


Takes = Callable[..., bool]


@pytest.fixture(scope="session")
def takes(library: ctypes.CDLL) -> Takes:
    """The operator's rule: takes(dtype, n, d, e, backward)."""
    numbers = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}  # c10::ScalarType
    sizes = [ctypes.c_int64] * 3
    library.attn_takes.argtypes = [ctypes.c_int, *sizes, ctypes.c_int]
    return lambda dtype, *size_and_backward: bool(library.attn_takes(numbers[dtype], *size_and_backward))


def test_kernels_take_the_sizes_that_they_win(takes: Takes) -> None:
    """On the device nowhere below 0.97; forward also where calls in a row gain more than one operator composed."""

    def by_kernels(result: Result) -> bool:
        kinds = [False, True] if result["kind"] == "both" else [result["kind"] == "backward"]
        size = (result["n"], result["d"], result["d"])
        return all(takes(getattr(torch, result["dtype"]), *size, backward) for backward in kinds)

    results = [result for _, record in records() for result in record["results"]]
    composed = [run["forward"] for _, record in records() for run in record.get("composed_calls", ())]
    assert {True, False} == {by_kernels(result) for result in results}
    assert max(composed) <= 1.16
    for result in results:
        assert by_kernels(result) == result["kernels"], result
        calls, device = result["calls_speedup"], speedup(result)
        if result["kernels"]:
            assert calls is None or calls >= 0.97, result
            row = result["kind"] == "forward" and result["n"] <= 2048 and calls >= 1.75
            assert device is None or device >= 0.97 or row, result


def test_the_figures_beside_the_rule_are_those_of_the_results() -> None:
    header = RULE_FILE.read_text()
    record = next(record for folder, record in records() if folder.name == "nvidia-h100")
    assert rule(record) in header and with_rule(header, record) == header, "run `python -m bench.gpu.report`"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_limits_of_what_kernels_take(takes: Takes, dtype: torch.dtype) -> None:
    for backward in (False, True):
        assert not any(takes(dtype, n, 64, 64, backward) for n in (0, 1, 60, 9004))
        assert not any(takes(dtype, 9000, d, e, backward) for d, e in [(64, 128), (128, 64), (32, 32), (256, 256)])
        assert not any(takes(wide, 9000, 64, 64, backward) for wide in (torch.float32, torch.float64))
    assert all(takes(dtype, n, d, d, False) for n in (8, 9000) for d in WIDTHS)
    for d, least in (64, 3000), (128, 8192):
        assert [takes(dtype, n, d, d, True) for n in (least - 8, least)] == [False, True]
