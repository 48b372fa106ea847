"""The headers of other projects, of the checkout's submodules: as they lie there, and as their build makes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from fork import process
from fork.checkout.git import Checkout
from fork.engine.wheel.base import Base
from fork.engine.wheel.disk import write
from fork.tree import TOPS

# Where headers lie that are not in `third_party/NAME/include`.
FOLDERS = (
    "fbgemm/third_party/asmjit/src",
    "ideep/mkl-dnn/include",
    "kineto/libkineto/include",
    "kineto/libkineto/src",
    "protobuf/src",
    "gloo",
    "onnx",
    "tensorpipe",
    "tensorpipe/third_party/libuv/include",
    "eigen",
    "miniz-3.0.2",
    "opentelemetry-cpp/api/include",
    "cpp-httplib",
    "valgrind-headers",
)
# The submodule that has a header, by how its name begins, where the submodule is called otherwise.
OWNERS = {
    "oneapi": "ideep",
    "dnnl": "ideep",
    "libkineto": "kineto",
    "ApproximateClock": "kineto",
    "asmjit": "fbgemm",
    "google": "protobuf",
    "Eigen": "eigen",
    "httplib": "cpp-httplib",
    "uv": "tensorpipe",
}
# What brings a header that no submodule has, by how its name begins.
PACKAGES = {
    r"mkl\w*": "`pip install mkl-include`",
    "crt": "`pip install nvidia-cuda-crt`, or `nvidia-cuda-nvcc-cu12` with CUDA 12,",
    "nv|cub|thrust|cuda": "`pip install nvidia-cuda-cccl`, or `nvidia-cuda-cccl-cu12` with CUDA 12,",
}


# The headers that a project's CMake makes of templates: the project below third_party, the folder there from which they
# are included, and the templates. Versions come from the project's own CMakeLists.txt.
MADE = (("ideep/mkl-dnn", "include", "oneapi/dnnl/dnnl_*.h.in"), ("gloo", "", "gloo/config.h.in"))
# What PyTorch's build sets for them: oneDNN with OpenMP, for the CPU alone, and with its products by blocks.
GIVEN = {
    "DNNL_CPU_THREADING_RUNTIME": "OMP",
    "DNNL_CPU_RUNTIME": "OMP",
    "DNNL_GPU_RUNTIME": "NONE",
    "DNNL_EXPERIMENTAL_UKERNEL": "",
    "BUILD_TRAINING": "1",
    "BUILD_PRIMITIVE_ALL": "1",
    "BUILD_PRIMITIVE_CPU_ISA_ALL": "1",
    "BUILD_GEMM_KERNELS_ALL": "1",
    "GLOO_HAVE_TRANSPORT_TCP": "1",
}
DEFINED = re.compile(r"^#cmakedefine(01)? (\w+)(.*)$", re.MULTILINE)


def behind(base: Base, checkout: Path, work: Path, device: Sequence[Path]) -> list[Path]:
    """Where headers lie that a wheel lacks, each found behind all of the wheel's: the checkout's own come first."""
    return [checkout / "aten/src", checkout, *includes(base, checkout, work), *device, base.torch / "include/kineto"]


def includes(base: Base, checkout: Path, work: Path) -> list[Path]:
    """The folders of their headers, as far as the checkout has its submodules, and pip has brought those of MKL."""
    top = checkout / "third_party"
    written = [_make(base, top / project, folder, templates, work / "made") for project, folder, templates in MADE]
    made = [work / "made"] if any(written) else []
    numpy = (base.site / "numpy/_core/include", base.site / "numpy/core/include")
    brought = base.site.parents[2] / "include"
    own = (*(checkout / top for top in TOPS), checkout / "torch/csrc", *numpy, brought)
    plain = (*sorted(top.glob("*/include")), *(top / name for name in FOLDERS), top, *own)
    return [*made, *(folder for folder in plain if folder.is_dir())]


def advice(checkout: Path, header: str) -> str:
    """What brings a header that the compiler did not find: a submodule, or a package; nothing where nobody knows."""
    name = re.split(r"[/.]", header)[0]
    if package := next((what for names, what in PACKAGES.items() if re.fullmatch(names, name)), None):
        return f"{package} brings it"
    top = checkout / "third_party"
    owner = OWNERS.get(name, name).lower()
    found = [path for path in top.glob("*") if path.is_dir() and path.name.lower() == owner]
    if not found:
        return ""
    if any(found[0].iterdir()):
        return f"third_party/{found[0].name} lacks it: `git submodule update --recursive third_party/{found[0].name}`"
    return f"`git submodule update --init --recursive third_party/{found[0].name}` brings it"


def unlike(checkout: Checkout, release: str, files: Iterable[str]) -> list[str]:
    """What to say of each submodule of these files that stands at another commit than the release's."""
    top = checkout.path / "third_party"
    names = {PurePath(file).relative_to(top).parts[0] for file in files if PurePath(file).is_relative_to(top)}
    found: list[str] = []
    for name in sorted(name for name in names if (top / name / ".git").exists()):
        own = process.run(["git", "-C", top / name, "rev-parse", "HEAD"], f"{top / name} has no commit").strip()
        _, kind, wanted, *_ = [*checkout.git("ls-tree", release, f"third_party/{name}").split(), "", "", ""]
        if kind == "commit" and wanted != own:
            mend = f"git -C {shlex.quote(str(top / name))} checkout {wanted[:10]}"
            found.append(
                f"third_party/{name} is at {own[:10]}, and the release was built with {wanted[:10]}, where types may "
                f"have other fields, and a process then writes over foreign memory: `{mend}`"
            )
    return found


def _make(base: Base, project: Path, folder: str, templates: str, out: Path) -> bool:
    """Writes the headers of one project; not where the wheel has them, or the checkout lacks the submodule."""
    known = _versions(base, project) | GIVEN
    top = project / folder
    made = {str(file.relative_to(top).with_suffix("")): file for file in sorted(top.glob(templates))}
    if any((base.torch / "include" / name).is_file() for name in made):
        return False
    for name, template in made.items():
        text = DEFINED.sub(_defined, template.read_text())
        write(out, name, re.sub(r"[$@]\{?(\w+)[@}]", lambda found: known.get(found[1], found[0]), text))
    return bool(made)


def _versions(base: Base, project: Path) -> dict[str, str]:
    """What a project's CMakeLists.txt sets in plain words; of oneDNN, the version that the base tells."""
    lists = project / "CMakeLists.txt"
    text = lists.read_text() if lists.is_file() else ""
    found: dict[str, str] = dict(re.findall(r'^\s*set\((\w+) "?([\w.]+)"?\)', text, re.MULTILINE | re.IGNORECASE))
    told = re.search(r"MKL-DNN v(\d+)\.(\d+)\.(\d+) \(Git Hash (\w+)\)", base.probe.config)
    own = zip(("MAJOR", "MINOR", "PATCH", "HASH"), told.groups()) if told else ()
    return {**found, **{f"DNNL_VERSION_{name}": value for name, value in own}}


def _defined(found: re.Match[str]) -> str:
    """One line of a template, as CMake's configure_file writes it."""
    always, name, rest = found.groups()
    if always:
        return f"#define {name} {GIVEN.get(name, '0')}"
    return f"#define {name}{rest}" if name in GIVEN else f"/* #undef {name} */"
