// attn and its backward on the CPU: by the fused kernels where they are faster,
// else composed of ATen's operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Version.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <c10/util/env.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuinfo.h>
#endif

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#endif

#include <tuple>

namespace at::native {

DEFINE_DISPATCH(attn_stub);
DEFINE_DISPATCH(attn_backward_stub);

namespace {

AttnProcessor this_processor() {
#if defined(__x86_64__) || defined(_M_X64)
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX2") {
    return AttnProcessor::AVX2;
  }
  if (capability == "AVX512") {
    // MKL takes its AVX-512 path on Intel's processors only.
    const bool intel = at::hasMKL() && cpuinfo_initialize() &&
        cpuinfo_get_core(0)->vendor == cpuinfo_vendor_intel;
    return intel ? AttnProcessor::AVX512_MKL : AttnProcessor::AVX512;
  }
  return AttnProcessor::X86;
#else
  return AttnProcessor::Unmeasured;
#endif
}

bool is_fused(
    ScalarType dtype,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward) {
  // For tests: 1 forces the kernels for every size, 0 for none.
  static const auto forced = c10::utils::check_env("TORCH_ATTN_KERNELS");
  static const AttnProcessor processor = this_processor();
  if (n == 0 || isComplexType(dtype)) {
    return false;
  }
  return forced ? *forced : attn_is_fused(processor, dtype, n, d, e, backward);
}

int64_t columns_of(const Tensor& t) {
  return t.defined() ? t.size(1) : 0;
}

void make_contiguous(Tensor& t) {
  if (t.defined()) {
    t = t.contiguous();
  }
}

} // namespace

std::tuple<Tensor, Tensor> attn_cpu(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  check_attn_inputs(q, k, v);
  const int64_t n = q.size(0);
  if (!is_fused(q.scalar_type(), n, q.size(1), v.size(1), false)) {
    return attn_composed(q, k, v);
  }
  Tensor attn = at::detail::empty_cpu({n, n}, q.options());
  Tensor output = at::detail::empty_cpu({n, v.size(1)}, q.options());
  attn_stub(kCPU, output, attn, q.contiguous(), k.contiguous(), v.contiguous());
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cpu(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const std::optional<Tensor>& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  AttnBackward x = attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  const bool wants_scores = x.wants_scores_gradient();
  const bool wants_v = output_mask[2] && x.grad_output.defined();
  const int64_t d = wants_scores ? columns_of(x.q.defined() ? x.q : x.k) : 0;
  if (!(wants_scores || wants_v) ||
      !is_fused(
          x.attn.scalar_type(),
          x.attn.size(0),
          d,
          columns_of(x.grad_output),
          true)) {
    return attn_backward_composed(x);
  }
  for (Tensor* t : {&x.grad_output, &x.q, &x.k, &x.v, &x.attn}) {
    make_contiguous(*t);
  }
  const auto like = [](const Tensor& t, bool wanted) {
    return wanted ? at::detail::empty_cpu(t.sizes(), t.options()) : Tensor();
  };
  const AttnGradients grads{
      like(x.k, output_mask[0] && wants_scores),
      like(x.q, output_mask[1] && wants_scores),
      like(x.grad_output, wants_v)};
  attn_backward_stub(kCPU, grads, x);
  return std::make_tuple(grads.grad_q, grads.grad_k, grads.grad_v);
}

} // namespace at::native
