// The derivatives of attn and of its backward, in reverse and forward mode.
// docs/attn_gradient.md derives them, and says what G, X and W are.
#include <torch/csrc/autograd/FunctionsManual.h>

#include <ATen/ATen.h>
#include <ATen/ops/_attn_backward.h> // fragment only
#include <c10/core/impl/LocalDispatchKeySet.h> // fragment only

namespace torch::autograd::generated::details {

namespace {

// A missing gradient is undefined, a missing tangent an efficient zero tensor.
// The functions below leave a missing term out, and return an undefined tensor
// where no term is left.
bool is_missing(const Tensor& t) {
  return !t.defined() || t._is_zerotensor();
}

Tensor maybe_mH(const Tensor& t) {
  return is_missing(t) ? Tensor() : t.mH();
}

Tensor maybe_mT(const Tensor& t) {
  return is_missing(t) ? Tensor() : t.mT();
}

Tensor maybe_conj(const Tensor& t) {
  return is_missing(t) ? Tensor() : t.conj();
}

// Gradients may be sparse: that of F.embedding(..., sparse=True) is.
Tensor maybe_dense(const Tensor& grad) {
  return grad.defined() && grad.is_sparse() ? grad.to_dense() : grad;
}

// Real and imaginary parts, where `map` is the same for both. Complex
// arithmetic would multiply by 1 + 0i or 2 + 0i, where an infinity times 0i is
// NaN.
template <typename Map, typename... Tensors>
Tensor map_parts(const Map& map, const Tensor& first, const Tensors&... more) {
  if (!first.is_complex()) {
    return map(first, more...);
  }
  return at::view_as_complex(
      map(at::view_as_real(first.resolve_conj()),
          at::view_as_real(more.resolve_conj())...));
}

Tensor maybe_add(const Tensor& a, const Tensor& b) {
  if (is_missing(a) || is_missing(b)) {
    return !is_missing(a) ? a : !is_missing(b) ? b : Tensor();
  }
  return map_parts(
      [](const Tensor& x, const Tensor& y) { return x + y; }, a, b);
}

// sum + a @ b
Tensor maybe_addmm(const Tensor& sum, const Tensor& a, const Tensor& b) {
  if (is_missing(a) || is_missing(b)) {
    return is_missing(sum) ? Tensor() : sum;
  }
  if (!is_missing(sum) && a.dim() == 2 && !a.is_complex()) {
    return at::addmm(sum, a, b);
  }
  return maybe_add(sum, at::matmul(a, b));
}

Tensor maybe_mm(const Tensor& a, const Tensor& b) {
  return maybe_addmm(Tensor(), a, b);
}

// The tangent of q @ k.mT: q_t @ k.mT + q @ k_t.mT. Two terms are one product
// of concatenated matrices, which saves an M x N sum.
Tensor attn_scores_jvp(
    const Tensor& q,
    const Tensor& q_t,
    const Tensor& k,
    const Tensor& k_t) {
  if (!is_missing(q_t) && !is_missing(k_t)) {
    return at::matmul(at::cat({q_t, q}, -1), at::cat({k, k_t}, -1).mT());
  }
  return maybe_add(maybe_mm(q_t, maybe_mT(k)), maybe_mm(q, maybe_mT(k_t)));
}

// grad * conj(1 - attn^2), by autograd's operator for tanh, so that errors near
// saturation are no larger than composition's.
Tensor attn_tanh_backward(const Tensor& grad, const Tensor& attn) {
  return is_missing(grad) ? Tensor() : at::tanh_backward(grad, attn);
}

// The derivative of conj(1 - attn^2) along attn's tangent, times grad. The
// bounded attn comes first: a large grad times 2 would overflow in float16.
Tensor attn_slope_jvp(
    const Tensor& grad,
    const Tensor& attn,
    const Tensor& attn_t) {
  if (is_missing(grad) || is_missing(attn_t)) {
    return Tensor();
  }
  return map_parts(
      [](Tensor x) { return x.mul_(-2); },
      grad * (attn * attn_t).conj_physical());
}

} // namespace

// Derivatives are taken in the dtypes of the forward, so all four functions
// exclude autocast, which would cast their products.
std::tuple<Tensor, Tensor, Tensor> attn_backward(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  if (!grad_output.defined() && !grad_attn.defined()) {
    return {};
  }
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return at::_attn_backward(
      maybe_dense(grad_output),
      maybe_dense(grad_attn),
      q,
      k,
      v,
      attn,
      output_mask);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> attn_double_backward(
    const Tensor& gg_q,
    const Tensor& gg_k,
    const Tensor& gg_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 6> output_mask) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor gg_output, gg_attn, grad_q, grad_k, grad_v, grad_through_attn;
  const Tensor scores_t = attn_scores_jvp(q, gg_q, k, gg_k);

  // grad_q = X @ conj(gg_k) and grad_k = X^T @ conj(gg_q): the backward, with
  // gg_k and gg_q in the places of k and q, whose own values it does not read.
  // W has a term of G too, so G is made once. Composition makes one product
  // less: it has saved G.
  const std::array<bool, 3> mask = {
      output_mask[2] && !is_missing(gg_k),
      output_mask[3] && !is_missing(gg_q),
      false};
  const bool through_slope = output_mask[5] && scores_t.defined();
  if (mask[0] || mask[1] || through_slope) {
    const Tensor grad = maybe_addmm(grad_attn, grad_output, maybe_mH(v));
    if (grad.defined() && (mask[0] || mask[1])) {
      const Tensor& q_t = is_missing(gg_q) ? q : gg_q;
      const Tensor& k_t = is_missing(gg_k) ? k : gg_k;
      std::tie(grad_q, grad_k, std::ignore) =
          at::_attn_backward({}, grad, q_t, k_t, v, attn, mask);
    }
    if (through_slope) {
      grad_through_attn = attn_slope_jvp(grad, attn, scores_t);
    }
  }

  // W = grad_output @ gg_v^H - 2 G * conj(attn * scores_t)
  if (output_mask[5]) {
    grad_through_attn =
        maybe_addmm(grad_through_attn, grad_output, maybe_mH(gg_v));
  }

  if (output_mask[0] || output_mask[1] || output_mask[4]) {
    gg_attn = attn_tanh_backward(scores_t, attn.conj_physical());
  }
  if (output_mask[0]) {
    gg_output = maybe_addmm(maybe_mm(gg_attn, v), attn, gg_v);
  }
  if (output_mask[4]) {
    grad_v = maybe_mm(maybe_mH(gg_attn), grad_output);
  }
  return std::make_tuple(
      std::move(gg_output),
      output_mask[1] ? gg_attn : Tensor(),
      std::move(grad_q),
      std::move(grad_k),
      std::move(grad_v),
      std::move(grad_through_attn));
}

std::tuple<Tensor, Tensor> attn_jvp(
    const Tensor& q_p,
    const Tensor& q_t,
    const Tensor& k_p,
    const Tensor& k_t,
    const Tensor& v_p,
    const Tensor& v_t,
    const Tensor& attn) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor attn_t = attn_tanh_backward(
      attn_scores_jvp(q_p, q_t, k_p, k_t), attn.conj_physical());
  Tensor output_t = maybe_addmm(maybe_mm(attn_t, v_p), attn, v_t);
  return std::make_tuple(std::move(output_t), std::move(attn_t));
}

std::tuple<Tensor, Tensor, Tensor> attn_backward_jvp(
    const Tensor& grad_output_p,
    const Tensor& grad_output_t,
    const Tensor& grad_attn_p,
    const Tensor& grad_attn_t,
    const Tensor& q_p,
    const Tensor& q_t,
    const Tensor& k_p,
    const Tensor& k_t,
    const Tensor& v_p,
    const Tensor& v_t,
    const Tensor& attn_p,
    const Tensor& attn_t,
    std::array<bool, 3> output_mask) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor grad_q_t, grad_k_t, grad_v_t;
  if (output_mask[0] || output_mask[1]) {
    // G and X, and their tangents
    const Tensor v_pH = maybe_mH(v_p);
    const Tensor grad = maybe_addmm(grad_attn_p, grad_output_p, v_pH);
    const Tensor grad_t = maybe_addmm(
        maybe_addmm(grad_attn_t, grad_output_t, v_pH),
        grad_output_p,
        maybe_mH(v_t));
    const Tensor grad_scores = attn_tanh_backward(grad, attn_p);
    const Tensor grad_scores_t = maybe_add(
        attn_tanh_backward(grad_t, attn_p),
        attn_slope_jvp(grad, attn_p, attn_t));
    if (output_mask[0]) {
      grad_q_t = maybe_addmm(
          maybe_mm(grad_scores_t, maybe_conj(k_p)),
          grad_scores,
          maybe_conj(k_t));
    }
    if (output_mask[1]) {
      grad_k_t = maybe_addmm(
          maybe_mm(maybe_mT(grad_scores_t), maybe_conj(q_p)),
          maybe_mT(grad_scores),
          maybe_conj(q_t));
    }
  }
  if (output_mask[2]) {
    grad_v_t = maybe_addmm(
        maybe_mm(maybe_mH(attn_t), grad_output_p), attn_p.mH(), grad_output_t);
  }
  return std::make_tuple(
      std::move(grad_q_t), std::move(grad_k_t), std::move(grad_v_t));
}

} // namespace torch::autograd::generated::details
