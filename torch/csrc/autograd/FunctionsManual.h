// The formulas that derivatives.yaml names for attn and its backward.
#pragma once

#include <ATen/core/Tensor.h> // fragment only

#include <array> // fragment only
#include <optional> // fragment only
#include <tuple> // fragment only

namespace torch::autograd::generated::details {

using at::Tensor; // fragment only

std::tuple<Tensor, Tensor, Tensor> attn_backward(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask);
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
    std::array<bool, 6> output_mask);
std::tuple<Tensor, Tensor> attn_jvp(
    const Tensor& q_p,
    const Tensor& q_t,
    const Tensor& k_p,
    const Tensor& k_t,
    const Tensor& v_p,
    const Tensor& v_t,
    const Tensor& attn);
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
    std::array<bool, 3> output_mask);

} // namespace torch::autograd::generated::details
