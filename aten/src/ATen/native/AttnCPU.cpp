// attn and its backward on the CPU: by the fused kernels where they are faster,
// else composed of ATen's operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/native/AttnFused.h>
#include <ATen/native/cpu/AttnKernel.h>
#include <ATen/native/cpu/AttnRule.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuinfo.h>
#endif
#include <c10/util/accumulate.h>

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
    if (intel && cpuinfo_has_x86_amx_bf16() && cpuinfo_has_x86_avx512fp16()) {
      return AttnProcessor::AMX;
    }
    return intel ? AttnProcessor::AVX512_MKL : AttnProcessor::AVX512;
  }
  return AttnProcessor::X86;
#else
  return AttnProcessor::Unmeasured;
#endif
}

// x is (*, M, ...), of any tensor.
bool is_fused(
    const Tensor& x,
    int64_t m,
    int64_t n,
    int64_t d,
    int64_t e,
    bool backward) {
  static const AttnProcessor processor = this_processor();
  const auto matrices = c10::multiply_integers(x.sizes().slice(0, x.dim() - 2));
  const int threads = at::get_num_threads();
  const ScalarType dtype = x.scalar_type();
  return !isComplexType(dtype) &&
      attn_runs_fused(attn_is_fused(
          processor, dtype, matrices, m, n, d, e, backward, threads));
}

// A new tensor with as many rows as `like` has
Tensor rows_like(const Tensor& like, int64_t columns) {
  DimVector sizes(like.sizes());
  sizes.back() = columns;
  return at::detail::empty_cpu(sizes, like.options());
}

// x where attn_empty_like has it
Tensor laid_out_like(const Tensor& like, const Tensor& x) {
  if (!x.defined()) {
    return x;
  }
  const Tensor result = attn_empty_like(like, x.size(-1));
  return result.strides() == x.strides() ? x : result.copy_(x);
}

bool are_inputs_fused(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    bool backward) {
  return is_fused(q, q.size(-2), k.size(-2), q.size(-1), v.size(-1), backward);
}

} // namespace

REGISTER_ALL_CPU_DISPATCH(attn_is_fused_stub, &are_inputs_fused)

std::tuple<Tensor, Tensor> attn_cpu(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  check_attn_inputs(q, k, v);
  const int64_t m = q.size(-2), n = k.size(-2), d = q.size(-1), e = v.size(-1);
  Tensor attn;
  if (is_fused(q, m, n, d, e, /*backward=*/false)) {
    attn = rows_like(q, n);
  }
  if (!attn.defined() || attn.numel() == 0) {
    return attn_composed(q, k, v);
  }
  const Tensor output = rows_like(q, e);
  attn_stub(kCPU, output, attn, q.contiguous(), k.contiguous(), v.contiguous());
  return std::make_tuple(laid_out_like(q, output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cpu(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  AttnBackwardArgs args = attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  const bool scores = args.wants_scores_gradient();
  const bool output = args.grad_output.defined();
  const bool wants_q = output_mask[0] && scores;
  const bool wants_k = output_mask[1] && scores;
  const bool wants_v = output_mask[2] && output;
  const int64_t m = args.attn.size(-2), n = args.attn.size(-1);
  const int64_t d = wants_q ? args.k.size(-1) : wants_k ? args.q.size(-1) : 0;
  const int64_t e = output ? args.grad_output.size(-1) : 0;
  if (!(scores || wants_v) || args.attn.numel() == 0 ||
      !is_fused(args.attn, m, n, d, e, /*backward=*/true)) {
    return attn_backward_composed(args);
  }
  const Tensor q_ = args.q, k_ = args.k, v_ = args.v;
  for (Tensor* t : {&args.grad_output, &args.q, &args.k, &args.v, &args.attn}) {
    *t = t->defined() ? t->contiguous() : *t;
  }
  const Tensor attn_t = args.attn.mT();
  const auto allocate = [](bool wanted, const Tensor& like, int64_t columns) {
    return wanted ? rows_like(like, columns) : Tensor();
  };
  const AttnGradients result{
      allocate(wants_q, args.attn, d),
      allocate(wants_k, attn_t, d),
      allocate(wants_v, attn_t, e)};
  attn_backward_stub(kCPU, result, args);
  return std::make_tuple(
      laid_out_like(q_, result.grad_q),
      laid_out_like(k_, result.grad_k),
      laid_out_like(v_, result.grad_v));
}

} // namespace at::native
