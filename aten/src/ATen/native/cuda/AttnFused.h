// attn and its backward by the fused CUDA kernels of one arithmetic each.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::native::attn_tile {

template <typename T>
struct HalfCores;
struct TF32Cores;
struct FloatLanes;
struct DoubleCores;

// Whether the current device has what the kernels need for matrices of at most
// this many columns, and for a gradient of attn.
template <typename Arithmetic>
bool fits(int64_t columns, bool grad_attn);

// Fills output (N, E) and attn (N, N), both contiguous; N, D and E are not 0.
template <typename Arithmetic>
void fused_forward(
    const Tensor& output,
    const Tensor& attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v);

// Fills grad_q = X @ k, X = (grad_attn + grad_output @ v^T) * (1 - attn^2).
// grad_output or grad_attn can be undefined, v too without grad_output.
template <typename Arithmetic>
void fused_backward_q(
    const Tensor& grad_q,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn);

// Fills grad_k = X^T @ q and, where it is defined, grad_v = attn^T @
// grad_output.
template <typename Arithmetic>
void fused_backward_kv(
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& v,
    const Tensor& attn);

} // namespace at::native::attn_tile
