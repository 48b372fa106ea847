"""The benchmark of the GPU: tables show what the results hold, and gpu.sh refuses a machine that cannot serve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.attn.gpu import report
from bench.attn.gpu.__main__ import Shape, calls
from bench.attn.reference import composition, runs_kernels
from checks import ROOT
from fork.errors import ForkError


def test_tables_are_those_of_the_results() -> None:
    """No GPU has run the present kernels yet, so there may be none."""
    for folder, record in report.records():
        assert (folder / "tables.md").read_text() == report.document(record), "run `python -m bench.attn.gpu.report`"


def test_a_run_is_kept_with_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"composition": 30.0, "compiled": 20.0, "Triton": 12.0, "torch.attn": 10.0}
    result = {"dtype": "bfloat16", "heads": 8, "m": 16, "n": 4096, "d": 64, "kind": "forward", "kernels": True}
    result |= {"device": times, "calls": {"composition": 50.0, "torch.attn": 20.0}}
    whole = {
        "device": "NVIDIA H100 80GB HBM3",
        "torch": "2.13.0",
        "commit": "1234567",
        "kernels": "a",
        "results": [result],
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results/results.json").write_text(json.dumps(whole))
    monkeypatch.setattr(report, "FOLDERS", tmp_path)
    place = report.taken(tmp_path)
    assert place.name == "nvidia-h100"
    assert (place, whole) in report.records()
    row = "| 8 | 16 | 4096 | 64 | kernels | 30 | 20 |  | 12 | 10 | 3.00x | 2.50x | 2.50x |  |"
    assert report.document(whole).endswith(row + "  |" * len(report.COLUMNS) + "\n")


def test_what_is_timed_is_what_a_layer_takes() -> None:
    """Heads in, and out gradients as the layer before needs them."""
    shape = Shape(heads=8, m=5, n=7, d=64)
    seen = []

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((q.shape, k.shape, q.transpose(1, 2).is_contiguous() and v.transpose(1, 2).is_contiguous()))
        return composition(q, k, v)[0]

    made: dict[str, Any] = calls(function, shape, torch.float32, "cpu")
    assert seen[0] == ((2, 4, 5, 64), (2, 4, 7, 64), True)
    assert made["forward"]().shape == (2, 4, 5, 64)
    for _ in range(2):
        grads = made["backward"]()
        assert [grad.shape for grad in grads] == [(2, 5, 4, 64), (2, 7, 4, 64), (2, 7, 4, 64)]
        assert all(grad.is_contiguous() for grad in grads)


@pytest.mark.parametrize(
    "gpu, sentence",
    [
        (None, "this machine has no NVIDIA GPU: nvidia-smi was not found"),
        ("No devices were found", 'no NVIDIA GPU answers: nvidia-smi says "No devices were found"'),
        ("Tesla T4, 7.5, 15360, 0, 0", "the Tesla T4 has compute capability 7.5, and the kernels need 8.0 or later"),
        ("A2, 8.6, 15356, 3, 0", "the A2 has 15353 MiB of free memory, and 16000 are needed: end what uses it"),
        ("A100, 8.0, 40960, 900, 97", "the A100 is busy (97 % of the last second): wait until nothing else uses it"),
    ],
)
def test_a_machine_that_cannot_serve_gets_one_sentence(tmp_path: Path, gpu: str | None, sentence: str) -> None:
    done = script(tmp_path, gpu)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gpu.sh: {sentence}\n")
    assert not (tmp_path / "out").exists()


def test_programs_know_the_options_that_the_script_gives_them() -> None:
    """Without a GPU each says only that there is none."""
    text = (ROOT / "bench/attn/gpu.sh").read_text()
    commands = re.findall(r"python -m (bench\.attn\.gpu[\w.]*(?: --\w+(?: \S+)?)*)", text)
    assert len(commands) == 4
    for command in commands:
        words = [sys.executable, "-m", *re.sub(r"[\"';]", " ", re.sub(r"\$\w+", "1", command)).split()]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert (done.returncode, done.stderr) == (1, "bench: torch finds no GPU on this machine\n"), command


def test_wrong_input_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="results.json is missing: `bash bench/attn/gpu.sh bench` makes it"):
        report.taken(tmp_path)
    command = [sys.executable, "-m", "bench.attn.gpu", "--d", "96"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "invalid choice: 96" in done.stderr and "Traceback" not in done.stderr


def script(folder: Path, gpu: str | None) -> subprocess.CompletedProcess[str]:
    """Runs gpu.sh with a stand-in for nvidia-smi, or without one, and with a Python that fails."""
    tools = folder / "tools"
    tools.mkdir()
    programs = {"python": "#!/bin/sh\nexit 3\n"}
    if gpu is not None:
        programs["nvidia-smi"] = f"#!/bin/sh\necho '{gpu}'\n"
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHON": str(tools / "python"), "OUT": str(folder / "out")}
    command = ["bash", str(ROOT / "bench/attn/gpu.sh")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_products_tell_composition_from_kernels() -> None:
    """bench.attn.gpu and its run for the sanitizer ask so whether kernels ran."""
    q = torch.ones(3, 2)
    assert not runs_kernels(lambda: composition(q, q, q))
    assert runs_kernels(lambda: torch.tanh(q))
