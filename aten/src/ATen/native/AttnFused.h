// Whether attn runs fused kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>

namespace at::native {

// Whether attn of q, k and v, or its backward for all gradients, runs fused
// kernels on the current device. Only sizes and dtype count: the operands may
// be meta tensors. A device without kernels registers nothing.
using attn_is_fused_fn =
    bool (*)(const Tensor& q, const Tensor& k, const Tensor& v, bool backward);

DECLARE_DISPATCH(attn_is_fused_fn, attn_is_fused_stub)

// is_faster, unless the environment variable TORCH_ATTN_KERNELS decides: 1 runs
// the kernels for all that they compute, 0 for nothing.
TORCH_API bool attn_runs_fused(bool is_faster);

} // namespace at::native
