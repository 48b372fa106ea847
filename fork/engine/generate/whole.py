"""Runs PyTorch's own generators as its build does, on whole lists; a script, since it imports a torch's torchgen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torchgen

PACKAGED = Path(torchgen.__file__).parent / "packaged"
SHIM = "torch/csrc/inductor/aoti_torch/generated"


def main(lists: Path, out: Path, part: str) -> None:
    """Writes what a build would, by its path in PyTorch, below `out`; `lists` has the yaml files."""
    source = out / "source"
    shutil.copytree(PACKAGED / "ATen", source)
    shutil.copytree(PACKAGED / "autograd/templates", source / "autograd/templates")
    for file in (PACKAGED / "autograd").glob("*.yaml"):
        shutil.copy(file, source / "autograd")
    for name, folder in (("native_functions", "native"), ("derivatives", "autograd")):
        shutil.copy(lists / f"{name}.yaml", source / folder)
    (aten if part == "aten" else autograd)(source, out)
    shutil.rmtree(source)


def aten(source: Path, out: Path) -> None:
    """What registers and calls operators, and AOTInductor's functions for them."""
    made = out / "aten/src/ATen"
    made.mkdir(parents=True)
    words = ["-s", str(source), "-d", str(made), "--aoti-install-dir", str(out / SHIM), "--per-operator-headers"]
    done = subprocess.run([sys.executable, "-m", "torchgen.gen", *words], capture_output=True, text=True, cwd=source)
    if done.returncode:
        sys.exit(done.stderr)


def autograd(source: Path, out: Path) -> None:
    """Nodes, kernels for autograd and tracing, and Python's bindings."""
    from torchgen.packaged.autograd.gen_annotated_fn_args import gen_annotated
    from torchgen.packaged.autograd.gen_autograd import gen_autograd, gen_autograd_python
    from torchgen.selective_build.selector import SelectiveBuilder

    made, listed = out / "torch/csrc/autograd/generated", out / "torch/testing/_internal/generated"
    for folder in (made, listed):
        folder.mkdir(parents=True)
    native, tags = (str(source / "native" / name) for name in ("native_functions.yaml", "tags.yaml"))
    gen_autograd(native, tags, str(made), str(source / "autograd"), SelectiveBuilder.get_nop_selector())
    gen_autograd_python(native, tags, str(made), str(source / "autograd"))
    gen_annotated(native, tags, str(listed), str(source / "autograd"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).absolute(), sys.argv[3])
