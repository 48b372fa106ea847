"""Which CUDA kernels have the machine code of another commit: `python -m checks.cuda.code 2a651a8`.

It compiles the sources of both states with nvcc for 8.0 and 9.0. A kernel has the same code if all instructions are
equal with their encodings, but for where its arguments lie: these are numbered in the order of their addresses.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch

from checks import ROOT
from fork.arguments import Parser, status
from fork.engine import base as bases
from fork.engine import toolchain

SOURCES = "aten/src/ATen/native/cuda"
ARCHITECTURES = (80, 90)
# The fork's options that can change code.
OPTIONS = (
    *("-cubin", "-O3", "-DNDEBUG", "-std=c++20", "--expt-relaxed-constexpr", "--expt-extended-lambda"),
    *(f"-D__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")),
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
)


def cuobjdump() -> str | None:
    """The toolkit's, or the one that Triton brings with a CUDA build of torch."""
    beside = bases.installed().site / "triton/backends/nvidia/bin/cuobjdump"
    return shutil.which("cuobjdump") or (str(beside) if beside.is_file() else None)


def inspected(file: Path, *options: str) -> str:
    """cuobjdump's output with readable names."""
    tool = cuobjdump()
    if tool is None:
        sys.exit("cuobjdump is neither on the path nor with Triton: `pip install nvidia-cuda-cuobjdump` has it")
    said = subprocess.run([tool, *options, file], capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"cuobjdump cannot read {file}: {said.stderr.strip()}")
    names = subprocess.run(["c++filt"], input=said.stdout, capture_output=True, text=True, check=True).stdout
    return names.replace("at::native::attn_fused::", "").replace("> >", ">>")


def functions(file: Path, *options: str) -> dict[str, str]:
    """The listing of every kernel."""
    said = inspected(file, "-sass", *options)
    return dict(re.findall(r"Function : (?:void )?([^\n(]*)[^\n]*\n(.*?)(?=\n\s*Function :|\Z)", said, re.S))


def instructions(listing: str) -> tuple[str, ...]:
    """Every instruction with its encoding; of one that reads an argument, the half without the argument's address."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* (0x\w+) \*/\s*/\* (0x\w+) \*/", listing)
    addresses = sorted({int(a, 16) for _, text, *_ in lines for a in re.findall(r"c\[0x0\]\[(0x\w+)\]", text)})
    number = {address: f"argument {i}" for i, address in enumerate(addresses)}
    found = []
    for place, text, first, second in lines:
        plain = re.sub(r"c\[0x0\]\[(0x\w+)\]", lambda match: number[int(match[1], 16)], text)
        found.append(f"{place} {plain} {first if plain == text else ''} {second}")
    return tuple(found)


def sources(commit: str | None, folder: Path) -> Path:
    """The folder with the CUDA sources of a commit, or of the files as they lie here."""
    if commit is None:
        return ROOT / SOURCES
    command = ["git", "-C", str(ROOT), "archive", commit, SOURCES]
    packed = subprocess.run(command, capture_output=True)
    if packed.returncode:
        sys.exit(f"git has no CUDA sources of {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / SOURCES


def compiled(source: Path, architecture: int, folder: Path) -> dict[str, tuple[str, ...]]:
    """The instructions of every kernel of one source."""
    nvcc = toolchain.compiler(bases.installed())
    if nvcc is None:
        sys.exit("nvcc was not found: install the CUDA toolkit or `pip install nvidia-cuda-nvcc`, or set CUDACXX")
    cubin = folder / f"{source.stem}.{architecture}.cubin"
    includes = [f"-I{path}" for path in (source.parents[3], Path(torch.__file__).parent / "include")]
    command = [str(nvcc), *OPTIONS, f"-arch=sm_{architecture}", *includes, str(source), "-o", str(cubin)]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"nvcc cannot compile {source}:\n{said.stderr}")
    return {name: instructions(listing) for name, listing in functions(cubin).items()}


def main() -> int:
    parser = Parser(prog="python -m checks.cuda.code", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", help="the commit to compare with")
    parser.add_argument("after", nargs="?", help="another commit; the files as they lie here if none is given")
    options = parser.parse_args()
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        states = []
        for name, commit in (("before", options.before), ("after", options.after)):
            (Path(folder) / name).mkdir()
            states.append(sources(commit, Path(folder) / name))
        for source in sorted(file.name for file in states[1].glob("Attn*.cu")):
            for architecture in ARCHITECTURES:
                before, after = (compiled(s / source, architecture, Path(folder)) for s in states)
                known = {code: name for name, code in before.items()}
                for name, code in sorted(after.items()):
                    differ += code not in known
                    verdict = f"is {known[code]}" if code in known else "DIFFERS from every kernel"
                    print(f"sm_{architecture} {name}: {len(code)} instructions, {verdict}", flush=True)
    print(f"{differ} kernels differ" if differ else "every kernel has the machine code of one before")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(status("checks.cuda.code", main))
