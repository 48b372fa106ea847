"""Writes the files of a first stack: which files an operator needs, and what their templates are filled with."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

import jinja2

from fork.checkout.branch_to_stack import series_text
from fork.checkout.whole_branch import OPERATOR_TESTS
from fork.engine.compile import toolchain
from fork.folders import BROUGHT
from fork.new import places
from fork.new.schema import Argument, Operator

STYLE = BROUGHT / ".clang-format"
NATIVE = "aten/src/ATen/native"
# What the written code calls variables of its own, with an underscore where the operator has such a name.
VARIABLES = ("product", "item", "d", "wide", "scaled", "term", "tangent")
# Template -> path of what it makes; {title} is the operator's name as files have it.
ALWAYS = {
    "native.cpp": NATIVE + "/{title}.cpp",
    "native_functions.yaml": NATIVE + "/native_functions.yaml",
    "BatchRulesDecompositions.cpp": "aten/src/ATen/functorch/BatchRulesDecompositions.cpp",
    "build_variables.bzl": "build_variables.bzl",
    "overrides.py": "torch/overrides.py",
    "torch_docs.py": "torch/_torch_docs.py",
    "trace_rules.py": "torch/_dynamo/trace_rules.py",
    "opinfo.py": "torch/testing/_internal/common_methods_invocations.py",
    "torch.md": "docs/source/torch.md",
}
NAMED = {"test_namedtuple_return_api.py": "test/test_namedtuple_return_api.py"}
EXPLICIT = {
    "native.h": NATIVE + "/{title}.h",
    "kernel.cpp": NATIVE + "/cpu/{title}Kernel.cpp",
    "derivatives.yaml": "tools/autograd/derivatives.yaml",
    "FunctionsManual.h": "torch/csrc/autograd/FunctionsManual.h",
    "FunctionsManual.cpp": "torch/csrc/autograd/FunctionsManual.cpp",
    "decompositions.py": "torch/_decomp/decompositions.py",
    "decomp_init.py": "torch/_decomp/__init__.py",
}


def stack(op: Operator, explicit: bool, read: places.Read) -> dict[str, str]:
    """Path -> text of every file of the stack, stack/series.yaml included."""
    templates = ALWAYS | (NAMED if op.named else {}) | (EXPLICIT if explicit else {})
    paths = {name: path.format(title=op.title) for name, path in templates.items()}
    anchors = places.anchors(paths.values(), op.name, read)
    if not explicit:
        del anchors["build_variables.bzl"]["aten_native_source_codegen_list"]  # of kernels
    pr = "explicit" if explicit else "composite"
    form = "with a kernel and a gradient of its own" if explicit else "composed of other operators"
    title = f"Add torch.{op.name}, {form}"
    title = title if len(title) <= 72 else f"Add torch.{op.name}"[:72]
    values = context(op, explicit) | {"pr": pr, "title": title}
    series = {
        "wheel_suffix": op.name.replace("_", ""),
        "operator_tests": OPERATOR_TESTS,
        "prs": [{"name": pr, "title": title, "introduces": [*paths.values()]}],
        "anchors": anchors,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    texts = {path: environment.get_template(f"{name}.j2").render(values) for name, path in paths.items()}
    texts[".gitignore"] = "/build/\n"
    texts["stack/series.yaml"] = series_text(series)
    texts[f"stack/{pr}/PR.md"] = environment.get_template("PR.md.j2").render(values)
    return {path: _formatted(path, re.sub(r"\n{3,}$", "\n", text.lstrip("\n"))) for path, text in texts.items()}


def context(op: Operator, explicit: bool) -> dict[str, object]:
    """What the templates are filled with: the product of the tensors and numbers, spelled for each file."""
    tensors, optionals, lists, numbers = (op.of(kind) for kind in ("tensor", "optional", "list", "number"))
    checked, known = op.of("tensor", "optional", "list"), {*(a.python for a in op.arguments), *op.outputs}
    # A product of one tensor would be that tensor, and no result may be an argument: it is squared.
    factors = tensors if len(tensors) > 1 else tensors * 2
    # A list comes first. The first of its tensors is what the others are like, and a factor where there is no other.
    heads = [f"{lists[0].name}[0]"] if lists else []
    names = [f.name for f in factors] or heads * 2
    return {
        "op": op,
        "explicit": explicit,
        "many": len(op.outputs) > 1,
        **{word: f"{word}_" if word in known else word for word in VARIABLES},
        "generic": f"{op.name}_symint" if op.symbolic else op.name,
        "first": (heads or [tensors[0].name])[0],
        "tensors": tensors,
        "alike": tensors if lists else tensors[1:],
        "optionals": optionals,
        "lists": lists,
        "numbers": numbers,
        "others": checked if lists else checked[1:],
        "includes": sorted(["mul", f"{op.name}_native", *(["ones"] if explicit and optionals else [])]),
        "said": _said((names if tensors else heads) + [a.name for a in op.of("optional", "list", "number")]),
        "factors": names,
        "python_factors": [f.python for f in factors] or names,
        "checked": checked,
        # The results of the operator from its product: itself, and one time more of it for each further one.
        "multiples": lambda product, times="%s * %d", each="%s": [
            each % (times % (product, n) if n > 1 else product) for n in range(1, len(op.outputs) + 1)
        ],
        "made": lambda results: f"std::make_tuple({', '.join(results)})" if len(results) > 1 else results[0],
        "python_parameters": _python_parameters(op.arguments),
        "decomposition_parameters": _python_parameters(op.arguments, native=True),
        "samples": _samples(op),
        "error_sample": partial(_error_sample, op),
        "tuple_inputs": _tuple(a.sample.replace("make_arg(shape)", "a") for a in [op.arguments[0], *_given(op)]),
        "docs_type": _docs_type,
        "docs_text": _docs_text,
        **(_formulas(op, factors) if explicit else {}),
    }


def _formulas(op: Operator, factors: Sequence[Argument]) -> dict[str, object]:
    """The gradient and the tangent of the product, by the product rule."""
    tensors, optionals, numbers = op.of("tensor"), op.of("optional"), op.of("number")
    inputs = sorted([*tensors, *optionals], key=op.arguments.index)
    many = len(op.outputs) > 1
    grads = ["grad"]
    if many:
        grads = [f"grad_{name}" if op.named else f"grads[{n}]" for n, name in enumerate(op.outputs)]
    incoming = [re.sub(r"\W", "", grad) for grad in grads]
    results = [name or (f"result{n}" if many else "result") for n, name in enumerate(op.outputs)]

    def others(one: Argument, suffix: str = "") -> str:
        names = [f.name + suffix for f in factors if f is not one]
        return " * ".join(names) or f"2 * {one.name}{suffix}"

    mask = len(inputs) > 1
    scalars = [f"{n.cpp_type} {n.name}" for n in numbers]
    backward = [f"const Tensor& {name}" for name in incoming] + [t.declaration for t in inputs] + scalars
    both = [name for t in inputs for name in (f"{t.name}_p", f"{t.name}_t")]
    terms = [f"{t.name}_t * {_grouped(others(t, '_p'))}" for t in tensors]
    return {
        "results": [f"{name}_out" for name in results],
        "result_names": results,
        "iter_outputs": [f"iter.output({n})" for n in range(len(results))],
        "differentiable": [t.name for t in inputs],
        "incoming": [(name, n) for n, name in enumerate(incoming, 1)],
        "formula_arguments": ", ".join(
            [*grads, *(a.name for a in [*inputs, *numbers]), *(["grad_input_mask"] if mask else [])]
        ),
        "jvp_arguments": ", ".join([*both, *(n.name for n in numbers)]),
        "backward_return": f"std::tuple<{', '.join(['Tensor'] * len(inputs))}>" if mask else "Tensor",
        "backward_parameters": ", ".join(backward + ([f"std::array<bool, {len(inputs)}> output_mask"] if mask else [])),
        "jvp_parameters": ", ".join([f"const Tensor& {name}" for name in both] + scalars),
        "gradients": [(t.name, _grouped(others(t)), [o.name for o in optionals if o is not t]) for t in inputs],
        "tangent_sum": " + ".join(terms),
        "kernel_return": f"std::tuple<{', '.join(['scalar_t'] * len(op.outputs))}>" if many else "scalar_t",
        "kernel_product": " * ".join(
            [f"static_cast<opmath_t>({f.name})" for f in [*factors, *optionals]] + [f"{n.name}_" for n in numbers]
        ),
    }


def _grouped(product: str) -> str:
    return f"({product})" if " * " in product else product


def _said(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def _python_parameters(arguments: Sequence[Argument], native: bool = False) -> str:
    words = []
    for before, argument in zip([None, *arguments], arguments):
        if argument.keyword_only and not (before and before.keyword_only):
            words.append("*")
        name = argument.name if native else argument.python
        words.append(name if argument.default is None else f"{name}={argument.default}")
    return ", ".join(words)


def _given(op: Operator) -> list[Argument]:
    """What a call has to give after the first tensor."""
    return [a for a in op.arguments[1:] if a.default is None]


def _samples(op: Operator) -> list[str]:
    """With everything left out that has a default, with everything given, and with None for what may be None."""
    given = _given(op)
    without = _sample(op, given, lambda a: "None" if a.kind == "optional" else a.sample)
    return list(dict.fromkeys([_sample(op, given), _sample(op, op.arguments[1:]), without]))


def _sample(op: Operator, wanted: Sequence[Argument], text: Callable[[Argument], str] = attrgetter("sample")) -> str:
    """The arguments of a SampleInput: the operator's first one, and those of the others that are wanted."""
    # By position up to the last tensor: TorchScript's test writes keywords into a program, digits and all.
    first = max((n for n, a in enumerate(wanted, 1) if a.kind in ("tensor", "optional", "list")), default=0)
    named = [a for n, a in enumerate(wanted) if a.keyword_only or a.default is not None and n >= first]
    args = [text(a) for a in wanted if a not in named]
    kwargs = ", ".join(f"'{a.python}': {text(a)}" for a in named)
    said = text(op.arguments[0]) + (f", args={_tuple(args)}" if args else "")
    return said + (f", kwargs={{{kwargs}}}" if kwargs else "")


def _error_sample(op: Operator, shape: str, wrong: Argument | None = None, value: str = "") -> str:
    """A sample of tensors of this shape, but for one argument, whose value is refused."""

    def text(argument: Argument) -> str:
        if argument is not wrong:
            return argument.sample.replace("shape", shape)
        return f"[make_arg({shape}), {value}]" if argument.kind == "list" else value

    before = op.arguments[: op.arguments.index(wrong) + 1] if wrong else ()
    return _sample(op, [a for a in op.arguments[1:] if a.default is None or a in before], text)


def _tuple(items: Iterable[str]) -> str:
    listed = list(items)
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


def _docs_type(argument: Argument) -> str:
    words = {"Tensor": "Tensor", "Tensor?": "Tensor, optional", "Tensor[]": "sequence of Tensors", "Scalar": "Number"}
    text = words.get(argument.type) or argument.type.rstrip("?").partition("[")[0].replace("SymInt", "int")
    return text if argument.default is None or "optional" in text else f"{text}, optional"


def _docs_text(argument: Argument) -> str:
    default = f". Default: ``{argument.default}``" if argument.default is not None else ""
    return {"other": "not used yet", "number": "a factor"}.get(argument.kind, "a factor, of any size") + default


def _formatted(path: str, text: str) -> str:
    """C++ as PyTorch's clang-format lays it out, where that program is installed."""
    program = toolchain.path_of("clang-format")
    if program is None or not path.endswith((".cpp", ".h")):
        return text
    done = subprocess.run([program, f"--style=file:{STYLE}"], input=text, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else text
