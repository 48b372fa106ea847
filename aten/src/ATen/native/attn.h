// The kernels that attn and its backward dispatch to, and the checks that every
// backend shares.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>

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
TORCH_API void
check_attn_inputs(const Tensor& q, const Tensor& k, const Tensor& v);

// Raises an error unless grad_output is (N, E), grad_attn and attn are (N, N),
// and they and q, k, v are of one device and of one dtype. All but attn may be
// undefined where no gradient that output_mask asks for needs them.
TORCH_API void check_attn_backward_inputs(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask);

// The backward composed of other operators, without checks. All tensors may
// have a batch dimension in front.
TORCH_API std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask);

// Fills grad_q and grad_k, where they are defined, from this many rows of attn
// at a time, so that no temporary is as large as attn. A sum over the blocks of
// rows is in float32 where the dtype is a half one.
TORCH_API void attn_backward_by_rows(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    int64_t block);

// Fills output (N, E) and attn (N, N). All are contiguous.
using attn_fn = void (*)(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// The gradients that are wanted and what they are made of. An undefined
// grad_output or grad_attn has no part in them, and of q, k and v only what the
// wanted gradients need is defined: q for grad_k; k for grad_q; v for both,
// with grad_output. All but grad_attn are contiguous.
struct AttnBackward {
  Tensor grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn;
};

// Fills the gradients that are defined.
using attn_backward_fn = void (*)(const AttnBackward& x);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
