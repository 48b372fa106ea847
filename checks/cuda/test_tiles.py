"""attn's CUDA kernels and the host code that launches them, compiled for the CPU from their own source: the kernels run
in an emulator of a thread block. And the rule that says which sizes they take."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

from bench.attn.gpu.report import RULE as RULE_FILE
from bench.attn.gpu.report import Result, records, rule, speedup, with_rule
from checks import ROOT

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = [pytest.mark.xdist_group("cuda_tiles"), pytest.mark.long]
HERE = Path(__file__).parent
sys.path.append(str(ROOT / "test"))
RULE: Any = importlib.import_module("test_attn_kernels")
TILES: Any = torch.ops.attn_tiles

DTYPES = [torch.float16, torch.bfloat16]
WIDTHS = [64, 128]
# What stands for headers of CUDA and of PyTorch around it; these come first on the compiler's path.
STUBS = {
    "ATen/native/cuda/AttnIntrinsics.cuh": "emulator.h",
    "ATen/cuda/CUDAContext.h": "runtime.h",
    "c10/cuda/CUDAException.h": "runtime.h",
}


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


class Case:
    """Inputs of one run with its results in float64 and as the plain composition of the same dtype gives them."""

    def __init__(self, dtype: torch.dtype, n: int, width: int, seed: int = 0) -> None:
        self.dtype, self.n, self.width = dtype, n, width
        generator = torch.Generator().manual_seed(seed + n)

        def random(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(rows, columns, generator=generator, dtype=torch.float64) * scale).to(dtype)

        self.q, self.k = random(n, width, width**-0.25), random(n, width, width**-0.25)
        self.v, self.grad_output = random(n, width), random(n, width)

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


def forward(case: Case, device: int = 1, seed: int = 0, early: bool = False, parts: int = 1) -> dict[str, Tensor]:
    """On a device of so many multiprocessors. Each result is summed by a launch of its own where there are parts."""
    output, attn, launches = TILES.forward(case.q, case.k, case.v, device, seed, early)
    assert launches == 1 + (parts > 1)
    return {"attn": attn, "output": output}


def backward(
    case: Case, attn: Tensor, device: int = 1, seed: int = 0, early: bool = False, parts: int = 1
) -> dict[str, Tensor]:
    operands = (case.grad_output, case.q, case.k, case.v, attn)
    *grads, launches = TILES.backward(*operands, device, seed, early)
    assert launches == 2 + 3 * (parts > 1)
    return dict(zip(("grad_q", "grad_k", "grad_v"), grads, strict=True))


def both(case: Case, **options: Any) -> dict[str, Tensor]:
    """Backward only where it has kernels."""
    results = forward(case, **options)
    return results | (backward(case, results["attn"], **options) if case.width == 64 else {})


def check_all(cases: list[Case], **options: Any) -> None:
    """Values and gradients of some draws of one size obey the rule together."""
    draws: dict[str, list[Draw]] = {}
    for case in cases:
        exact, plain, magnitudes = case.exact(), case.plain(), case.magnitudes()
        results = both(case, **options)
        for name, result in results.items():
            draws.setdefault(name, []).append((result, plain[name], exact[name], magnitudes[name]))
    check(cases[0], draws)


@pytest.mark.parametrize("n", [8, 56, 64, 72, 120, 136])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_beside_those_of_blocks(dtype: torch.dtype, width: int, n: int) -> None:
    # Few numbers say little about an error: small inputs are drawn several times.
    check_all([Case(dtype, n, width, seed) for seed in range(1 + 100 // n)])


# The device runs this many blocks at once, and the parts of the walk should fill it.
@pytest.mark.parametrize("n,device,parts", [(256, 1, 1), (328, 1, 1), (328, 120, 2), (256, 120, 2), (520, 120, 4)])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_away_from_edges_and_parts(dtype: torch.dtype, width: int, n: int, device: int, parts: int) -> None:
    check_all([Case(dtype, n, width)], device=device, parts=parts)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_order_of_threads_and_copies_changes_nothing(dtype: torch.dtype, width: int) -> None:
    case = Case(dtype, 136, width)
    first = both(case, seed=0, early=False)
    for seed, early in [(1, False), (2, True), (3, True)]:
        again = both(case, seed=seed, early=early)
        for name, result in again.items():
            assert torch.equal(result, first[name]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinity_stays_in_its_row(dtype: torch.dtype) -> None:
    """The zeros that fill the last tile must not meet an infinity and become NaN."""
    case = Case(dtype, 40, 64)
    case.q[3, 0] = float("inf")
    results = forward(case)
    assert torch.equal(results["attn"][3].abs(), torch.ones(40, dtype=dtype))
    assert torch.isfinite(results["output"]).all()
    case.v[5, 0] = float("inf")
    case.q[3, 0] = 0
    results = backward(case, forward(case)["attn"])
    assert torch.isfinite(results["grad_v"]).all()
    rows = torch.arange(40) != 5
    assert torch.isfinite(results["grad_k"][rows]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_of_other_layouts(dtype: torch.dtype) -> None:
    """They are copied: transposed, misaligned, every second row."""
    case = Case(dtype, 72, 64)
    expected = forward(case)
    expected |= backward(case, expected["attn"])

    def moved(t: Tensor) -> Tensor:
        return torch.cat((t.flatten()[:1], t.flatten()))[1:].view(t.shape)

    case.q, case.k, case.v = case.q.t().contiguous().t(), moved(case.k), case.v.repeat_interleave(2, 0)[::2]
    case.grad_output = moved(case.grad_output)
    results = forward(case)
    results |= backward(case, moved(expected["attn"]))
    for name, result in results.items():
        assert torch.equal(result, expected[name]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_comes_out(dtype: torch.dtype) -> None:
    case = Case(dtype, 24, 64)
    case.q[7, 2] = float("nan")
    results = forward(case)
    nan_rows = torch.zeros(24, dtype=torch.bool)
    nan_rows[7] = True
    assert torch.equal(results["attn"].isnan().any(1), nan_rows)
    assert torch.equal(results["output"].isnan().any(1), nan_rows)


def test_kernels_take_the_sizes_that_they_win() -> None:
    """On the device nowhere below 0.97."""

    def by_kernels(result: Result) -> bool:
        kinds = [False, True] if result["kind"] == "both" else [result["kind"] == "backward"]
        size = (result["n"], result["d"], result["d"])
        return all(TILES.takes(getattr(torch, result["dtype"]), *size, backward) for backward in kinds)

    results = [result for _, record in records() for result in record["results"]]
    assert {True, False} == {by_kernels(result) for result in results}
    for result in results:
        assert by_kernels(result) == result["kernels"], result
        if result["kernels"]:
            calls, device = result["calls_speedup"], speedup(result)
            assert calls is None or calls >= 0.97, result
            assert device is None or device >= 0.97, result


def test_the_figures_beside_the_rule_are_those_of_the_results() -> None:
    header = RULE_FILE.read_text()
    found = [record for _, record in records()]
    assert rule(found) in header and with_rule(header, found) == header, "run `python -m bench.attn.gpu.report`"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_limits_of_what_kernels_take(dtype: torch.dtype) -> None:
    for backward in (False, True):
        assert not any(TILES.takes(dtype, n, 64, 64, backward) for n in (0, 1, 60, 9004))
        assert not any(
            TILES.takes(dtype, 9000, d, e, backward) for d, e in [(64, 128), (128, 64), (32, 32), (256, 256)]
        )
        assert not any(TILES.takes(wide, 9000, 64, 64, backward) for wide in (torch.float32, torch.float64))
    for d, backward, least in (64, False, 3000), (128, False, 4096), (64, True, 3000):
        assert [TILES.takes(dtype, n, d, d, backward) for n in (least - 8, least)] == [False, True]
    assert not any(TILES.takes(dtype, n, 128, 128, True) for n in (3000, 4096, 32768))
