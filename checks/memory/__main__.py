"""`python -m checks.memory`: measures the kernels' scratch by threads, and fills it into the descriptions."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.cpu import report
from bench.cpu.record import commit, kernels
from checks import ROOT
from checks.built import built
from fork.arguments import Parser, status
from fork.engine.fork import environment
from fork.errors import ForkError


def guarded(folder: Path) -> dict[str, str]:
    """The environment in which the last PR's fork runs with the guarding allocator, which is built in the folder."""
    library = folder / "libguard.so"
    source = ROOT / "checks/memory/guard.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True)
    return environment(built(), Path(sys.executable)) | {"LD_PRELOAD": str(library), "OMP_WAIT_POLICY": "passive"}


def run(variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "checks.memory.programs", *words]
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)


def main() -> None:
    Parser(prog="python -m checks.memory", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Of the kernels, also where the rule would compose on this processor.
        done = run(guarded(Path(folder)) | {"TORCH_ATTN_KERNELS": "1"}, "peaks")
    if done.returncode:
        raise ForkError(f"the peaks could not be measured: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
    head = json.dumps({"commit": commit(), "kernels": kernels("cpu")})
    lines = ",\n".join(done.stdout.splitlines())
    report.SCRATCH.write_text(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')
    report.rewrite()


if __name__ == "__main__":
    sys.exit(status("checks.memory", main))
