// Under vmap, attn runs as the operators that it is composed of.

#include <ATen/core/ATen_fwd.h> // fragment only
#include <ATen/ops/attn_native.h> // fragment only
#include <ATen/ops/attn_ops.h> // fragment only
#include <torch/library.h> // fragment only
#define OP_DECOMPOSE(op) m.impl(#op, at::native::op) // fragment only

namespace at::functorch {

TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
  OP_DECOMPOSE(attn);
}

} // namespace at::functorch
