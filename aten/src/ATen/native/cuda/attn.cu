// attn(q, k, v) and its backward on CUDA: by the fused kernels where they fit,
// by cuBLAS products elsewhere.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/TensorOperators.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/attn.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#endif

#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnLaunch.cuh>
#endif

#include <algorithm>
#include <type_traits>

namespace at::native {

std::tuple<Tensor, Tensor> attn_cuda(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  check_attn_inputs(q, k, v);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
#if !defined(USE_ROCM)
  const int64_t n = q.size(0), d = q.size(1), e = v.size(1);
  if (n > 0 && d > 0 && e > 0) {
    Tensor output, attn;
    const bool fused = attn_fused::with_arithmetic(
        q.scalar_type(), std::max<int64_t>(d, e), false, [&](auto* arithmetic) {
          using A = std::remove_pointer_t<decltype(arithmetic)>;
          attn = at::empty({n, n}, q.options());
          output = at::empty({n, e}, q.options());
          attn_fused::run_forward<A>(output, attn, q, k, v);
        });
    if (fused) {
      return std::make_tuple(std::move(output), std::move(attn));
    }
  }
#endif
  return attn_composed(q, k, v);
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cuda(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const std::optional<Tensor>& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  // The dispatcher sets the device of grad_output, which can be missing.
  const c10::DeviceGuard guard(attn.device());
  AttnBackward x = attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask);
#if !defined(USE_ROCM)
  const auto like = [](const Tensor& t, bool wanted) {
    return wanted ? at::empty(t.sizes(), t.options()) : Tensor();
  };
  Tensor grad_q = like(x.k, output_mask[0] && x.wants_scores());
  Tensor grad_k = like(x.q, output_mask[1] && x.wants_scores());
  Tensor grad_v =
      like(x.grad_output, output_mask[2] && x.grad_output.defined());
  int64_t least = x.attn.size(0), most = 0;
  for (const Tensor& t : {grad_q, grad_k, x.grad_output}) {
    if (t.defined()) {
      least = std::min<int64_t>(least, t.size(1));
      most = std::max<int64_t>(most, t.size(1));
    }
  }
  x.attn = x.attn.contiguous();
  const bool fused = x.wants_scores() && least > 0 &&
      attn_fused::with_arithmetic(
                         x.attn.scalar_type(),
                         most,
                         x.grad_attn.defined(),
                         [&](auto* arithmetic) {
                           using A =
                               std::remove_pointer_t<decltype(arithmetic)>;
                           attn_fused::run_backward<A>(
                               grad_q,
                               grad_k,
                               grad_v,
                               x.grad_output,
                               x.grad_attn,
                               x.q,
                               x.k,
                               x.v,
                               x.attn);
                         });
  if (fused) {
    if (grad_v.defined() && !grad_k.defined()) {
      at::mm_out(grad_v, x.attn.t(), x.grad_output);
    }
    return std::make_tuple(
        std::move(grad_q), std::move(grad_k), std::move(grad_v));
  }
#endif
  return attn_backward_composed(x);
}

} // namespace at::native
