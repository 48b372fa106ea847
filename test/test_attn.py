"""attn's gradient, tested three times: as docs/attn_gradient.md derives it, as a Python Function, as a C++ Function."""
# Owner(s): ["module: autograd"]

import ast
import contextlib
import functools
import hashlib
import io
import itertools
import os
import re
import shlex
import shutil
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock

import torch
import torch._dynamo.testing
import torch.autograd.forward_ad as fwAD
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import make_tensor
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    skipIfTorchDynamo,
    TestCase,
)
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


Grads = list[torch.Tensor | None]
Attn = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]
]

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "attn_gradient.md"
PRECISE = [torch.float64, torch.complex128]
# N, D and E: all different, all one, N the smallest, and each of them empty
SIZES = [(4, 2, 3), (1, 1, 1), (2, 5, 3), (0, 2, 3), (3, 0, 2), (3, 2, 0)]


def composition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What everything here is compared with: output (M, E) and attn (M, N) in plain differentiable operations."""
    attn = torch.tanh(torch.matmul(q, k.mT))
    return torch.matmul(attn, v), attn


# ---------------------------------------------------------------------------------------------------------------------
# The gradient as a Python Function
# ---------------------------------------------------------------------------------------------------------------------


# Dynamo does not trace a Function that has a jvp of its own; in the graph as it is, AOTAutograd traces through it.
@torch.compiler.allow_in_graph
class AttnFunction(torch.autograd.Function):
    """attn for tensors of shape (*, M, D), (*, N, D), (*, N, E); formulas from docs/attn_gradient.md."""

    @staticmethod
    def forward(q, k, v):
        attn = torch.tanh(torch.matmul(q, k.mT))
        return torch.matmul(attn, v), attn

    @staticmethod
    def setup_context(ctx, inputs, outputs):
        _, attn = outputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, attn)
        ctx.save_for_forward(*inputs, attn)

    @staticmethod
    def backward(ctx, grad_output, grad_attn):
        q, k, v, attn = ctx.saved_tensors
        needs_q, needs_k, needs_v = ctx.needs_input_grad
        grad_q = grad_k = grad_v = None
        if needs_v and grad_output is not None:
            grad_v = torch.matmul(attn.mH, grad_output)
        if needs_q or needs_k:
            if grad_output is not None:
                through_output = torch.matmul(grad_output, v.mH)
                grad_attn = (
                    through_output if grad_attn is None else grad_attn + through_output
                )
            if grad_attn is not None:
                grad_scores = grad_attn * ((1 - attn) * (1 + attn)).conj()
                if needs_q:
                    grad_q = torch.matmul(grad_scores, k.conj())
                if needs_k:
                    grad_k = torch.matmul(grad_scores.mT, q.conj())
        return grad_q, grad_k, grad_v

    @staticmethod
    def jvp(ctx, q_t, k_t, v_t):
        q, k, v, attn = ctx.saved_tensors
        terms = []
        # autograd accepts no undefined tangent of an output, so attn's is a true zero when only v has one
        attn_t = torch.zeros_like(attn)
        if q_t is not None:
            terms.append(torch.matmul(q_t, k.mT))
        if k_t is not None:
            terms.append(torch.matmul(q, k_t.mT))
        if terms:
            attn_t = (1 - attn) * (1 + attn) * sum(terms[1:], terms[0])
            terms = [torch.matmul(attn_t, v)]
        if v_t is not None:
            terms.append(torch.matmul(attn, v_t))
        return sum(terms[1:], terms[0]), attn_t

    @staticmethod
    def vmap(info, in_dims, *inputs):
        batched = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, in_dims, strict=True)
        ]
        return AttnFunction.apply(*batched), (0, 0)


def python_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return AttnFunction.apply(q, k, v)


# ---------------------------------------------------------------------------------------------------------------------
# The gradient as a C++ Function
# ---------------------------------------------------------------------------------------------------------------------

# Per-operator headers: torch/extension.h alone takes longer to compile than all the tests to run.
CPP_SOURCE = r"""
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<Tensor, Tensor> attn_forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  Tensor attn = at::matmul(q, k.mT()).tanh_();
  return {at::matmul(attn, v), attn};
}

struct AttnFunction : torch::autograd::Function<AttnFunction> {
  // backward is made of at:: calls only, so compiled autograd may trace it
  static constexpr bool is_traceable = true;

  static variable_list forward(
      AutogradContext* ctx,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, attn] = attn_forward(q, k, v);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({q, k, v, attn});
    return {output, attn};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &attn = saved[3];
    const Tensor& grad_output = grads[0];
    Tensor grad_attn = grads[1];
    const bool needs_q = ctx->needs_input_grad(0);
    const bool needs_k = ctx->needs_input_grad(1);
    const bool needs_v = ctx->needs_input_grad(2);

    Tensor grad_q, grad_k, grad_v;
    if (needs_v && grad_output.defined()) {
      grad_v = at::matmul(attn.mH(), grad_output);
    }
    if (needs_q || needs_k) {
      if (grad_output.defined()) {
        Tensor through_output = at::matmul(grad_output, v.mH());
        grad_attn =
            grad_attn.defined() ? grad_attn + through_output : through_output;
      }
      if (grad_attn.defined()) {
        Tensor grad_scores = grad_attn * ((1 - attn) * (1 + attn)).conj();
        if (needs_q) {
          grad_q = at::matmul(grad_scores, k.conj());
        }
        if (needs_k) {
          grad_k = at::matmul(grad_scores.mT(), q.conj());
        }
      }
    }
    return {grad_q, grad_k, grad_v};
  }
};

std::tuple<Tensor, Tensor> attn_autograd(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  auto outputs = AttnFunction::apply(q, k, v);
  return {outputs[0], outputs[1]};
}

} // namespace

TORCH_LIBRARY(attn_cpp, m) {
  m.def("attn(Tensor q, Tensor k, Tensor v) -> (Tensor output, Tensor attn)");
}

TORCH_LIBRARY_IMPL(attn_cpp, CompositeExplicitAutograd, m) {
  m.impl("attn", attn_forward);
}

TORCH_LIBRARY_IMPL(attn_cpp, Autograd, m) {
  m.impl("attn", attn_autograd);
}
"""


@functools.cache
def build_cpp() -> str | None:
    """Builds and loads the C++ Function: once for each torch, however many processes ask. Returns what went wrong."""
    built_for = repr((CPP_SOURCE, torch.__version__, torch.__file__, sys.version))
    root = Path(
        os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    )
    folder = root / f"test_attn_{hashlib.sha256(built_for.encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "test_attn.lock"):
        # cpp_extension waits for ever for the lock file of a build that was killed; under our lock it can only be that
        (folder / "lock").unlink(missing_ok=True)
        source = folder / "attn.cpp"
        if not source.exists() or source.read_text() != CPP_SOURCE:
            source.write_text(CPP_SOURCE)
        try:
            cpp_extension.load(
                "attn_cpp",
                str(source),
                extra_cflags=["-DAT_PER_OPERATOR_HEADERS", "-O1"],
                build_directory=str(folder),
                is_python_module=False,
            )
        except (RuntimeError, OSError) as error:
            return str(error)
    return None


def cpp_attn() -> Attn:
    compiler = shlex.split(cpp_extension.get_cxx_compiler())[0]
    if shutil.which(compiler) is None:
        raise unittest.SkipTest(
            f"no C++ compiler: {compiler!r} is not on PATH; install g++ or clang++, or name yours in CXX"
        )
    error = build_cpp()
    if error is not None:
        raise RuntimeError(f"test_attn.py could not build its C++ Function: {error}")
    return torch.ops.attn_cpp.attn


def route(name: str) -> Attn:
    """A Function by name, as a callable from (q, k, v) to (output, attn)."""
    return {"python": lambda: python_attn, "cpp": cpp_attn}[name]()


on_both = parametrize("name", ["python", "cpp"], name_fn=str)
in_both_precise_dtypes = parametrize("dtype", PRECISE)
of_all_sizes = parametrize(
    "sizes", SIZES, name_fn=lambda sizes: "N{}_D{}_E{}".format(*sizes)
)


# ---------------------------------------------------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------------------------------------------------


def make(
    *shapes: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = True
) -> list[torch.Tensor]:
    """Random tensors so small that tanh does not saturate: there, every gradient is zero and every test passes."""
    bound = 0.5 if dtype.is_complex else 1.0
    return [
        make_tensor(
            shape,
            dtype=dtype,
            device="cpu",
            low=-bound,
            high=bound,
            requires_grad=requires_grad,
        )
        for shape in shapes
    ]


def make_inputs(
    n: int = 4,
    d: int = 2,
    e: int = 3,
    *,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> list[torch.Tensor]:
    return make((n, d), (n, d), (n, e), dtype=dtype, requires_grad=requires_grad)


def make_outputs(
    n: int = 4,
    e: int = 3,
    *,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> list[torch.Tensor]:
    """Two tensors of the shapes of the outputs."""
    return make((n, e), (n, n), dtype=dtype, requires_grad=requires_grad)


def choices(count: int) -> Iterator[tuple[bool, ...]]:
    """Every subset of `count` things."""
    return itertools.product((True, False), repeat=count)


def keep(tensors: Sequence[torch.Tensor | None], chosen: Iterable[bool]) -> Grads:
    return [x if use else None for x, use in zip(tensors, chosen, strict=True)]


class Undefine(torch.autograd.Function):
    """Identity, through which no gradient comes back."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return None


def gradients(
    outputs: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    given: Grads,
    create_graph: bool = False,
) -> Grads:
    """The gradients of all inputs, None for those that have none. An output for which None is given takes part in the
    graph all the same, so that its gradient arrives as undefined."""
    used = [
        (Undefine.apply(x), torch.zeros_like(x)) if g is None else (x, g)
        for x, g in zip(outputs, given, strict=True)
        if x is not None and x.requires_grad
    ]
    wanted = [x for x in inputs if x.requires_grad]
    if not used or not wanted:
        return [None] * len(inputs)
    tensors, grads = zip(*used)
    found = iter(
        torch.autograd.grad(
            tensors, wanted, grads, create_graph=create_graph, allow_unused=True
        )
    )
    return [next(found) if x.requires_grad else None for x in inputs]


class Costs(TorchDispatchMode):
    """Counts matrix products by their sizes, and M x N tensors alive at once, over what runs inside."""

    def __init__(self, n: int, d: int, e: int) -> None:
        super().__init__()
        self.shape = (n, n)
        self.widths = {d: "D", e: "E"}
        self.products = {"D": 0, "E": 0}
        self.storages: list[StorageWeakRef] = []
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            (width,) = {*args[0].shape, *args[1].shape} & self.widths.keys()
            self.products[self.widths[width]] += 1
        known = {
            x.untyped_storage()._cdata
            for x in tree_leaves(args)
            if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(result):
            if (
                isinstance(x, torch.Tensor)
                and x.shape == self.shape
                and x.untyped_storage()._cdata not in known
            ):
                self.storages.append(StorageWeakRef(x.untyped_storage()))
        self.peak = max(self.peak, sum(not ref.expired() for ref in self.storages))
        return result

    def __str__(self) -> str:
        return f"{self.products['D']}D + {self.products['E']}E"


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Collects the tensors that autograd saves, one for each storage."""

    def __init__(self) -> None:
        self.tensors: dict[object, torch.Tensor] = {}
        super().__init__(self.pack, lambda x: x)

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        self.tensors.setdefault(x.untyped_storage()._cdata, x)
        return x

    def spell(self, names: dict[str, torch.Tensor]) -> str:
        """The saved tensors by name, and how many others there are."""
        storages = {name: x.untyped_storage()._cdata for name, x in names.items()}
        known = [name for name, storage in storages.items() if storage in self.tensors]
        others = [
            x.shape
            for storage, x in self.tensors.items()
            if storage not in storages.values()
        ]
        square = [shape for shape in others if shape == names["attn"].shape]
        known += [f"{len(square)} more M x N"] if square else []
        return ", ".join(
            known + [str(shape) for shape in others if shape not in square]
        )


def run_document(kinds: type | tuple[type, ...] = ast.stmt) -> types.ModuleType:
    """Runs the document's Python, or only the statements of these kinds. Tracebacks show the document's lines."""
    lines, inside = [], False
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside, line = line == "```python", ""
        lines.append(line if inside else "")
    tree = ast.parse("\n".join(lines), str(DOCUMENT))
    tree.body = [statement for statement in tree.body if isinstance(statement, kinds)]
    # Dynamo imports the modules of the functions that it meets.
    module = sys.modules["attn_gradient"] = types.ModuleType("attn_gradient")
    with torch.enable_grad():  # the first who asks may be a backward
        exec(compile(tree, str(DOCUMENT), "exec"), vars(module))
    return module


@functools.cache
def document() -> types.ModuleType:
    """The document's functions, without the checks that it makes itself."""
    return run_document((ast.Import, ast.Assign, ast.FunctionDef, ast.ClassDef))


def table(first_column: str) -> dict[str, list[str]]:
    """The document's table of that heading: the cells of each row by its first one."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (rows,) = re.findall(
        rf"^\| {first_column} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    cells = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in rows.splitlines()
    ]
    return {row[0]: row[1:] for row in cells}


# ---------------------------------------------------------------------------------------------------------------------
# The document
# ---------------------------------------------------------------------------------------------------------------------


class TestAttnDocument(TestCase):
    def test_it_runs_from_top_to_bottom(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_document()
        self.assertEqual(
            printed.getvalue(), "attn_gradient.md: every formula agrees with autograd\n"
        )

    @in_both_precise_dtypes
    @of_all_sizes
    def test_forward(self, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertEqual(document().attn_forward(*inputs), composition(*inputs))

    @in_both_precise_dtypes
    @of_all_sizes
    def test_backward(self, dtype, sizes):
        n, _, e = sizes
        inputs = make_inputs(*sizes, dtype=dtype)
        for defined in choices(2):
            with self.subTest(defined=defined):
                given = keep(make_outputs(n, e, dtype=dtype), defined)
                outputs = composition(*inputs)
                found = document().attn_backward(*given, *inputs, outputs[1])
                self.assertEqual(list(found), gradients(outputs, inputs, given))

    @in_both_precise_dtypes
    @of_all_sizes
    def test_jvp(self, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype, requires_grad=False)
        for defined in choices(3):
            with self.subTest(defined=defined), fwAD.dual_level():
                tangents = keep(
                    make_inputs(*sizes, dtype=dtype, requires_grad=False), defined
                )
                duals = [
                    x if t is None else fwAD.make_dual(x, t)
                    for x, t in zip(inputs, tangents)
                ]
                outputs = composition(*duals)
                expected = [fwAD.unpack_dual(x).tangent for x in outputs]
                found = document().attn_jvp(
                    *tangents, *inputs, fwAD.unpack_dual(outputs[1]).primal
                )
                self.assertEqual(list(found), expected)

    @in_both_precise_dtypes
    @of_all_sizes
    def test_double_backward(self, dtype, sizes):
        n, _, e = sizes
        inputs = make_inputs(*sizes, dtype=dtype)
        outputs = make_outputs(n, e, dtype=dtype)
        for defined in choices(2):
            given = keep(outputs, defined)
            differentiable = [x for x in (*given, *inputs) if x is not None]
            for wanted in choices(3):
                with self.subTest(defined=defined, wanted=wanted):
                    expected = gradients(
                        composition(*inputs), inputs, given, create_graph=True
                    )
                    grad_grads = keep(make_inputs(*sizes, dtype=dtype), wanted)
                    grad_grads = [
                        None if x is None else g for x, g in zip(expected, grad_grads)
                    ]
                    expected = gradients(expected, differentiable, grad_grads)

                    _, backward = document().attn(*inputs)
                    _, double_backward = backward(*given)
                    found = double_backward(*grad_grads)
                    found = [
                        x for x, of in zip(found, (*given, *inputs)) if of is not None
                    ]
                    self.assertEqual(found, expected)

    @in_both_precise_dtypes
    def test_gradient_through_attn_stands_apart(self, dtype):
        """attn_double_backward takes attn as a tensor of its own, as a native operator's derivative formula does."""
        inputs, given = make_inputs(dtype=dtype), make_outputs(dtype=dtype)
        (attn,) = make((4, 4), dtype=dtype)
        grads = document().attn_backward(*given, *inputs, attn)
        grad_grads = make_inputs(dtype=dtype)
        expected = torch.autograd.grad(grads, [*given, *inputs, attn], grad_grads)
        found = document().attn_double_backward(*grad_grads, *given, *inputs, attn)
        self.assertEqual(found, expected)

    @skipIfTorchDynamo("it counts the operators of eager code")
    def test_table_of_costs(self):
        """The counts in section 11 are what runs: products and M x N tensors, of composition and of the formulas."""
        sizes = n, _, e = 7, 3, 5
        doc, inputs, given = document(), make_inputs(*sizes), make_outputs(n, e)
        tangents = make_inputs(*sizes, requires_grad=False)

        def costs(
            function: Callable[..., object], *args: object, **kwargs: object
        ) -> list[str]:
            with Costs(*sizes) as counted:
                result = function(*args, **kwargs)
            del result  # alive until here: results count
            return [str(counted), str(counted.peak)]

        def forward_and_jvp() -> object:
            output, attn = doc.attn_forward(*inputs)
            return output, attn, doc.attn_jvp(*tangents, *inputs, attn)

        composed, formula = {}, {}
        composed["forward"] = costs(composition, *inputs)
        for used in [0], [1], [0, 1]:
            step = (
                f"backward of {('output', 'attn', 'both')[sum(used) + len(used) - 1]}"
            )
            outputs = composition(*inputs)
            outputs, grads = [outputs[i] for i in used], [given[i] for i in used]
            composed[step] = costs(
                torch.autograd.grad, outputs, inputs, grads, allow_unused=True
            )
        with fwAD.dual_level():
            duals = [fwAD.make_dual(x.detach(), t) for x, t in zip(inputs, tangents)]
            composed["forward with forward mode"] = costs(composition, *duals)
        grads = torch.autograd.grad(
            composition(*inputs), inputs, given, create_graph=True
        )
        composed["double backward"] = costs(
            torch.autograd.grad, grads, [*given, *inputs], tangents
        )

        with torch.no_grad():
            formula["forward"] = costs(doc.attn_forward, *inputs)
            _, attn = doc.attn_forward(*inputs)
            formula["backward of output"] = costs(
                doc.attn_backward, given[0], None, *inputs, attn
            )
            formula["backward of attn"] = costs(
                doc.attn_backward, None, given[1], *inputs, attn
            )
            formula["backward of both"] = costs(
                doc.attn_backward, *given, *inputs, attn
            )
            formula["forward with forward mode"] = costs(forward_and_jvp)
            _, backward = doc.attn(*inputs)
            _, double_backward = backward(*given)
            formula["double backward"] = costs(double_backward, *tangents)

        measured = {
            step: [x for pair in zip(composed[step], formula[step]) for x in pair]
            for step in composed
        }
        self.assertEqual(
            {step: cells[:4] for step, cells in table("step").items()}, measured
        )

    def test_table_of_saved_tensors(self):
        """What autograd saves for the composition, and what the closures hold; more would be the trap of section 12."""
        n, _, e = sizes = 7, 3, 5
        inputs, given = make_inputs(*sizes), make_outputs(n, e)
        forward, backward = table("saved by").values()

        saved = SavedTensors()
        with saved:
            outputs = composition(*inputs)
        names = dict(
            zip(
                ["q", "k", "v", "attn", "grad_output", "grad_attn"],
                [*inputs, outputs[1], *given],
            )
        )
        self.assertEqual(saved.spell(names), forward[0])
        saved = SavedTensors()
        with saved:
            torch.autograd.grad(outputs, inputs, given, create_graph=True)
        self.assertEqual(saved.spell(names), backward[0])

        def remembered(closure: types.FunctionType) -> str:
            held = zip(closure.__code__.co_freevars, closure.__closure__, strict=True)
            tensors = {
                name: cell.cell_contents
                for name, cell in held
                if isinstance(cell.cell_contents, torch.Tensor)
            }
            return ", ".join(sorted(tensors, key=[*names, *tensors].index))

        _, closure = document().attn(*inputs)
        self.assertEqual(remembered(closure), forward[1])
        _, closure = closure(*given)
        self.assertEqual(remembered(closure), backward[1])


instantiate_parametrized_tests(TestAttnDocument)


# ---------------------------------------------------------------------------------------------------------------------
# Both Functions
# ---------------------------------------------------------------------------------------------------------------------


class TestAttnFunction(TestCase):
    @on_both
    @in_both_precise_dtypes
    @of_all_sizes
    def test_forward(self, name, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertEqual(route(name)(*inputs), composition(*inputs), exact_layout=True)
        with torch.inference_mode():
            self.assertEqual(route(name)(*inputs), composition(*inputs))

    @on_both
    @in_both_precise_dtypes
    @of_all_sizes
    def test_gradcheck(self, name, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertTrue(gradcheck(route(name), inputs, check_batched_grad=True))

    @on_both
    @in_both_precise_dtypes
    @of_all_sizes
    def test_gradgradcheck(self, name, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertTrue(gradgradcheck(route(name), inputs, check_batched_grad=True))
        self.assertTrue(
            gradgradcheck(route(name), inputs, gen_non_contig_grad_outputs=True)
        )

    @on_both
    @in_both_precise_dtypes
    def test_every_subset_of_inputs_and_outputs(self, name, dtype):
        """Which gradients are wanted times which are given: composition's values, and None in the same places."""
        for needs in choices(3):
            for defined in choices(2):
                with self.subTest(needs=needs, defined=defined):
                    inputs = [
                        x.requires_grad_(need)
                        for x, need in zip(make_inputs(dtype=dtype), needs)
                    ]
                    given = keep(make_outputs(dtype=dtype), defined)
                    expected = gradients(composition(*inputs), inputs, given)
                    found = gradients(route(name)(*inputs), inputs, given)
                    self.assertEqual(found, expected)

    @on_both
    def test_backward_makes_only_the_products_it_needs(self, name):
        sizes = n, _, e = 7, 3, 5
        for (needs_q, needs_k, needs_v), defined in itertools.product(
            choices(3), choices(2)
        ):
            with self.subTest(needs=(needs_q, needs_k, needs_v), defined=defined):
                inputs = make_inputs(*sizes)
                for x, need in zip(inputs, (needs_q, needs_k, needs_v)):
                    x.requires_grad_(need)
                given = keep(make_outputs(n, e), defined)
                outputs = route(name)(*inputs)
                with Costs(*sizes) as costs:
                    gradients(outputs, inputs, given)
                through_output = defined[0] and (needs_q or needs_k)
                self.assertEqual(
                    costs.products["D"], any(defined) * (needs_q + needs_k)
                )
                self.assertEqual(
                    costs.products["E"], through_output + (defined[0] and needs_v)
                )

    @on_both
    def test_saves_only_inputs_and_attn(self, name):
        inputs, saved = make_inputs(), SavedTensors()
        with saved:
            _, attn = route(name)(*inputs)
        self.assertEqual(
            saved.spell(dict(zip(["q", "k", "v", "attn"], [*inputs, attn]))),
            "q, k, v, attn",
        )

    @on_both
    def test_outputs_are_new(self, name):
        """Version 0, in C++ although tanh is in place there: forward runs below the key that counts versions."""
        for x in route(name)(*make_inputs()):
            self.assertEqual(x._version, 0)
            self.assertFalse(x._is_view())

    @on_both
    @parametrize(
        "dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.float16]
    )
    def test_error_beside_the_error_of_composition(self, name, dtype):
        """Against float64: outputs at most twice, gradients at most three times as far off as composition."""
        precise = torch.complex128 if dtype.is_complex else torch.float64
        sizes = n, _, e = 64, 16, 24
        inputs = make_inputs(*sizes, dtype=dtype)
        given = make_outputs(n, e, dtype=dtype)
        exact_inputs = [x.detach().to(precise).requires_grad_() for x in inputs]
        exact_outputs = composition(*exact_inputs)
        exact_grads = torch.autograd.grad(
            exact_outputs, exact_inputs, [g.to(precise) for g in given]
        )

        def errors(attn: Attn) -> tuple[list[float], list[float]]:
            outputs = attn(*inputs)
            grads = torch.autograd.grad(outputs, inputs, given)
            return tuple(
                [(x - exact).norm().item() for x, exact in zip(found, expected)]
                for found, expected in ((outputs, exact_outputs), (grads, exact_grads))
            )

        for found, allowed, factor in zip(
            errors(route(name)), errors(composition), (2, 3)
        ):
            for error, composed in zip(found, allowed):
                self.assertGreater(composed, 0)
                self.assertLessEqual(error, factor * composed)


instantiate_parametrized_tests(TestAttnFunction)


class TestAttnFunctionForwardAD(TestCase):
    @in_both_precise_dtypes
    @of_all_sizes
    def test_gradcheck(self, dtype, sizes):
        inputs = make_inputs(*sizes, dtype=dtype)
        self.assertTrue(
            gradcheck(
                python_attn,
                inputs,
                check_forward_ad=True,
                check_batched_forward_grad=True,
            )
        )
        self.assertTrue(gradgradcheck(python_attn, inputs, check_fwd_over_rev=True))

    @in_both_precise_dtypes
    def test_every_subset_of_tangents(self, dtype):
        for defined in choices(3):
            with self.subTest(defined=defined), fwAD.dual_level():
                inputs = make_inputs(dtype=dtype, requires_grad=False)
                tangents = keep(make_inputs(dtype=dtype, requires_grad=False), defined)
                duals = [
                    x if t is None else fwAD.make_dual(x, t)
                    for x, t in zip(inputs, tangents)
                ]
                for found, expected in zip(
                    python_attn(*duals), composition(*duals), strict=True
                ):
                    found = fwAD.unpack_dual(found)
                    expected = fwAD.unpack_dual(expected)
                    self.assertEqual(found.primal, expected.primal)
                    if expected.tangent is not None or found.tangent is None:
                        self.assertEqual(found.tangent, expected.tangent)
                    else:
                        self.assertEqual(found.tangent, torch.zeros_like(found.primal))

    def test_the_cpp_one_says_that_it_has_none(self):
        q, k, v = make_inputs(requires_grad=False)
        refusal = "jvp is not implemented for the c\\+\\+ API"
        with fwAD.dual_level(), self.assertRaisesRegex(RuntimeError, refusal):
            cpp_attn()(fwAD.make_dual(q, torch.ones_like(q)), k, v)


instantiate_parametrized_tests(TestAttnFunctionForwardAD)


class TestAttnFunctionTransforms(TestCase):
    """torch.func on the Python Function."""

    @parametrize(
        "transforms",
        ["jacrev", "jacfwd", "jacfwd_jacrev", "jacrev_jacrev", "jacrev_jacfwd"],
    )
    def test_jacobians(self, transforms):
        """Each transform, and those pairs of which the inner one stands last."""

        def jacobians(attn: Attn) -> object:
            for name in reversed(transforms.split("_")):
                attn = getattr(torch.func, name)(attn, argnums=(0, 1, 2))
            return attn(*inputs)

        inputs = make_inputs(requires_grad=False)
        self.assertEqual(jacobians(python_attn), jacobians(composition))

    @in_both_precise_dtypes
    def test_vmap_over_every_choice_of_dimensions(self, dtype):
        def over(
            attn: Attn, in_dims: tuple[int | None, ...], inputs: list[torch.Tensor]
        ) -> object:
            outputs = torch.func.vmap(attn, in_dims)(*inputs)
            return outputs, torch.autograd.grad(
                [x.abs().sum() for x in outputs], inputs
            )

        for in_dims in itertools.product((None, 0, 1, -1), repeat=3):
            if all(dim is None for dim in in_dims):
                continue
            with self.subTest(in_dims=in_dims):
                inputs = [
                    x if dim is None else torch.stack([x, 2 * x, x.flip(0)], dim)
                    for x, dim in zip(make_inputs(dtype=dtype), in_dims)
                ]
                self.assertEqual(
                    over(python_attn, in_dims, inputs),
                    over(composition, in_dims, inputs),
                )

    @in_both_precise_dtypes
    def test_vmap_of_vmap(self, dtype):
        q, k, v = make(
            (2, 3, 4, 2), (3, 4, 2), (2, 4, 3), dtype=dtype, requires_grad=False
        )

        def over(attn: Attn) -> object:
            return torch.func.vmap(torch.func.vmap(attn, (0, 0, None)), (0, None, 0))(
                q, k, v
            )

        self.assertEqual(over(python_attn), over(composition))

    def test_the_cpp_one_says_that_it_has_none(self):
        with self.assertRaisesRegex(
            RuntimeError,
            "cannot use C\\+\\+ torch::autograd::Function with functorch transforms",
        ):
            torch.func.vjp(cpp_attn(), *make_inputs(requires_grad=False))


instantiate_parametrized_tests(TestAttnFunctionTransforms)


class TestAttnFunctionCompile(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    @on_both
    @parametrize("dynamic", [False, True])
    def test_aot_eager(self, name, dynamic):
        """One graph for all sizes: outputs, and gradients through one of them and through both."""
        frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(
            route(name), backend=frames, fullgraph=True, dynamic=dynamic
        )
        for n, d, e in [(4, 2, 3), (6, 5, 7), (3, 2, 4)] if dynamic else [(4, 2, 3)]:
            inputs = make_inputs(n, d, e)
            given = make_outputs(n, e, requires_grad=False)
            self.assertEqual(compiled(*inputs), composition(*inputs))
            for defined in (True, True), (True, False), (False, True):
                # a compiled backward returns a zero where eager returns None
                found, expected = (
                    [
                        torch.zeros_like(x) if g is None else g
                        for g, x in zip(
                            gradients(attn(*inputs), inputs, keep(given, defined)),
                            inputs,
                        )
                    ]
                    for attn in (compiled, composition)
                )
                self.assertEqual(found, expected)
        self.assertEqual(frames.frame_count, 1)

    @on_both
    def test_compiled_autograd(self, name):
        """The backward itself as one graph: is_traceable in C++."""
        inputs, given = make_inputs(), make_outputs()
        expected = torch.autograd.grad(composition(*inputs), inputs, given)
        outputs = route(name)(*inputs)
        frames = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        with torch._dynamo.compiled_autograd._enable(
            torch.compile(backend=frames, fullgraph=True)
        ):
            found = torch.autograd.grad(outputs, inputs, given)
        self.assertEqual(found, expected)
        self.assertEqual(frames.frame_count, 1)

    def test_opcheck(self):
        """What torch.library asks of an operator with a schema: registration, fake tensors, AOTAutograd."""
        torch.library.opcheck(cpp_attn().default, make_inputs())


instantiate_parametrized_tests(TestAttnFunctionCompile)


# ---------------------------------------------------------------------------------------------------------------------
# The trap
# ---------------------------------------------------------------------------------------------------------------------


class ReturnsScores(torch.autograd.Function):
    """The document's SavesScores with the scores as an output too, whose gradient the backward takes in."""

    @staticmethod
    def forward(q, k):
        scores = torch.matmul(q, k.mT)
        return torch.tanh(scores), scores

    @staticmethod
    def setup_context(ctx, inputs, outputs):
        ctx.save_for_backward(*inputs, outputs[1])

    @staticmethod
    def backward(ctx, grad_attn, grad_scores):
        q, k, scores = ctx.saved_tensors
        slope = document().attn_slope(torch.tanh(scores))
        grad_scores = grad_scores + grad_attn * slope.conj()
        return torch.matmul(grad_scores, k.conj()), torch.matmul(
            grad_scores.mT, q.conj()
        )


class TestAttnTrap(TestCase):
    """Section 12: a backward that reads what autograd takes for a constant."""

    @skipIfTorchDynamo("Dynamo raises where an output is marked as not differentiable")
    @in_both_precise_dtypes
    @parametrize("name", ["SavesScores", "MarksScores"], name_fn=str)
    def test_gradcheck_passes_and_gradgradcheck_fails(self, name, dtype):
        def attn(q, k):
            result = getattr(document(), name).apply(q, k)
            return result if name == "SavesScores" else result[0]

        inputs = make_inputs(dtype=dtype)[:2]
        self.assertTrue(gradcheck(attn, inputs))
        with self.assertRaisesRegex(GradcheckError, "Jacobian mismatch"):
            gradgradcheck(attn, inputs)

    @in_both_precise_dtypes
    def test_what_is_missing_is_the_gradient_through_attn(self, dtype):
        q, k, v = make_inputs(dtype=dtype)
        grad_q, grad_k, _ = make_inputs(dtype=dtype)
        given = make_outputs(dtype=dtype)[1]

        def second(attn: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
            first = torch.autograd.grad(attn(q, k), (q, k), given, create_graph=True)
            return torch.autograd.grad(first, (q, k), (grad_q, grad_k))

        doc, attn = document(), torch.tanh(torch.matmul(q, k.mT))
        *_, through_attn = doc.attn_double_backward(
            grad_q, grad_k, None, None, given, q, k, v, attn
        )
        missing = doc.attn_backward(None, through_attn, q, k, v, attn)[:2]
        self.assertGreater(missing[0].abs().max(), 1e-3)
        self.assertEqual(
            [a + b for a, b in zip(second(doc.SavesScores.apply), missing)],
            [*second(lambda q, k: composition(q, k, v)[1])],
        )

    @skipIfTorchDynamo(
        "compiled autograd adds gradients that are undefined, and Dynamo traces "
        "no backward that calls another Function's"
    )
    @in_both_precise_dtypes
    def test_returning_the_scores_as_an_output_mends_it(self, dtype):
        def attn(*inputs):
            return ReturnsScores.apply(*inputs)[0]

        inputs = make_inputs(dtype=dtype)[:2]
        self.assertTrue(gradcheck(attn, inputs))
        self.assertTrue(gradgradcheck(attn, inputs))


instantiate_parametrized_tests(TestAttnTrap)


if __name__ == "__main__":
    run_tests()
