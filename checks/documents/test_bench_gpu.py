"""The benchmark of the GPU: tables show what the results hold, and gpu.sh refuses a machine that cannot serve."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.attn.gpu import report
from bench.attn.reference import composition, runs_kernels
from checks import ROOT
from fork.errors import ForkError


def test_tables_are_those_of_the_results() -> None:
    found = report.records()
    assert found
    for folder, record in found:
        assert (folder / "tables.md").read_text() == report.document(record), "run `python -m bench.attn.gpu.report`"


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
    assert len(commands) == 5
    for command in commands:
        words = [sys.executable, "-m", *re.sub("[\"';]", " ", command).split()]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert (done.returncode, done.stderr) == (1, "bench: torch finds no GPU on this machine\n"), command


def test_wrong_input_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="results.json is missing: `bash bench/attn/gpu.sh bench` makes it"):
        report.taken(tmp_path)
    command = [sys.executable, "-m", "bench.attn.gpu", "--n", "8y"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "invalid size value: '8y'" in done.stderr and "Traceback" not in done.stderr


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
