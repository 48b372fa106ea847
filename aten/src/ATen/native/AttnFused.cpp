// Whether attn runs fused kernels, for the kernels themselves and for
// compilers.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/native/AttnFused.h>
#include <ATen/native/attn.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/env.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_is_fused_native.h>
#endif

namespace at::native {

DEFINE_DISPATCH(attn_is_fused_stub);

bool attn_runs_fused(bool is_faster) {
  static const auto forced = c10::utils::check_env("TORCH_ATTN_KERNELS");
  return forced.value_or(is_faster);
}

bool _attn_is_fused(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    bool backward,
    Device device) {
  check_attn_inputs(q, k, v);
  if (!attn_is_fused_stub.is_device_supported(device.type())) {
    return false;
  }
  const c10::DeviceGuard guard(device);
  return attn_is_fused_stub(device.type(), q, k, v, backward);
}

} // namespace at::native
