"""What a path of PyTorch's tree is, and what a build for a wheel does with a change there: the one place that knows.

The table in the guide is made of this.
"""

from __future__ import annotations

import re
from enum import Enum

SOURCES, KERNEL, HEADERS = (".cpp", ".cc", ".c"), ".cu", (".h", ".hpp", ".cuh")
# What the libraries of a wheel are made of; templates of generated sources lie among it.
FOLDERS = ("aten/src/", "c10/", "torch/csrc/", "torch/nativert/", "torch/headeronly/", "caffe2/")
LIBRARIES = (*FOLDERS, "torch/library.h", "torch/custom_class.h", "torch/custom_class_detail.h")
# Folders of headers that are included by their names from there.
QNNPACK = "aten/src/ATen/native/quantized/cpu/qnnpack"
TOPS = ("torch/csrc/api/include", f"{QNNPACK}/include", f"{QNNPACK}/src")


# Of a path without a kind.
OF_NO_KIND = "is of no kind that the tool knows, so nobody knows whether it would run: take its change back"


class Fate(Enum):
    """What becomes of a changed file."""

    COMPILED = "compiled"
    INSTALLED = "installed"
    LEFT_OUT = "left out"
    REFUSED = "refused"


class Kind(Enum):
    """A kind of path: what such a file is, its fate, and how or why."""

    OPERATORS = (
        "list of operators or formulas",
        Fate.COMPILED,
        "what PyTorch's generators make of the changed entries, and installed",
    )
    SOURCE = (
        "C++ or C source",
        Fate.COMPILED,
        "and whoever calls the base's is led to it; left out where no library has it",
    )
    KERNEL = "source for the GPU", Fate.COMPILED, "by the wheel's release of nvcc; needs `--cuda on` or a GPU's wheel"
    HEADER = "C++ header", Fate.COMPILED, "the sources that include it and name what differs, and installed"
    PYTHON = "Python", Fate.INSTALLED, "in the place of the wheel's; left out where the wheel has none such"
    DATA = "other file beside Python", Fate.INSTALLED, "where the wheel has it, or its like beside it; else left out"
    INPUT = (
        "program, template or other list of PyTorch's generators",
        Fate.COMPILED,
        "what they write otherwise, and installed",
    )
    PROGRAM = "program of another generator", Fate.INSTALLED, "while what it has written for the wheel stays as it is"
    TEMPLATE = "list or template of another generator", Fate.REFUSED, "is generated from: take its change back"
    FIXED = "source of another library", Fate.REFUSED, "is compiled into what is not made again: take its change back"
    WRITER = "what writes stubs and the like", Fate.LEFT_OUT, "the wheel has what was written with it for the release"
    SETTING = "setting of PyTorch's build", Fate.LEFT_OUT, "the wheel is built already, by the release's"
    PLATFORM = "code of another platform", Fate.LEFT_OUT, "no wheel for Linux has it"
    TEST = "test", Fate.LEFT_OUT, "a wheel has no tests; `run` takes those in Python from the checkout"
    OUTSIDE = "anything else", Fate.LEFT_OUT, "a wheel has nothing of it"

    def __init__(self, what: str, fate: Fate, says: str) -> None:
        self.what = what
        self.fate = fate
        self.says = says


CODE = f"(?:{'|'.join(FOLDERS)})"
COMPILED = r"(?:c|cc|cpp|cu|h|hpp|cuh)$"
AROUND = r"(?:README|LICENSE|[\w.-]*\.(?:md|rst|gitignore|sh|bat|patch|ipynb|clang-(?:tidy|format)|sup|imp|json))$"
# The first pattern that a path matches from its begin tells its kind.
RULES: tuple[tuple[Kind, str], ...] = (
    (Kind.OPERATORS, r"aten/src/ATen/native/native_functions\.yaml$|tools/autograd/derivatives\.yaml$"),
    (Kind.FIXED, rf"third_party/.*\.{COMPILED}"),
    (Kind.SETTING, r"third_party/|cmake/|\w[\w-]*\.(?:bzl|bazel|oss|in)$|requirements[\w.-]*\.txt$"),
    (Kind.SETTING, r"(?:WORKSPACE|pyproject\.toml|setup\.py|version\.txt|CMakeLists\.txt)$"),
    (Kind.SETTING, r"tools/(?:setup_helpers|build_defs|rules|config|bazel_tools|rules_cc)/"),
    (Kind.OUTSIDE, r"\.|[^/]+$|(?!(?:aten|c10|caffe2|torch|torchgen|functorch|tools|test|android|ios)/)"),
    (Kind.OUTSIDE, r"tools/onnx/"),
    (Kind.TEST, r"test/|tools/test/"),
    (Kind.PLATFORM, r"(?:android|ios|torch/lib/libshm_windows)/|.*\.(?:mm|metal|glsl|hip|S|java|gradle)$"),
    (Kind.PLATFORM, rf"{CODE}(?:.*/)?(?:hip|vulkan|metal|mps)/.*\.(?:yaml|txt|sh|hpp|h\.in)$"),
    (Kind.TEST, rf"(?:{CODE}|functorch/)(?:.*/)?(?:tests?|benchmarks?|bench)/"),
    (Kind.TEST, rf"{CODE}.*(?:_test|/CUDATest)\.(?:cpp|cc|cu)$"),
    (Kind.SETTING, r".*(?:\.(?:cmake|bzl|bazel|oss|BUILD|lds|h\.in|cmake\.in|py\.tpl)|CMakeLists\.txt|/BUILD)$"),
    (Kind.INPUT, r"(?:aten/src/ATen|tools/autograd)/templates/"),
    (Kind.WRITER, rf"tools/pyi/|.*\.pyi?\.in$|{CODE}.*(?:gen|configure)[^/]*\.py$"),
    (
        Kind.PROGRAM,
        r"tools/jit/.*\.py$|torchgen/(?:[\w/]*(?:lazy|backend_stubs|static_runtime|selective_build|executorch))",
    ),
    (Kind.PROGRAM, r"torchgen/(?:_autoheuristic|decompositions|fuse|operator_versions|shape_functions)/.*\.py$"),
    (Kind.INPUT, r"torchgen/.*\.py$|tools/autograd/.*\.py$"),
    (Kind.INPUT, r"aten/src/ATen/native/tags\.yaml$|tools/autograd/deprecated\.yaml$"),
    (Kind.TEMPLATE, r"tools/jit/templates/.*\.cpp$|aten/src/ATen/native/ts_native_functions\.yaml$"),
    (Kind.TEMPLATE, r"torch/csrc/.*\.fbs$"),
    (Kind.PYTHON, r"torch/nativert/.*\.py$"),
    (Kind.OUTSIDE, rf"(?:{CODE}|torchgen/|functorch/)(?:.*/)?{AROUND}|{CODE}.*\.py$"),
    (Kind.OUTSIDE, r"aten/(?:conda|tools)/|aten/src/.*/confu\.yaml$|torchgen/.*\.txt$|tools/"),
    (Kind.KERNEL, rf"{CODE}.*\.cu$"),
    (Kind.SOURCE, rf"{CODE}.*\.(?:cpp|cc|c)$"),
    (Kind.HEADER, rf"{CODE}.*\.(?:h|hpp|cuh)$|torch/\w+\.h$"),
    (Kind.FIXED, rf"(?:torch/lib|functorch)/.*\.{COMPILED}"),
    (Kind.OUTSIDE, r"functorch/(?:docs|examples|notebooks|op_analysis|writing_batching_rules)/"),
    (Kind.OUTSIDE, r"torch/(?!csrc/).*\.(?:md|gitignore|ipynb|sh)$"),
    (Kind.PYTHON, r"(?:torch|functorch)/.*\.py$"),
    (Kind.DATA, r"torch/(?!csrc/|nativert/|headeronly/)"),
)
PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in RULES]
# What a library of a wheel for Linux may have all the same, as Module.cpp of torch/csrc/mps: the library tells.
ELSEWHERE = re.compile(r"/(?:hip|mps|metal|vulkan|xpu|mtia|miopen|coreml|test|tests|bench|benchmarks?)/")
# What PyTorch's build has by a setting that no wheel for Linux on x86-64 needs to have: the library tells, too.
BY_A_SETTING = re.compile(r"/(?:model_tracer|nnapi|xnnpack|kleidiai)/|_(?:xpu|sve)\.(?:cpp|cc)$")
# TorchScript's way to a fuser is libtorch_cpu's; the generators write sources for the GPU's keys among the others.
DEVICE = re.compile(r"(?<!/jit/codegen)/(?:cuda|cudnn)/|/(?:Register\w*CUDA\w*|c_shim_cuda)\.cpp$")


def kind_of(path: str) -> Kind | None:
    """The kind of a path from the top of PyTorch's tree; None where nobody knows what a build would do with it."""
    return next((kind for kind, pattern in PATTERNS if pattern.match(path)), None)


def on_device(path: str) -> bool:
    """Whether a file is of the libraries for the GPU, where a wheel has those."""
    return not ELSEWHERE.search(path) and bool(path.endswith(KERNEL) or DEVICE.search(path))
