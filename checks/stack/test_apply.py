"""This project's stack on a small PyTorch: the graph of its commits, and every line it adds beside its neighbours."""

from collections.abc import Iterator
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import MonkeyPatch, TempPathFactory, fixture, mark

from checks import ROOT
from checks.stack.small_pytorch import FILES, applied
from fork.checkout.message import messages
from fork.cli import main
from fork.series import Series
from fork.tests.helpers import QUIET_GIT, git

# One worker of pytest-xdist runs this file, so that its fixture is made once.
pytestmark = mark.xdist_group("apply_stack")
SERIES = Series.load(ROOT)


@fixture(scope="module")
def tree(tmp_path_factory: TempPathFactory) -> Iterator[Path]:
    """The checkout with the stack on it."""
    with applied(tmp_path_factory.mktemp("pytorch")) as path:
        yield path


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
    for row in git(tree, "diff", "--numstat", "main", "stack").splitlines():
        assert row.split("\t")[1] == "0", row


def test_upstream_has_every_header_already(tree: Path) -> None:
    """What a C++ fragment includes is for the fragment alone."""
    shown = git(tree, "diff", "--diff-filter=M", "main", "stack", "--", "*.h", "*.cpp")
    assert [line for line in shown.splitlines() if line.startswith("+#include")] == []


def test_each_line_in_its_place(tree: Path) -> None:
    """The files to which the stack adds entries rather than functions."""
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
+++ b/aten/src/ATen/autocast_mode.h
@@ -6,2 +6,3 @@
   _(addr)                               \\
+  _(attn)                               \\
   _(mm)
+++ b/build_variables.bzl
@@ -2,2 +2,3 @@ aten_native_source_codegen_list = [
     "aten/src/ATen/native/cpu/Activation.cpp",
+    "aten/src/ATen/native/cpu/AttnKernel.cpp",
     "aten/src/ATen/native/cpu/AvgPoolKernel.cpp",
@@ -7,2 +8,4 @@ aten_native_source_non_codegen_list = [
     "aten/src/ATen/native/AffineGridGenerator.cpp",
+    "aten/src/ATen/native/AttnCPU.cpp",
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
+++ b/tools/autograd/gen_variable_type.py
@@ -2,2 +2,4 @@ GRADIENT_IMPLEMENTED_FOR_COMPLEX = {
     "addr",
+    "attn",
+    "_attn_backward",
     "sum",
+++ b/torch/_decomp/__init__.py
@@ -15,2 +15,4 @@ def _core_aten_decompositions_post_autograd() -> dict[
             aten.arange.start,
+            aten.attn,
+            aten._attn_backward,
             aten.avg_pool2d_backward,
+++ b/torch/_dynamo/trace_rules.py
@@ -5,2 +5,3 @@ torch_c_binding_in_graph_functions = dict.fromkeys(
         "torch.atanh",
+        "torch.attn",
         "torch.baddbmm",
+++ b/torch/_functorch/partitioners.py
@@ -8,2 +8,3 @@ def get_default_op_list():
         aten.addmm,
+        aten.attn,
         aten.upsample_bilinear2d,
+++ b/torch/_inductor/lowering.py
@@ -10 +10,3 @@ def make_fallback(op, warn=True):
 make_fallback(aten._addmm_activation, warn=False)
+make_fallback(aten.attn, warn=False, override_decomp=True)
+make_fallback(aten._attn_backward, warn=False, override_decomp=True)
+++ b/torch/csrc/jit/passes/autocast.cpp
@@ -6,2 +6,3 @@ void handleBlock(Block* block, AutocastContext initial_state) {
       case aten::addr:
+      case aten::attn:
       case aten::matmul:
+++ b/torch/overrides.py
@@ -6,2 +6,3 @@ def get_testing_overrides():
         torch.atleast_3d: lambda *tensors: -1,
+        torch.attn: lambda q, k, v: -1,
         torch.baddbmm: lambda input, batch1, batch2: -1,
+++ b/torch/testing/_internal/autocast_test_lists.py
@@ -7,2 +7,3 @@ class AutocastTestLists:
             ("addr", mat0_fp32 + pointwise0_fp32),
+            ("attn", mat0_fp32 + mat1_fp32 + mat2_fp32),
             ("mm", mat0_fp32 + mat1_fp32),
@@ -15,2 +16,3 @@ class AutocastCPUTestLists:
             ("addbmm", mat0_fp32 + mat1_fp32),
+            ("attn", mat0_fp32 + mat1_fp32 + mat2_fp32),
             ("mm", mat0_fp32 + mat1_fp32),""",
    )


def test_the_export_gives_the_same_trees(tree: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for name, value in QUIET_GIT.items():
        monkeypatch.setenv(name, value)
    git(tree, "switch", "--quiet", "--detach", "main")
    assert main(["export", str(tree), str(tmp_path)]) == 0
    patches = sorted(str(file) for file in tmp_path.glob("*.patch"))
    assert len(patches) == len(SERIES.commits)
    git(tree, "am", "--quiet", *patches)
    for back in range(len(patches)):
        assert git(tree, "diff", f"stack~{back}", f"HEAD~{back}") == ""
        messages = [git(tree, "show", "-s", "--format=%B", f"{tip}~{back}") for tip in ("stack", "HEAD")]
        assert messages[0] == messages[1]
    git(tree, "switch", "--quiet", "stack")
