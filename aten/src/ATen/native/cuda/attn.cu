// attn(q, k, v) and its backward on CUDA: by the fused kernels for the sizes
// that they take, composed elsewhere.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/attn.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#endif

#if !defined(USE_ROCM)
#include <ATen/native/AttnFused.h>
#include <ATen/native/cuda/AttnRule.h>
#include <ATen/native/cuda/AttnLaunch.cuh>
#endif

namespace at::native {

#if !defined(USE_ROCM)
namespace {

bool is_fused(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    bool backward) {
  const attn_fused::AttnCall call{
      backward,
      at::cuda::getCurrentDeviceProperties()->major,
      q.scalar_type(),
      q.dim() - 2,
      c10::multiply_integers(q.sizes().slice(0, q.dim() - 2)),
      q.size(-2),
      k.size(-2),
      k.size(-1),
      v.size(-1)};
  return attn_fused::can_use_kernels(call) &&
      attn_runs_fused(attn_fused::are_kernels_faster(call)) &&
      attn_fused::has_device_code();
}

} // namespace

REGISTER_CUDA_DISPATCH(attn_is_fused_stub, &is_fused)
#endif

std::tuple<Tensor, Tensor> attn_cuda(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  check_attn_inputs(q, k, v);
#if !defined(USE_ROCM)
  if (is_fused(q, k, v, false)) {
    return AT_DISPATCH_REDUCED_FLOATING_TYPES(
        q.scalar_type(), "attn_cuda", [&] {
          return attn_fused::run_forward<scalar_t>(q, k, v);
        });
  }
#endif
  return attn_composed(q, k, v);
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cuda(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  // The dispatcher sets the device of grad_output, which can be missing.
  const c10::DeviceGuard guard(attn.device());
  const AttnBackwardArgs args = attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask);
#if !defined(USE_ROCM)
  // One kernel has grad_q, another grad_k with grad_v; all three were measured.
  const auto [grad_q, grad_k, grad_v] = output_mask;
  const bool has_kernels = args.grad_output.defined() &&
      !args.grad_attn.defined() && (grad_k || (grad_q && !grad_v));
  if (has_kernels && attn_runs_fused(grad_q && grad_k && grad_v) &&
      is_fused(args.q, args.k, args.v, true)) {
    return AT_DISPATCH_REDUCED_FLOATING_TYPES(
        attn.scalar_type(), "_attn_backward_cuda", [&] {
          return attn_fused::run_backward<scalar_t>(args);
        });
  }
#endif
  return attn_backward_composed(args);
}

} // namespace at::native
