// The CPU kernels of attn and of its backward.
#pragma once

#include <ATen/native/DispatchStub.h>
#include <ATen/native/attn.h>

namespace at::native {

// Fills output (*, M, E) and attn (*, M, N), which is contiguous. Of q, k and v
// the last stride is 1 and rows lie at least their width apart. Leading strides
// are free, and no size but E is 0.
using attn_fn = void (*)(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

struct AttnGradients {
  Tensor grad_q, grad_k, grad_v;
};

// Fills the gradients that are defined, under the same conditions: attn may
// have strides too, and grad_attn any.
using attn_backward_fn =
    void (*)(const AttnGradients& grads, const AttnBackwardArgs& args);

DECLARE_DISPATCH(attn_fn, attn_stub)
DECLARE_DISPATCH(attn_backward_fn, attn_backward_stub)

} // namespace at::native
