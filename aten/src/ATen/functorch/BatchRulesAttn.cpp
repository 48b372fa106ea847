// attn and its backward under vmap: each of their products becomes one batched
// product, whichever inputs are batched.
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchRulesHelper.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/attn.h>

#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>

namespace at::functorch {

namespace {

using Bdim = std::optional<int64_t>;

// t as the function under vmap sees it, for the checks.
Tensor batched(const std::optional<Tensor>& t, Bdim bdim) {
  const int64_t level = maybeCurrentDynamicLayer()->layerId();
  return t && t->defined() ? makeBatched(*t, bdim, level) : Tensor();
}

Tensor front(const std::optional<Tensor>& t, Bdim bdim) {
  return t && t->defined() ? moveBatchDimToFront(*t, bdim) : Tensor();
}

// t as autocast, which comes after vmap, would hand it to the operator. Its
// cache stays as it is: it outlives the transforms that t may belong to.
Tensor cast(const Tensor& t) {
  const auto device = t.device().type();
  if (!autocast::is_autocast_available(device) ||
      !autocast::is_autocast_enabled(device) ||
      !autocast::is_eligible(t, device)) {
    return t;
  }
  return t.to(autocast::get_autocast_dtype(device));
}

std::tuple<Tensor, Bdim, Tensor, Bdim> attn_batch_rule(
    const Tensor& q_in,
    Bdim q_bdim,
    const Tensor& k_in,
    Bdim k_bdim,
    const Tensor& v_in,
    Bdim v_bdim) {
  const Tensor q = cast(q_in), k = cast(k_in), v = cast(v_in);
  native::check_attn_inputs(
      batched(q, q_bdim), batched(k, k_bdim), batched(v, v_bdim));

  const Tensor q_ = moveBatchDimToFront(q, q_bdim);
  const Tensor k_ = moveBatchDimToFront(k, k_bdim);
  const Tensor v_ = moveBatchDimToFront(v, v_bdim);
  Tensor attn = at::tanh(at::matmul(q_, k_.mT()));
  Tensor output = at::matmul(attn, v_);
  const Bdim attn_bdim = q_bdim || k_bdim ? Bdim(0) : std::nullopt;
  return std::make_tuple(
      std::move(output), Bdim(0), std::move(attn), attn_bdim);
}

Bdim bdim_of(const Tensor& grad) {
  return grad.defined() && grad.dim() == 3 ? Bdim(0) : std::nullopt;
}

std::tuple<Tensor, Bdim, Tensor, Bdim, Tensor, Bdim> attn_backward_batch_rule(
    const std::optional<Tensor>& grad_output,
    Bdim grad_output_bdim,
    const std::optional<Tensor>& grad_attn,
    Bdim grad_attn_bdim,
    const std::optional<Tensor>& q,
    Bdim q_bdim,
    const std::optional<Tensor>& k,
    Bdim k_bdim,
    const std::optional<Tensor>& v,
    Bdim v_bdim,
    const Tensor& attn,
    Bdim attn_bdim,
    std::array<bool, 3> output_mask) {
  const native::AttnBackwardArgs inside{
      batched(grad_output, grad_output_bdim),
      batched(grad_attn, grad_attn_bdim),
      batched(q, q_bdim),
      batched(k, k_bdim),
      batched(v, v_bdim),
      batched(attn, attn_bdim),
      output_mask};
  inside.check();
  const native::AttnBackwardArgs args{
      front(grad_output, grad_output_bdim),
      front(grad_attn, grad_attn_bdim),
      front(q, q_bdim),
      front(k, k_bdim),
      front(v, v_bdim),
      front(attn, attn_bdim),
      output_mask};
  auto [grad_q, grad_k, grad_v] =
      native::attn_backward_composed(args, /*in_place=*/false);
  return std::make_tuple(
      grad_q,
      bdim_of(grad_q),
      grad_k,
      bdim_of(grad_k),
      grad_v,
      bdim_of(grad_v));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  VMAP_SUPPORT(attn, attn_batch_rule);
  VMAP_SUPPORT(_attn_backward, attn_backward_batch_rule);
}

} // namespace at::functorch
