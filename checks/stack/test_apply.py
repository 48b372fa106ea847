"""This stack on a checkout: the graph of its commits, and that each only adds, in places that read well."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from expecttest import assert_expected_inline
from pytest import TempPathFactory, fixture, mark, raises

from checks.stack.upstream import BASE, FILES, SERIES, UPSTREAM, applied
from fork.checkout.message import messages
from fork.errors import ForkError
from fork.tests.helpers import git
from fork.weave import weave_all

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = mark.xdist_group("apply_stack")


@fixture(scope="module")
def tree(tmp_path_factory: TempPathFactory) -> Iterator[Path]:
    """The checkout with the stack on it."""
    with applied(tmp_path_factory.mktemp("pytorch")) as path:
        yield path


@cache
def entries_of(text: str) -> list[object]:
    found = yaml.load(text, yaml.CSafeLoader)
    assert isinstance(found, list)
    return found


def test_the_commits(tree: Path) -> None:
    assert_expected_inline(
        git(tree, "log", "--graph", "--format=%s"),
        """\
* Give torch.attn fused CUDA kernels
* Give torch.attn fused CPU kernels
* Make torch.attn one operator with formulas
* Add torch.attn, tanh attention composed of matmul and tanh
* Write the gradient of attn as custom Functions in Python and C++
* Derive the gradient of attn on paper
* base
""",
    )


def test_a_commit_has_its_description_as_message(tree: Path) -> None:
    said = [str(message) for pr in SERIES.prs for message in messages(SERIES, pr)]
    for commit, text in zip(git(tree, "rev-list", "--reverse", "main..stack").split(), said, strict=True):
        assert git(tree, "show", "-s", "--format=%B", commit).strip() == text.strip()


def test_nothing_of_upstream_is_lost_or_moved(tree: Path) -> None:
    """And what every commit leaves parses; no line says that it is for the fragment alone."""
    for commit in git(tree, "rev-list", "main..stack").split():
        for row in git(tree, "diff", "--numstat", "main", commit).splitlines():
            _, removed, path = row.split("\t")
            assert removed == "0", row
            text = git(tree, "show", f"{commit}:{path}")
            assert "fragment only" not in text
            if path.endswith(".py"):
                ast.parse(text)
            if path.endswith(".yaml") and path in UPSTREAM:
                entries, theirs = entries_of(text), entries_of(UPSTREAM[path])
                ours = [entry for entry in entries if entry not in theirs]
                assert len(entries) == len(theirs) + len(ours) and all("attn" in str(entry) for entry in ours)


def test_a_checkout_that_has_the_stack_already_is_refused(tree: Path) -> None:
    woven = {path: git(tree, "show", f"stack:{path}") for path in UPSTREAM if path.endswith(".yaml")}
    state = {path: file for path, file in SERIES.state(SERIES.find()).items() if path in woven}
    with raises(ForkError, match="already"):
        weave_all(state, SERIES.anchors, woven.get)


def test_most_files_are_pytorchs_own() -> None:
    assert sum(BASE.read(path) is not None for path in SERIES.anchors) >= 15


def test_upstream_has_every_header_already(tree: Path) -> None:
    """What a C++ fragment includes is for the fragment alone."""
    shown = git(tree, "diff", "--diff-filter=M", "main", "stack", "--", "*.h", "*.cpp")
    assert [line for line in shown.splitlines() if line.startswith("+#include")] == []


def test_each_line_in_its_place(tree: Path) -> None:
    """Beside which neighbours, in the files that are written here."""
    few = [row.split("\t") for row in git(tree, "diff", "--numstat", "main", "stack").splitlines()]
    paths = [path for added, _, path in few if path in FILES and int(added) <= 5]
    shown = git(tree, "diff", "-U1", "main", "stack", "--", *paths)
    kept = [line.rstrip() for line in shown.splitlines() if not line.startswith(("diff ", "index ", "--- "))]
    assert_expected_inline(
        "\n".join(kept),
        """\
+++ b/aten/src/ATen/autocast_mode.cpp
@@ -6,2 +6,3 @@ TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
   KERNEL_MPS(addr, lower_precision_fp)
+  KERNEL_MPS(attn, lower_precision_fp)
   KERNEL_MPS(matmul, lower_precision_fp)
@@ -10,2 +11,3 @@ TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
   KERNEL_CPU(addbmm, lower_precision_fp)
+  KERNEL_CPU(attn, lower_precision_fp)
   KERNEL_CPU(linear, lower_precision_fp)
+++ b/build_variables.bzl
@@ -2,2 +2,3 @@ aten_native_source_codegen_list = [
     "aten/src/ATen/native/cpu/Activation.cpp",
+    "aten/src/ATen/native/cpu/AttnKernel.cpp",
     "aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
@@ -7,2 +8,5 @@ aten_native_source_non_codegen_list = [
     "aten/src/ATen/native/AffineGridGenerator.cpp",
+    "aten/src/ATen/native/AttnCPU.cpp",
+    "aten/src/ATen/native/AttnFused.cpp",
+    "aten/src/ATen/native/attn.cpp",
     "aten/src/ATen/native/AveragePool2d.cpp",
+++ b/docs/source/amp.md
@@ -5,2 +5,3 @@
 `addr`,
+`attn`,
 `mm`
@@ -10,2 +11,3 @@
 `addr`,
+`attn`,
 `mm`
@@ -15,2 +17,3 @@
 `addbmm`,
+`attn`,
 `mm`
+++ b/docs/source/torch.rst
@@ -7,2 +7,3 @@ BLAS and LAPACK Operations
     addr
+    attn
     baddbmm
+++ b/test/inductor/test_torchinductor_opinfo.py
@@ -12,2 +12,3 @@ inductor_override_kwargs["cpu"] = {
     ("softmax", f16): {"atol": 1e-4, "rtol": 0.02},
+    ("attn", f16): {"atol": 1e-3, "rtol": 2e-3},
     ("polygamma.polygamma_n_0", f16): {"atol": 1e-3, "rtol": 1e-4},
+++ b/test/test_decomp.py
@@ -7,2 +7,7 @@ def op_assert_ref(test_case, op, test_dtype, i, orig, decomp, ref, args, kwargs)
         (torch.bfloat16, torch.ops.aten.mv.default): 1e-5,
+        # the kernels round once, composed operators after each product
+        (torch.float16, torch.ops.aten.attn.default): 2e-3,
+        (torch.bfloat16, torch.ops.aten.attn.default): 1e-2,
+        (torch.float16, torch.ops.aten._attn_backward.default): 2e-2,
+        (torch.bfloat16, torch.ops.aten._attn_backward.default): 1e-1,
         (torch.float16, torch.ops.aten.dot.default): 2e-6,
+++ b/test/test_namedtuple_return_api.py
@@ -6,2 +6,3 @@ all_operators_with_namedtuple_return = {
     'frexp', 'lu_unpack', 'histogram', 'histogramdd',
+    'attn',
     'aminmax'
@@ -16,2 +17,3 @@ class TestNamedTupleAPI(TestCase):
             op(operators=['aminmax'], input=(), names=('min', 'max'), hasout=True),
+            op(operators=['attn'], input=(a, a), names=('output', 'attn'), hasout=False),
             op(operators=['frexp'], input=(), names=('mantissa', 'exponent'), hasout=True),
+++ b/torch/csrc/jit/passes/autocast.cpp
@@ -6,2 +6,3 @@ void handleBlock(Block* block, AutocastContext initial_state) {
       case aten::addr:
+      case aten::attn:
       case aten::matmul:""",
    )
