// What the kernels of attn and its backward share: the checks of every backend,
// and both composed of ATen's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace at::native {

// Undefined, or without a lazy conjugate or negation. Dispatch modes and tensor
// subclasses call kernels below the Python key, where nobody else resolves it.
TORCH_API Tensor attn_resolved(const std::optional<Tensor>& t);

// Raises an error unless q is (N, D), k (N, D), v (N, E), all on one
// device and of one dtype: float16, bfloat16, float32, float64, complex64 or
// complex128.
TORCH_API void check_attn_inputs(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// Fills a new attn (N, N) with tanh(q @ k.T) and a new output (N, E) with
// attn @ v, without checks: the products and tanh of ATen.
TORCH_API std::tuple<Tensor, Tensor> attn_composed(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// The operands of _attn_backward. grad_output is (N, E), grad_attn (N, N). One
// that is undefined has no part in the gradients. Operands that no requested
// gradient needs may be undefined: grad_k needs q; grad_q needs k; both need v
// where grad_output is defined.
struct TORCH_API AttnBackward {
  Tensor grad_output, grad_attn, q, k, v, attn;
  std::array<bool, 3> output_mask;

  // Whether grad_q or grad_k is requested and has a term.
  bool wants_scores() const;

  // Raises an error unless the sizes fit, and all are on one device and of one
  // dtype that attn is defined for.
  void check() const;
};

// Resolved and checked.
TORCH_API AttnBackward attn_backward_operands(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const std::optional<Tensor>& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask);

// With X = (grad_attn + grad_output @ v^H) * conj(1 - attn^2):
//   grad_q = X @ conj(k)      grad_k = X^T @ conj(q)
//   grad_v = attn^H @ grad_output
// without checks, by the products of ATen. What is not requested, or has no
// term, is undefined. X takes the place of the product it is made from; where
// that is not allowed, under vmap, tensors may have a batch dimension in front.
TORCH_API std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const AttnBackward& x,
    bool in_place = true);

} // namespace at::native
