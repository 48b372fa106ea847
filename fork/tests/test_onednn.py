"""oneDNN's generated headers, for a wheel that lacks them."""

from __future__ import annotations

from pathlib import Path

from fork.engine import onednn
from fork.engine.base import Base, Probe
from fork.tests.helpers import write

TEMPLATES = {
    "dnnl_config.h": "#cmakedefine DNNL_CPU_RUNTIME DNNL_RUNTIME_${DNNL_CPU_RUNTIME}\n#cmakedefine DNNL_WITH_SYCL\n"
    "#cmakedefine01 BUILD_TRAINING\n#cmakedefine01 BUILD_SUM\n",
    "dnnl_version.h": "#define DNNL_VERSION_MAJOR @DNNL_VERSION_MAJOR@\n"
    '#define DNNL_VERSION_HASH "@DNNL_VERSION_HASH@"\n',
}


def test_headers_of_templates(tmp_path: Path) -> None:
    base = Base(Path("python"), tmp_path / "site", "2.13.0", tmp_path / "info")
    config = "  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d263e6)\n"
    base.__dict__["probe"] = Probe("/usr/include", ".so", [], "", config, "")
    assert onednn.headers(base, tmp_path / "none", tmp_path / "work") == []
    write(tmp_path / "dnn/include/oneapi/dnnl", {f"{name}.in": text for name, text in TEMPLATES.items()})
    (folder,) = onednn.headers(base, tmp_path / "dnn", tmp_path / "work")
    made = {name: (folder / "oneapi/dnnl" / name).read_text() for name in TEMPLATES}
    assert made == {
        "dnnl_config.h": "#define DNNL_CPU_RUNTIME DNNL_RUNTIME_OMP\n/* #undef DNNL_WITH_SYCL */\n"
        "#define BUILD_TRAINING 1\n#define BUILD_SUM 0\n",
        "dnnl_version.h": '#define DNNL_VERSION_MAJOR 3\n#define DNNL_VERSION_HASH "8d263e6"\n',
    }
    write(base.torch, {"include/oneapi/dnnl/dnnl_config.h": ""})
    assert onednn.headers(base, tmp_path / "dnn", tmp_path / "work") == []
