"""What each fix changes: our own words for a bug that a merged pull request of pytorch/pytorch mended.

An edit replaces text inside one function, or anywhere in the file where no function is named. Each pattern has to be
found, so a checkout in which the bug is mended already, or looks different, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fork.errors import ForkError

NATIVE = "aten/src/ATen/native"


@dataclass(frozen=True)
class Edit:
    """A regular expression and what takes its place, everywhere between `begin` and the next line that is `}`."""

    path: str
    begin: str
    pattern: str
    text: str

    def apply(self, tree: Path) -> None:
        file = tree / self.path
        before = file.read_text()
        start = before.find(self.begin)
        end = before.find("\n}", start)
        if start < 0 or end < 0:
            raise ForkError(f"{file} has no {self.begin!r}: these fixes are for PyTorch 2.7")
        inside, count = re.subn(self.pattern, self.text, before[start:end])
        if not count:
            raise ForkError(f"{self.begin!r} of {file} has no {self.pattern!r}: these fixes are for PyTorch 2.7")
        file.write_text(before[:start] + inside + before[end:])


@dataclass(frozen=True)
class Fix:
    """A pull request by its number, what was wrong, and what kind of code it touches; the test has the fix's name."""

    name: str
    pull: int
    wrong: str
    kind: str
    edits: tuple[Edit, ...]

    @property
    def test(self) -> Path:
        return Path(__file__).parent / "tests" / f"{self.name}.py"


SHUFFLE = f"{NATIVE}/ChanelShuffle.cpp"
SHUFFLE_CHECKS = """{
  TORCH_CHECK(self.dim() > 2, "native_channel_shuffle: expected at least 3 dimensions, but got sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "native_channel_shuffle: expected a positive number of groups, but got ", groups);
  TORCH_CHECK(
      self.size(1) % groups == 0,
      "native_channel_shuffle: expected a number of groups that divides ", self.size(1), " channels, but got ", groups);
"""
REAL = (
    "  TORCH_CHECK(\n      !self.is_complex(),\n"
    '      {}, ": expected real numbers, since complex ones have no order, but got ", self.scalar_type());\n'
)
TOPK = '"topk()"'
BAG_CHECK = """  TORCH_CHECK(
      offsets.numel() > 0 || indices.numel() == 0,
      "embedding_bag: expected an offset for ", indices.numel(), " indices, but got none");
"""
GLOO = "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
UNBIND_RULE = """std::tuple<std::vector<Tensor>, std::optional<int64_t>> unbind_copy_batch_rule(
    const Tensor& self, std::optional<int64_t> self_bdim, int64_t dim) {
  const auto batched = moveBatchDimToFront(self, self_bdim);
  return {at::unbind_copy(batched, maybe_wrap_dim(dim, batched.dim() - 1) + 1), 0};
}

"""

FIXES = (
    Fix(
        "hardswish",
        148049,
        "the gradient of hardswish at -3 and 3",
        "CPU kernel, three capabilities",
        tuple(
            Edit(f"{NATIVE}/cpu/Activation.cpp", "void hardswish_backward_kernel(", pattern, text)
            for pattern, text in (
                (r"(self_val\)?) < neg_three", r"\1 <= neg_three"),
                (r"(self_val\)?) <= three", r"\1 < three"),
                (r"> kThreeVec", ">= kThreeVec"),
                (r"< kNegThreeVec", "<= kNegThreeVec"),
            )
        ),
    ),
    Fix(
        "atan2",
        166787,
        "the gradient of atan2 at the origin is NaN",
        "formula of autograd, which the library hides",
        (
            Edit(
                "torch/csrc/autograd/FunctionsManual.cpp",
                "atan2_backward(",
                r"auto recip = \((.*?)\)\.reciprocal\(\);",
                r"const auto square = \1;\n  const auto recip = square.reciprocal().masked_fill(square == 0, 0);",
            ),
        ),
    ),
    Fix(
        "argmax",
        159556,
        "argmax and argmin take a single complex number",
        "structured kernels",
        (
            Edit(
                f"{NATIVE}/ReduceOps.cpp",
                "static void check_argmax_argmin(",
                r"dim\) \{\n",
                f"dim) {{\n{REAL.format('name')}",
            ),
            Edit(
                f"{NATIVE}/Sorting.cpp",
                "TORCH_META_FUNC(topk)",
                r"sorted\) \{\n",
                f"sorted) {{\n{REAL.format(TOPK)}",
            ),
        ),
    ),
    Fix(
        "channel_shuffle",
        181029,
        "native_channel_shuffle without groups ends the process",
        "checks of shapes, with a message",
        (
            Edit(SHUFFLE, "Tensor channel_shuffle_cpu(", r"\{\n(?=  Tensor output;)", SHUFFLE_CHECKS),
            Edit(SHUFFLE, "Tensor math_channel_shuffle(", r"\{\n(?=  int64_t b)", SHUFFLE_CHECKS),
        ),
    ),
    Fix(
        "embedding_bag",
        175487,
        "embedding_bag of float64 without offsets ends the process",
        "an exported function that other sources call",
        (
            Edit(
                f"{NATIVE}/EmbeddingBag.cpp",
                "void check_arguments(",
                r"(?=  AT_DISPATCH_INDEX_TYPES\(offsets)",
                BAG_CHECK,
            ),
        ),
    ),
    Fix(
        "gloo_average",
        149781,
        "gloo has no average (ReduceOp.AVG)",
        "c10d: a class that other libraries make",
        (
            Edit(
                GLOO,
                "ReduceFunc toFunction(",
                r"(case ReduceOp::AVG:\n\s+)TORCH_CHECK\([^;]*;\n\s+break;",
                r"\1return ReduceFunc(&::gloo::sum<T>);",
            ),
            Edit(
                GLOO,
                "class AsyncAllreduceWork ",
                r"gloo::allreduce\(opts\);\n",
                r"gloo::allreduce(opts);\n    if (reduceOp == ReduceOp::AVG) tensors[0].div_(context->size);\n",
            ),
        ),
    ),
    Fix(
        "unbind_copy",
        178035,
        "vmap refuses unbind_copy",
        "a new batch rule, and its line in a list",
        (
            Edit(
                "aten/src/ATen/functorch/BatchRulesViews.cpp",
                "std::tuple<Tensor, std::optional<int64_t>> diag_embed_batch_rule(",
                r"\A",
                UNBIND_RULE,
            ),
            Edit(
                "aten/src/ATen/functorch/BatchRulesViews.cpp",
                "  VMAP_SUPPORT(diag_embed,",
                r"\A",
                "  VMAP_SUPPORT2(unbind_copy, int, unbind_copy_batch_rule);\n",
            ),
        ),
    ),
)
