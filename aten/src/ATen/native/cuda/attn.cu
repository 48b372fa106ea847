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

std::tuple<Tensor, Tensor>
attn_cuda(const Tensor& q_, const Tensor& k_, const Tensor& v_) {
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
  Tensor attn = at::mm(q, k.t()).tanh_();
  Tensor output = at::mm(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cuda(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn_,
    std::array<bool, 3> output_mask) {
  // The dispatcher sets the device of grad_output, which can be missing.
  const c10::DeviceGuard guard(attn_.device());
  const Tensor grad_output = attn_resolved(grad_output_),
               grad_attn = attn_resolved(grad_attn_);
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  const Tensor attn = attn_resolved(attn_).contiguous();
  check_attn_backward_inputs(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t n = attn.size(0);
  const bool any = grad_output.defined() || grad_attn.defined();
  const auto like = [](const Tensor& t, bool wanted) {
    return wanted ? at::empty(t.sizes(), t.options()) : Tensor();
  };
  Tensor grad_q = like(k, output_mask[0] && any);
  Tensor grad_k = like(q, output_mask[1] && any);
  Tensor grad_v = like(grad_output, output_mask[2] && grad_output.defined());
  const bool want_scores = grad_q.defined() || grad_k.defined();
  bool fused = false;
#if !defined(USE_ROCM)
  int64_t least = n, most = 0;
  for (const Tensor& t : {grad_q, grad_k, grad_output}) {
    if (t.defined()) {
      least = std::min<int64_t>(least, t.size(1));
      most = std::max<int64_t>(most, t.size(1));
    }
  }
  fused =
      want_scores && least > 0 &&
      attn_fused::with_arithmetic(
          attn.scalar_type(), most, grad_attn.defined(), [&](auto* arithmetic) {
            using A = std::remove_pointer_t<decltype(arithmetic)>;
            attn_fused::run_backward<A>(
                grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
          });
#endif
  if (want_scores && !fused) {
    // An eighth of the rows at a time, so that no N x N tensor is made.
    const int64_t rows = std::max<int64_t>(at::ceil_div<int64_t>(n, 8), 512);
    attn_backward_by_rows(
        grad_q, grad_k, grad_output, grad_attn, q, k, v, attn, rows);
  }
  if (grad_v.defined() && !(fused && grad_k.defined())) {
    // mm reads the lazy conjugate itself. Below the Python key most operators
    // would ignore it.
    at::mm_out(grad_v, attn.mH(), grad_output);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native
