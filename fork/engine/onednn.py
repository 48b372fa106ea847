"""The two headers that oneDNN's build makes of templates, as PyTorch's build does, for a wheel that lacks them."""

from __future__ import annotations

import re
from pathlib import Path

from fork.engine.base import Base
from fork.engine.tree import write

FOLDER = "oneapi/dnnl"
# PyTorch builds oneDNN with OpenMP, for the CPU alone, and with its products by blocks.
SET = {
    "DNNL_CPU_THREADING_RUNTIME": "OMP",
    "DNNL_CPU_RUNTIME": "OMP",
    "DNNL_GPU_RUNTIME": "NONE",
    "DNNL_EXPERIMENTAL_UKERNEL": "",
    "BUILD_TRAINING": "1",
    "BUILD_PRIMITIVE_ALL": "1",
    "BUILD_PRIMITIVE_CPU_ISA_ALL": "1",
    "BUILD_GEMM_KERNELS_ALL": "1",
}
DEFINED = re.compile(r"^#cmakedefine(01)? (\w+)(.*)$", re.MULTILINE)


def headers(base: Base, submodule: Path, work: Path) -> list[Path]:
    """The folder with the headers; none where the wheel has them, or the checkout lacks the submodule."""
    templates = sorted((submodule / "include" / FOLDER).glob("dnnl_*.h.in"))
    if (base.torch / "include" / FOLDER).is_dir() or not templates:
        return []
    version = re.search(r"MKL-DNN v(\d+)\.(\d+)\.(\d+) \(Git Hash (\w+)\)", base.probe.config)
    values = dict(zip(("MAJOR", "MINOR", "PATCH", "HASH"), version.groups())) if version else {}
    known = SET | {f"DNNL_VERSION_{name}": value for name, value in values.items()}
    for template in templates:
        text = DEFINED.sub(_defined, template.read_text())
        text = re.sub(r"[$@]\{?(\w+)[@}]", lambda found: known.get(found[1], found[0]), text)
        write(work / "onednn", f"{FOLDER}/{template.stem}", text)
    return [work / "onednn"]


def _defined(found: re.Match[str]) -> str:
    """One line of a template, as CMake's configure_file writes it."""
    always, name, rest = found.groups()
    if always:
        return f"#define {name} {SET.get(name, '0')}"
    return f"#define {name}{rest}" if name in SET else f"/* #undef {name} */"
