// attn and its backward on the CPU: by the fused kernels where they are faster,
// else composed of ATen's operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

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

#include <algorithm>
#include <tuple>

namespace at::native {

DEFINE_DISPATCH(attn_stub);
DEFINE_DISPATCH(attn_backward_stub);

namespace {

AttnProcessor this_processor() {
#if defined(__x86_64__) || defined(_M_X64)
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX512") {
    const bool has_bfloat16 =
        cpuinfo_initialize() && cpuinfo_has_x86_avx512bf16();
    return !has_bfloat16               ? AttnProcessor::AVX512
        : cpuinfo_has_x86_avx512fp16() ? AttnProcessor::AMX
                                       : AttnProcessor::AVX512_BF16;
  }
  return capability == "AVX2" ? AttnProcessor::AVX2 : AttnProcessor::X86;
#else
  return AttnProcessor::Unmeasured;
#endif
}

// attn is (*, M, ...), of any tensor.
bool is_fused(const Tensor& attn, AttnSizes sizes, bool backward) {
  static const AttnProcessor processor = this_processor();
  sizes.matrices =
      c10::multiply_integers(attn.sizes().slice(0, attn.dim() - 2));
  const int threads = at::get_num_threads();
  const ScalarType dtype = attn.scalar_type();
  return !isComplexType(dtype) &&
      attn_runs_fused(
          attn_is_fused(processor, dtype, sizes, backward, threads));
}

bool is_strided(const Tensor& x) {
  return x.defined() && !x.is_contiguous();
}

bool are_inputs_fused(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    bool backward) {
  AttnSizes sizes{};
  sizes.m = q.size(-2), sizes.n = k.size(-2);
  sizes.d = q.size(-1), sizes.e = v.size(-1);
  sizes.is_strided = is_strided(q) || is_strided(k) || is_strided(v);
  return is_fused(q, sizes, backward);
}

// x as the kernels read it: numbers of a row lie side by side, and rows apart.
Tensor readable(const Tensor& x) {
  const bool is_readable = !x.defined() ||
      ((x.size(-1) <= 1 || x.stride(-1) == 1) &&
       (x.size(-2) <= 1 || x.stride(-2) >= x.size(-1)));
  return is_readable ? x : x.contiguous();
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
  if (q.numel() == 0 || k.numel() == 0 ||
      !are_inputs_fused(q, k, v, /*backward=*/false)) {
    return attn_composed(q, k, v);
  }
  DimVector sizes(q.sizes());
  sizes.back() = k.size(-2);
  const Tensor attn = at::detail::empty_cpu(sizes, q.options());
  const Tensor output = attn_empty_like(q, v.size(-1));
  // Single queries that share keys, such as a group of heads, are rows of one
  // matrix.
  const bool shares =
      q.dim() > 2 && q.size(-2) == 1 && k.stride(-3) == 0 && v.stride(-3) == 0;
  const auto queries = [&](const Tensor& x) {
    return shares ? x.select(-2, 0) : x;
  };
  const auto keys = [&](const Tensor& x) {
    return readable(shares ? x.select(-3, 0) : x);
  };
  attn_stub(
      kCPU,
      queries(output),
      queries(attn),
      readable(queries(q)),
      keys(k),
      keys(v));
  return std::make_tuple(output, attn);
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
  const auto allocate = [](bool wanted, const Tensor& like) {
    return wanted ? attn_empty_like(like, like.size(-1)) : Tensor();
  };
  AttnSizes sizes{};
  sizes.m = args.attn.size(-2), sizes.n = args.attn.size(-1);
  sizes.d = scores ? args.q.size(-1) : 0;
  sizes.e = output ? args.grad_output.size(-1) : 0;
  sizes.is_strided =
      is_strided(args.q) || is_strided(args.k) || is_strided(args.v);
  if (!(scores || (output_mask[2] && output)) || args.attn.numel() == 0 ||
      !is_fused(args.attn, sizes, /*backward=*/true)) {
    return attn_backward_composed(args);
  }
  const AttnGradients result{
      allocate(output_mask[0] && scores, args.q),
      allocate(output_mask[1] && scores, args.k),
      allocate(output_mask[2] && output, args.v)};
  for (Tensor* t : {&args.grad_output, &args.q, &args.k, &args.v, &args.attn}) {
    *t = readable(*t);
  }
  attn_backward_stub(kCPU, result, args);
  return std::make_tuple(result.grad_q, result.grad_k, result.grad_v);
}

} // namespace at::native
