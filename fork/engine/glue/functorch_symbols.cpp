// What batch rules call and libtorch_cpu keeps hidden.
#include <ATen/core/Tensor.h>
#include <ATen/functorch/DynamicLayer.h>

namespace at::functorch {

Tensor moveBatchDimToFront(Tensor tensor, std::optional<int64_t> batch_dim) {
  return batch_dim.value_or(0) == 0 ? tensor : tensor.movedim(*batch_dim, 0);
}

int64_t rankWithoutBatchDim(
    const Tensor& tensor,
    std::optional<int64_t> batch_dim) {
  return tensor.dim() - (batch_dim.has_value() ? 1 : 0);
}

void vmap_check_escaped(
    const std::optional<DynamicLayer>& layer,
    const char* what_str) {
  TORCH_CHECK(
      layer.has_value(),
      what_str,
      ": a tensor made inside vmap was used outside of it: return it from the "
      "function instead");
}

} // namespace at::functorch
