// attn and its backward: their checks, and both composed of ATen's operators,
// for the kernels of every backend.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace at::native {

// t with its lazy conjugate and negation resolved; undefined if t is. Below
// dispatch modes and tensor subclasses nobody else resolves them.
TORCH_API Tensor attn_resolved(const std::optional<Tensor>& t);

// Raises an error unless q is (*, M, D), k (*, N, D), v (*, N, E), where * is
// any number of leading dimensions, all on one device and of one dtype:
// float16, bfloat16, float32, float64, complex64 or complex128.
TORCH_API void check_attn_inputs(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// Returns a new tensor for a result of as many rows as `like`: output is like
// q, grad_q like q, grad_k like k and grad_v like v. It has like's sizes but
// for the last, is dense, and has the last dimension last in memory, the others
// in the order of like's strides. Expanded dimensions come first. One of size 1
// stands before its successor, whatever its stride is. So the layout of a
// result depends on an input's strides alone, not on what computes the result.
TORCH_API Tensor attn_empty_like(const Tensor& like, int64_t columns);

// Returns x, which is contiguous, with its dimensions in that order in memory.
TORCH_API Tensor attn_laid_out_like(const Tensor& like, const Tensor& x);

// Returns output = attn @ v and attn = tanh(q @ k.mT), without checks.
TORCH_API std::tuple<Tensor, Tensor> attn_composed(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// The operands of _attn_backward. grad_output is (*, M, E), grad_attn
// (*, M, N); the term of an undefined one is left out. Operands that no
// requested gradient needs may be undefined: grad_k needs q; grad_q needs k;
// both need v where grad_output is defined.
struct TORCH_API AttnBackwardArgs {
  Tensor grad_output, grad_attn, q, k, v, attn;
  std::array<bool, 3> output_mask;

  // Whether grad_q or grad_k is requested and has a term.
  bool wants_scores_gradient() const;

  // Raises an error unless every needed operand is defined, the sizes fit, and
  // all are on one device and of one dtype that attn supports.
  void check() const;
};

// The operands, resolved and checked.
TORCH_API AttnBackwardArgs attn_backward_operands(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask);

// With X = (grad_attn + grad_output @ v^H) * conj(1 - attn^2):
//   grad_q = X @ conj(k)      grad_k = X^T @ conj(q)
//   grad_v = attn^H @ grad_output
// without checks. A gradient that is not requested, or has no term, is
// undefined.
TORCH_API std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const AttnBackwardArgs& args);

} // namespace at::native
