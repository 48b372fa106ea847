"""Finds where the one-line entries of a new operator go: beside the name before its own in the alphabet."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fork.errors import ForkError
from fork.upstream import DERIVATIVES, NATIVE_FUNCTIONS
from fork.weave import yamls
from fork.weave.source import assigned, collection_of, elements, name_of, parsed, statements

Read = Callable[[str], str | None]

# Sources that a wheel does not ship: their places are ones that every release has.
POINTWISE = ("abs", "ceil", "erf", "floor", "hypot", "lerp", "mul", "neg", "pow", "round", "sin", "sub", "tan", "xlogy")
# Where a failed check stands, as the library says it.
SOURCE = re.compile(rb"aten/src/ATen/native/(?:cpu/)?(\w+)\.cpp")
SPACE = "namespace torch::autograd::generated::details"
FIXED = {
    "aten/src/ATen/functorch/BatchRulesDecompositions.cpp": [
        "TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m)",
    ],
    "build_variables.bzl": ["aten_native_source_codegen_list", "aten_native_source_non_codegen_list"],
    "test/test_namedtuple_return_api.py": [
        "all_operators_with_namedtuple_return",
        "TestNamedTupleAPI.test_namedtuple_return.operators",
    ],
    "torch/csrc/autograd/FunctionsManual.h": [SPACE],
    "torch/csrc/autograd/FunctionsManual.cpp": [SPACE],
}
# Path -> container -> what the names there begin with.
NEIGHBOURS = {
    NATIVE_FUNCTIONS: {"file": ""},
    DERIVATIVES: {"file": ""},
    "torch/overrides.py": {"get_testing_overrides.ret": "torch."},
    "torch/_torch_docs.py": {"file": "torch."},
    "torch/_dynamo/trace_rules.py": {"torch_c_binding_in_graph_functions": "torch."},
    "torch/testing/_internal/common_methods_invocations.py": {"file": "sample_inputs_", "op_db": ""},
    "torch/_decomp/decompositions.py": {"file": ""},
    "torch/_decomp/__init__.py": {"_core_aten_decompositions_post_autograd.return": "aten."},
}


def anchors(paths: Iterable[str], name: str, read: Read) -> dict[str, dict[str, str]]:
    """Path -> container -> place, for those of the paths that are fragments."""
    found: dict[str, dict[str, str]] = {}
    for path in paths:
        if path == "docs/source/torch.md":
            before = max((known for known in POINTWISE if known < name), default=POINTWISE[0])
            found[path] = {"older_path": "docs/source/torch.rst", "Pointwise Ops": f"after {before}"}
        elif path in FIXED:
            found[path] = dict.fromkeys(FIXED[path], "last")
        elif path in NEIGHBOURS:
            text = read(path)
            if text is None:
                raise ForkError(f"torch ships no {path}, which a new operator has an entry in: choose another release")
            found[path] = {
                container: _beside(_names(path, container, text), prefix, name, path)
                for container, prefix in NEIGHBOURS[path].items()
            }
    return found


def free_title(title: str, torch: Path) -> str:
    """A name for the operator's source files that PyTorch has none under: its headers and messages tell them."""
    known = {header.stem.lower() for header in (torch / "include/ATen/native").rglob("*.h")}
    known |= {found.decode().lower() for found in SOURCE.findall((torch / "lib/libtorch_cpu.so").read_bytes())}
    while {title.lower(), f"{title}Kernel".lower()} & known:
        title += "Op"
    return title


def _beside(listed: Sequence[str], prefix: str, name: str, path: str) -> str:
    """After the last of the names that come before this one, among those that stand there once."""
    plain = re.compile(rf"{re.escape(prefix)}[a-z][a-z0-9_]*")
    once = sorted(known for known in listed if listed.count(known) == 1 and plain.fullmatch(known))
    if not once:
        raise ForkError(f"{path} of torch has no entry beside which one of {name} could stand: choose another release")
    lower = [known for known in once if known < prefix + name]
    return f"after {lower[-1]}" if lower else f"before {once[0]}"


def _names(path: str, container: str, text: str) -> list[str]:
    """What a container has: the entries of a list of operators, the statements of a file of Python, or the keys of the
    list, set or dict that is assigned to the last of the container's names, inside the functions of the others."""
    if path.endswith(".yaml"):
        return yamls.names(text)
    body = list(statements(parsed(text).tree.body))
    if container == "file":
        return [name_of(node) for node in body]
    *scopes, last = container.split(".")
    for scope in scopes:
        inside = (node.body for node in body if isinstance(node, ast.FunctionDef) and node.name == scope)
        body = [statement for found in inside for statement in statements(found)]
    lists = [collection for node in body if assigned(node) == last and (collection := collection_of(node))]
    return [key for collection in lists for key, _, _ in elements(collection)]
