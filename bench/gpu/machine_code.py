"""`python -m bench.gpu.machine_code`: the kernels' instructions, in the commit that a GPU ran and here.

It compiles the bfloat16 kernels of both for compute capability 9.0. A kernel whose numbers differ is not the one that
was measured. Where they are equal, its products, loads and functions still are.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from bench.gpu.report import FOLDERS, ROOT, row
from fork import process
from fork.arguments import Parser, status
from fork.engine.compile import toolchain
from fork.engine.wheel import base as bases
from fork.errors import ForkError

SOURCES = "aten/src/ATen/native/cuda"
# Products on tensor cores, loads of their operands from shared memory, tanh
COUNTED = {"HMMA": "products", "LDSM": "loads of operands", "MUFU": "tanh"}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w+)")
KERNEL = re.compile(r"(forward|backward_\w+)<c10::BFloat16(?:, (\d+))?>$")

Counts = dict[str, int]


def cuobjdump() -> str | None:
    """The toolkit's, or the one that Triton brings with a CUDA build of torch."""
    beside = bases.installed().site / "triton/backends/nvidia/bin/cuobjdump"
    return shutil.which("cuobjdump") or (str(beside) if beside.is_file() else None)


def inspected(file: Path, *options: str) -> str:
    """cuobjdump's output with readable names, or ForkError."""
    tool = cuobjdump()
    if tool is None:
        raise ForkError("cuobjdump is neither on the path nor with Triton: `pip install nvidia-cuda-cuobjdump` has it")
    said = process.run([tool, *options, file], f"cuobjdump cannot read {file}")
    names = subprocess.run(["c++filt"], input=said, capture_output=True, text=True, check=True).stdout
    return names.replace("at::native::attn_fused::", "").replace("> >", ">>")


def functions(file: Path, *options: str) -> dict[str, str]:
    """The listing of every kernel."""
    said = inspected(file, "-sass", *options)
    return dict(re.findall(r"Function : (?:void )?([^\n(]*)[^\n]*\n(.*?)(?=\n\s*Function :|\Z)", said, re.S))


def compiled(tree: Path, binary: Path) -> Path:
    """The bfloat16 kernels of a tree."""
    base = bases.installed()
    nvcc = toolchain.compiler(base)
    if nvcc is None:
        raise ForkError("nvcc was not found: install the CUDA toolkit, or set CUDACXX")
    options = ["-cubin", "-arch=sm_90", "-O3", "-std=c++20", "--expt-relaxed-constexpr"]
    folders = [f"-I{x}" for x in (tree / "aten/src", base.site / "torch/include")]
    source = tree / SOURCES / "AttnBFloat16.cu"
    process.run([nvcc, *options, *folders, "-o", binary, source], f"nvcc cannot compile {source}")
    return binary


def counted(binary: Path) -> dict[str, Counts]:
    """The registers of each kernel, how many instructions it has, and those that count."""
    usage = dict(re.findall(r"Function (?:void )?([^\n(]*)[^\n]*\n\s*REG:(\d+)", inspected(binary, "-res-usage")))
    result = {}
    for name, listing in functions(binary).items():
        if found := KERNEL.match(name):
            all_of_it = INSTRUCTION.findall(listing)
            counts = {x: all_of_it.count(x) for x in COUNTED}
            key = f"{found[1]}, {found[2] or 64} columns"
            result[key] = {"registers": int(usage[name]), **counts, "all": len(all_of_it)}
    return result


def measured_commit() -> str:
    """The commit whose kernels the GPU's record is of."""
    results = json.loads((FOLDERS / "nvidia-h100/results.json").read_text())["results"]
    (commit,) = {r["commit"] for r in results}
    return str(commit)


def compare() -> dict[str, dict[str, Counts]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, commit = Path(temporary), measured_commit()
        command = ["git", "-C", str(ROOT), "archive", commit, SOURCES]
        archive = subprocess.run(command, capture_output=True)
        if archive.returncode:
            raise ForkError(f"git has no commit {commit}: fetch all of the history")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as sources:
            sources.extractall(folder / "then")
        then = counted(compiled(folder / "then", folder / "then.cubin"))
        return {commit: then, "here": counted(compiled(ROOT, folder / "here.cubin"))}


def table(record: dict[str, dict[str, Counts]]) -> str:
    """Each number in the measured commit and here."""
    then, here = record.values()
    text = row(["kernel", "registers", *COUNTED.values(), "all instructions"]) + row(["---"] * (len(COUNTED) + 3))
    for kernel in sorted(here):
        pairs = [(then[kernel][x], here[kernel][x]) for x in ("registers", *COUNTED, "all")]
        text += row([kernel, *(f"{a}" if a == b else f"{a}, now {b}" for a, b in pairs)])
    return text


def main() -> None:
    Parser(prog="python -m bench.gpu.machine_code", description=__doc__).parse_args()
    print(table(compare()), end="")


if __name__ == "__main__":
    sys.exit(status("bench.gpu.machine_code", main))
