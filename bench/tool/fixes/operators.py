"""Fixes of what an operator is: its entry, its overloads, its derivative and what is registered for it."""

from __future__ import annotations

from bench.tool.fixes.edits import NATIVE, Edit, Fix

UNBIND_RULE = """std::tuple<std::vector<Tensor>, std::optional<int64_t>> unbind_copy_batch_rule(
    const Tensor& self, std::optional<int64_t> self_bdim, int64_t dim) {
  const auto batched = moveBatchDimToFront(self, self_bdim);
  return {at::unbind_copy(batched, maybe_wrap_dim(dim, batched.dim() - 1) + 1), 0};
}

"""
YAML = f"{NATIVE}/native_functions.yaml"
SCALAR_ENTRY = """

- func: {0}.Scalar(Tensor self, Scalar other) -> Tensor
  device_check: NoCheck   # TensorIterator
  variants: method, function
  tags: pointwise"""
SCALAR_KERNEL = """Tensor {0}(const Tensor& self, const Scalar& other) {{
  return at::{0}(self, native::wrapped_scalar_tensor(other));
}}

"""
EINSUM_ENTRY = """

- func: einsum.out(str equation, Tensor[] tensors, *, int[]? path=None, Tensor(a!) out) -> Tensor(a!)"""
EINSUM_KERNEL = """Tensor& einsum_out(
    std::string_view equation, TensorList operands, at::OptionalIntArrayRef path, Tensor& out) {
  const auto result = at::native::einsum(equation, operands, path);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

"""
CSR_SOFTMAX = """Tensor softmax_sparse_csr_cpu(const Tensor& input, const int64_t dim, const bool half_to_float) {
  TORCH_CHECK(
      input.layout() == kSparseCsr,
      "softmax: of the compressed sparse layouts, CSR alone is supported, but got ", input.layout());
  return softmax_sparse_cpu(input.to_sparse(), dim, half_to_float).to_sparse_csr();
}

"""

OPERATORS = (
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
    Fix(
        "minimum",
        69524,
        "maximum and minimum do not take a number",
        "new overloads of operators",
        tuple(
            edit
            for name in ("maximum", "minimum")
            for edit in (
                Edit(YAML, f"- func: {name}.out(", r"\Z", SCALAR_ENTRY.format(name), "\n\n"),
                Edit(f"{NATIVE}/BinaryOps.cpp", "// binary max, alias for maximum", r"\A", SCALAR_KERNEL.format(name)),
            )
        ),
    ),
    Fix(
        "einsum_out",
        75701,
        "einsum has no out=",
        "a variant of an operator, and its Python function",
        (
            Edit(YAML, "- func: einsum(", r"\Z", EINSUM_ENTRY, "\n\n"),
            Edit(f"{NATIVE}/Linear.cpp", "Tensor bilinear(", r"\A", EINSUM_KERNEL),
            Edit(
                "torch/functional.py",
                "def einsum(*args: Any",
                r"def einsum\(\*args: Any",
                "def einsum(*args: Any, out: Optional[Tensor] = None",
                "\n",
            ),
            Edit(
                "torch/functional.py",
                "    # This wrapper exists to support variadic args.\n    if len(args) < 2:",
                r"((?:return |_VF\.)einsum\(equation, .*|handle_torch_function\(.*)\)",
                r"\1, out=out)",
                "\n\n\n",
            ),
        ),
    ),
    Fix(
        "autocast_scatter_add",
        51730,
        "scatter_add of two dtypes fails under autocast",
        "an entry of autocast",
        (
            Edit(
                "aten/src/ATen/autocast_mode.cpp",
                "  KERNEL_CPU(stack, promote)",
                r"\A",
                "  KERNEL_CPU(scatter_add, promote)\n",
            ),
        ),
    ),
    Fix(
        "csr_softmax",
        105329,
        "softmax does not take CSR tensors",
        "a dispatch key of an operator, and its kernel",
        (
            Edit(
                YAML,
                "- func: _sparse_softmax(Tensor self",
                r"(    )SparseCPU: softmax_sparse_cpu\n",
                r"\g<0>\1SparseCsrCPU: softmax_sparse_csr_cpu\n",
                "\n\n",
            ),
            Edit(f"{NATIVE}/sparse/SoftMax.cpp", "Tensor log_softmax_sparse_cpu(", r"\A", CSR_SOFTMAX),
        ),
    ),
)
