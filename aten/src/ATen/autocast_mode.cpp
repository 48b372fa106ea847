// attn among the operators that autocast runs in lower precision on the devices
// with lists of their own.
#include <ATen/autocast_mode.h>
#include <ATen/ops/attn_ops.h> // fragment only

namespace at::autocast { // fragment only
namespace { // fragment only

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
  KERNEL_MPS(attn, lower_precision_fp)
}

} // namespace // fragment only
namespace { // fragment only

TORCH_LIBRARY_IMPL(aten, AutocastCPU, m) {
  KERNEL_CPU(attn, lower_precision_fp)
}

} // namespace // fragment only
} // namespace at::autocast // fragment only
