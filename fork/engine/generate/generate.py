"""Runs PyTorch's own generators on the stack's entries alone; a script, since it imports the fork's torchgen."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torchgen
import torchgen.native_function_generation
import yaml
from torchgen.api.python import PythonSignatureNativeFunctionPair, returns_structseq_pyi
from torchgen.gen import parse_native_yaml
from torchgen.model import NativeFunction
from torchgen.packaged.autograd import gen_python_functions
from torchgen.packaged.autograd.gen_annotated_fn_args import gen_annotated_args
from torchgen.packaged.autograd.gen_autograd import gen_autograd, gen_autograd_python
from torchgen.packaged.autograd.gen_python_functions import (
    group_overloads,
    is_py_torch_function,
    load_signatures,
    should_generate_py_binding,
)
from torchgen.selective_build.selector import SelectiveBuilder

PACKAGED = Path(torchgen.__file__).parent / "packaged"
# The base's headers, which need not lie beside this torchgen.
SHIPPED = Path(os.environ["FORK_BASE"]) / "torch/include"

# `aten` exists already in the base's libraries, so the stack adds a fragment to it.
SCHEMA_TEMPLATE = """\
#include <torch/library.h>

namespace at {
TORCH_LIBRARY_FRAGMENT(aten, m) {
  ${aten_schema_registrations};
}
${schema_registrations}
}  // namespace at
"""

# PyTorch's own has the methods that are written by hand too.
METHODS_TEMPLATE = """\
$ops_headers
namespace torch::autograd {
${py_methods}
PyMethodDef python_variable_methods_own_rows[] = {
  ${py_method_defs}
  {nullptr}
};
} // namespace torch::autograd
"""

# What two files of one unit define by the same name: a method and its function, and torchgen's helpers for each key.
METHOD = re.compile(r"^static PyObject \* (THPVariable_\w+)\(", re.MULTILINE)
HELPER = re.compile(r"^\w.* (\w+)\(.*const TensorOptions &options\) \{$", re.MULTILINE)

# Runs torchgen on a yaml that is a part of PyTorch's. Later releases (2.15 does) list kernels of the whole yaml, and
# refuse a yaml without them. For a key that no entry names torchgen writes nothing; but every structured operator has
# kernels for these two, and PyTorch's own yaml always names both. FORK_VARIANTS has the variants with `out` of
# operators that the yaml lacks.
TORCHGEN = """\
import dataclasses, json, os
import torchgen.dest.native_functions, torchgen.gen as gen
import torchgen.gen_functionalization_type as functionalization, torchgen.native_function_generation as groups
from torchgen.model import DispatchKey as Key

parse = gen.parse_native_yaml

def with_keys(*args, **kwargs):
    parsed = parse(*args, **kwargs)
    for key in (Key.Meta, Key.CompositeExplicitAutogradNonFunctional):
        if key not in parsed.backend_indices:
            parsed.backend_indices[key] = dataclasses.replace(parsed.backend_indices[key], dispatch_key=key)
    return parsed

for names in (groups.OUT_OPS_THAT_DONT_GET_GROUPED_PROPERLY, functionalization.MUTABLE_OPS_NOT_USING_FUNCTIONALIZATION):
    names += json.loads(os.environ["FORK_VARIANTS"])
gen.parse_native_yaml = with_keys
torchgen.dest.native_functions._CPU_DLL_CUDA_KERNELS = frozenset()
gen.main()
"""


def main(native: Path, derivatives: Path | None, out: Path) -> None:
    """Brings up to date out/aten (torchgen), out/autograd (gen_autograd) and out/stubs.json (typing entries)."""
    # The same folder every time, since the generators write its name into what they make.
    scratch = out.parent / "generating"
    shutil.rmtree(scratch, ignore_errors=True)
    _generate(native, derivatives, scratch / "source", scratch / "fresh")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(scratch / "fresh", out, dirs_exist_ok=True)
    shutil.rmtree(scratch)


def _generate(native: Path, derivatives: Path | None, source: Path, out: Path) -> None:
    shutil.copytree(PACKAGED / "ATen/templates", source / "templates")
    (source / "templates/RegisterSchema.cpp").write_text(SCHEMA_TEMPLATE)
    (source / "native").mkdir()
    entries, tags = source / "native/native_functions.yaml", source / "native/tags.yaml"
    # C++'s class Tensor is compiled into the base's libraries, so what would be its method is a function there.
    functions = re.sub(r"^( +variants:).*\bmethod\b.*$", r"\1 function", native.read_text(), flags=re.MULTILINE)
    entries.write_text(functions)
    variants, others = _variants(entries.read_text())
    bound = source / "native/bound.yaml"
    bound.write_text("\n".join([entries.read_text(), *others]))
    torchgen.native_function_generation.OUT_OPS_THAT_DONT_GET_GROUPED_PROPERLY.extend(variants)
    shutil.copyfile(PACKAGED / "ATen/native/tags.yaml", tags)
    (out / "aten").mkdir(parents=True)
    words = ("-s", str(source), "-d", str(out / "aten"), "--per-operator-headers")
    command = [sys.executable, "-c", TORCHGEN, *words]
    # It also writes into the folder that it runs in.
    variables = os.environ | {"FORK_VARIANTS": json.dumps(variants)}
    result = subprocess.run(command, capture_output=True, text=True, cwd=source, env=variables)
    if result.returncode != 0:
        sys.exit(result.stderr)
    autograd = source / "autograd"
    shutil.copytree(PACKAGED / "autograd/templates", autograd / "templates")
    (autograd / "deprecated.yaml").write_text("[]\n")
    (autograd / "derivatives.yaml").write_text(derivatives.read_text() if derivatives else "[]\n")
    generated = out / "autograd/torch/csrc/autograd/generated"
    generated.mkdir(parents=True)
    arguments = (str(entries), str(tags), str(generated), str(autograd))
    module = importlib.import_module("torchgen.packaged.autograd.gen_autograd")
    load = module.load_derivatives

    def with_default(*paths: str) -> tuple[object, set[str]]:
        """Upstream some formula always uses the key Default, which operators with a kernel and no formula need too."""
        infos, keys = load(*paths)
        return infos, {*keys, "Default"}

    with mock.patch.object(module, "load_derivatives", with_default):
        gen_autograd(*arguments, SelectiveBuilder.get_nop_selector())
    # Python's functions are those of an operator with its variants.
    ways, methods = Ways(native), "python_variable_methods.cpp"
    (autograd / "templates" / methods).write_text(METHODS_TEMPLATE)
    with (
        mock.patch.object(gen_python_functions, "is_py_variable_method", ways.method),
        mock.patch.object(gen_python_functions, "is_py_torch_function", ways.function),
    ):
        gen_autograd_python(str(bound), *arguments[1:])
    text = (generated / methods).read_text().replace("(const at::Tensor & self", "(at::Tensor self")  # some change it
    (generated / methods).write_text(_named_apart(text, METHOD, "_method"))
    for file in (out / "aten").glob("Register*.cpp"):
        file.write_text(_named_apart(file.read_text(), HELPER, f"_of_{file.stem}"))
    _own_headers(out / "aten", generated)
    (out / "stubs.json").write_text(json.dumps(_stubs(bound, tags, ways), indent=1))


class Ways:
    """How Python calls operators: the `variants` of each of the stack's, by its name."""

    def __init__(self, native: Path) -> None:
        entries = yaml.safe_load(native.read_text())
        self.variants = {entry["func"].partition("(")[0]: entry.get("variants", "function") for entry in entries}

    def method(self, f: NativeFunction) -> bool:
        return f.python_module is None and "method" in self.variants.get(str(f.func.name), "")

    def function(self, f: NativeFunction) -> bool:
        return is_py_torch_function(f) and "function" in self.variants.get(str(f.func.name), "function")


def _named_apart(text: str, defined: re.Pattern[str], ending: str) -> str:
    """A source whose functions of a kind have names of their own: others in one unit with it have the same."""
    names = "|".join(defined.findall(text))
    return re.sub(rf"(?<![\w:])(?:{names})\b", rf"\g<0>{ending}", text) if names else text


def _variants(entries: str) -> tuple[list[str], list[str]]:
    """The list's variants with `out` of operators that the wheel has, and the wheel's entries of these operators."""
    found = re.findall(r"^- func: (\w+)(\S*?)\(.*\(a!\) out\b", entries, re.MULTILINE)
    theirs = re.split(
        r"^(?=- func: )", (PACKAGED / "ATen/native/native_functions.yaml").read_text(), flags=re.MULTILINE
    )
    names = {name for name, _ in found}
    # The list of a fork's torchgen has the new ones already.
    others = [
        entry
        for entry in theirs
        if re.split(r"[.(]", entry.removeprefix("- func: "))[0] in names and entry.partition("\n")[0] not in entries
    ]
    return [name + overload for name, overload in found], others


def _own_headers(aten: Path, autograd: Path) -> None:
    """Puts the headers of the stack's own operators beside the generated sources that include them.

    A wheel ships those headers for all of its own operators, or not at all.
    """
    shipped = SHIPPED / "ATen"
    own = [
        path for path in aten.glob("*.h") if path.name == "RedispatchFunctions.h" or not (shipped / path.name).exists()
    ]
    names = sorted(path.name.removesuffix("_ops.h") for path in (aten / "ops").glob("*_ops.h"))
    # Some formulas, such as auto_linear, call the operator as users do.
    includes = "\n".join(f"#include <ATen/ops/{name}{end}>" for end in ("_ops.h", ".h") for name in names)
    for header in own:
        text = header.read_text().replace("#include <ATen/Operators.h>", includes)
        # Upstream's lists every operator, which such sources may not depend on.
        text = text.replace("#ifdef TORCH_ASSERT_ONLY_METHOD_OPERATORS", "#if 0")
        for folder in (aten, autograd):
            (folder / header.name).write_text(text)
    for path in [*aten.glob("*.cpp"), *autograd.glob("*.cpp")]:
        text = path.read_text()
        for header in own:
            text = text.replace(f"#include <ATen/{header.name}>", f'#include "{header.name}"')
        path.write_text(text)


def _stubs(entries: Path, tags: Path, ways: Ways) -> dict[str, object]:
    """What a source build's typing files would say of these operators; and their modules in torch._C."""
    functions = [
        f for f in parse_native_yaml(str(entries), str(tags)).native_functions if should_generate_py_binding(f)
    ]
    bound = [f for f in functions if ways.function(f)]
    deprecated = str(entries.parent.parent / "autograd/deprecated.yaml")
    pairs: Sequence[PythonSignatureNativeFunctionPair] = load_signatures(bound, deprecated, method=False, pyi=True)
    definitions: dict[str, list[str]] = {}
    structseqs: dict[str, str] = {}
    for overload in group_overloads(pairs):
        signature = overload.signature
        definitions.setdefault(signature.name, []).append(signature.signature_str_pyi())
        structseq = returns_structseq_pyi(signature)
        if structseq is not None:
            structseqs[structseq[0]] = structseq[1]
    pairs = load_signatures([f for f in functions if ways.method(f)], deprecated, method=True, pyi=True)
    return {
        "modules": sorted({f.python_module for f in functions if f.python_module}),
        "functions": definitions,
        "methods": [overload.signature.signature_str_pyi() for overload in group_overloads(pairs)],
        "return_types": structseqs,
        "annotated": [f"torch._C._VariableFunctions.{gen_annotated_args(f)}" for f in bound],
    }


if __name__ == "__main__":
    native, derivatives, out = (Path(word).absolute() if word else None for word in sys.argv[1:])
    assert native is not None and out is not None
    main(native, derivatives, out)
