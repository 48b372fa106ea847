// attn(q, k, v): attn = tanh(q @ k.T) and output = attn @ v, and its backward.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/native/attn.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuinfo.h>
#endif

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros.h>
#endif

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <sstream>
#include <tuple>

namespace at::native {

DEFINE_DISPATCH(attn_stub);
DEFINE_DISPATCH(attn_backward_stub);

namespace {

struct Operand {
  const char* name;
  const Tensor* tensor;
};

using Operands = SmallVector<Operand, 6>;

Operands defined(std::initializer_list<Operand> operands) {
  Operands result;
  for (const auto& [name, tensor] : operands) {
    if (tensor->defined()) {
      result.push_back({name, tensor});
    }
  }
  return result;
}

// "q, k and v"
std::string names(const Operands& operands) {
  std::ostringstream text;
  for (const auto i : c10::irange(operands.size())) {
    text << (i == 0                        ? ""
                 : i + 1 < operands.size() ? ", "
                                           : " and ")
         << operands[i].name;
  }
  return text.str();
}

// "q Half, k Float, v Float"
template <typename Property>
std::string values(const Operands& operands, const Property& property) {
  std::ostringstream text;
  for (const auto i : c10::irange(operands.size())) {
    text << (i == 0 ? "" : ", ") << operands[i].name << ' '
         << property(*operands[i].tensor);
  }
  return text.str();
}

SymIntArrayRef sizes(const Tensor& t) {
  return t.sym_sizes();
}

template <typename Property>
void check_same(
    const char* op,
    const char* what,
    const Operands& operands,
    const Property& property) {
  for (const auto& operand : operands) {
    TORCH_CHECK(
        property(*operand.tensor) == property(*operands[0].tensor),
        op,
        ": expected ",
        names(operands),
        " to ",
        what,
        ", but got ",
        values(operands, property));
  }
}

// One pair at a time, so that symbolic sizes learn plain equalities.
void check_same_number(
    const char* op,
    const char* what,
    const Operands& operands,
    int64_t dim) {
  for (const auto i : c10::irange<size_t>(1, operands.size())) {
    TORCH_SYM_CHECK(
        operands[0].tensor->sym_size(dim).sym_eq(
            operands[i].tensor->sym_size(dim)),
        op,
        ": expected ",
        names(operands),
        " to have the same number of ",
        what,
        ", but got ",
        values(operands, sizes));
  }
}

// The dtypes for which torch.attn is defined.
bool is_supported(ScalarType dtype) {
  return dtype == kHalf || dtype == kBFloat16 || dtype == kFloat ||
      dtype == kDouble || dtype == kComplexFloat || dtype == kComplexDouble;
}

// What holds for all tensors of attn and of its backward.
void check_operands(const char* op, const Operands& operands) {
  for (const auto& [name, tensor] : operands) {
    TORCH_CHECK(
        tensor->dim() == 2,
        op,
        ": expected ",
        name,
        " to be 2-D, but got a ",
        tensor->dim(),
        "-D tensor of size ",
        sizes(*tensor));
  }
  check_same(op, "be on the same device", operands, [](const Tensor& t) {
    return t.device();
  });
  check_same(op, "have the same dtype", operands, [](const Tensor& t) {
    return t.scalar_type();
  });
  const auto dtype = operands[0].tensor->scalar_type();
  TORCH_CHECK(
      is_supported(dtype),
      op,
      ": expected floating point or complex inputs, but got ",
      dtype);
  check_same_number(op, "rows", operands, 0);
}

// MKL's products and tanh run at the full rate on Intel's processors only.
bool is_intel() {
#if defined(__x86_64__) || defined(_M_X64)
  static const bool intel = at::hasMKL() && cpuinfo_initialize() &&
      cpuinfo_get_core(0)->vendor == cpuinfo_vendor_intel;
  return intel;
#else
  return false;
#endif
}

// Whether to use the fused kernels, by what was measured for each capability.
// They save passes over attn, which dominate unless D + E = columns is large.
bool is_fused(ScalarType dtype, int64_t n, int64_t columns, bool backward) {
  if (isComplexType(dtype)) {
    return false;
  }
  const bool half = dtype == kHalf || dtype == kBFloat16;
  const bool tiny = n <= 16, large = n >= 1024;
  static const std::string capability = at::get_cpu_capability();
  if (capability == "DEFAULT" || capability == "NO AVX") {
    return half || (tiny && columns <= 128);
  }
  if (capability == "AVX2") {
    return half || columns <= (dtype == kDouble ? 128 : 512);
  }
  if (!is_intel()) {
    return columns <= 512 + 4 * n || (dtype == kHalf && n >= 8);
  }
  // attn and composition's temporaries are in the cache.
  const bool cached = !backward && n > 64 && n <= (columns < 128 ? 1024 : 512);
  switch (dtype) {
    case kBFloat16:
      return columns <= (backward && n > 512 ? 512 : 1024);
    case kHalf:
      return columns <= (n > (backward ? 64 : 256) ? 512 : 1024);
    case kFloat:
      return columns <= (tiny ? 512 : 256) && !cached;
    default:
      return columns <= (tiny || (backward && large) ? 256 : 128) && !cached;
  }
}

// attn is written in tiles, whose rows lie in as many pages: with 4 KiB ones
// the first writes to new memory, and later the reads, take as long as the
// arithmetic.
void advise_huge_pages(const Tensor& t) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t page = 2 << 20;
  const auto data = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  const uintptr_t begin = (data + page - 1) / page * page;
  const uintptr_t end = (data + t.nbytes()) / page * page;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#endif
}

Tensor contiguous(const Tensor& t) {
  return t.defined() ? t.contiguous() : t;
}

// X of the backward, for all rows of attn or for some of them. tanh_backward
// conjugates the derivative itself, since a lazy conjugate might reach `*`
// unresolved. And grad_attn stands first: `add` multiplies what stands second
// by 1, which makes NaN of a complex infinity.
Tensor scores_gradient(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& v,
    const Tensor& attn) {
  Tensor grad = grad_attn;
  if (grad_output.defined()) {
    grad = at::matmul(grad_output, v.mH());
    if (grad_attn.defined()) {
      grad = grad_attn + grad;
    }
  }
  return at::tanh_backward(grad, attn);
}

} // namespace

Tensor attn_resolved(const std::optional<Tensor>& t) {
  if (!t || !t->defined()) {
    return Tensor();
  }
  return t->is_conj() || t->is_neg() ? t->resolve_conj().resolve_neg() : *t;
}

void check_attn_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_operands("attn", {{"q", &q}, {"k", &k}, {"v", &v}});
  check_same_number("attn", "columns", {{"q", &q}, {"k", &k}}, 1);
}

void check_attn_backward_inputs(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask) {
  constexpr const char* op = "_attn_backward";
  const bool scores = output_mask[0] || output_mask[1];
  const bool any = grad_output.defined() || grad_attn.defined();
  const auto check_needed =
      [&](const char* name, const Tensor& t, bool needed) {
        TORCH_CHECK(
            t.defined() || !needed,
            op,
            ": expected ",
            name,
            ", which output_mask asks for, but got None");
      };
  check_needed("q", q, output_mask[1] && any);
  check_needed("k", k, output_mask[0] && any);
  check_needed("v", v, scores && grad_output.defined());
  check_operands(
      op,
      defined(
          {{"grad_output", &grad_output},
           {"grad_attn", &grad_attn},
           {"q", &q},
           {"k", &k},
           {"v", &v},
           {"attn", &attn}}));
  check_same_number(op, "columns", defined({{"q", &q}, {"k", &k}}), 1);
  check_same_number(
      op, "columns", defined({{"grad_output", &grad_output}, {"v", &v}}), 1);
  for (const auto& [name, tensor] :
       defined({{"grad_attn", &grad_attn}, {"attn", &attn}})) {
    TORCH_SYM_CHECK(
        tensor->sym_size(0).sym_eq(tensor->sym_size(1)),
        op,
        ": expected ",
        name,
        " to be square, but got size ",
        sizes(*tensor));
  }
}

void attn_backward_by_rows(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    int64_t block) {
  const int64_t n = attn.size(0);
  const auto dtype = at::toOpMathType(attn.scalar_type());
  const bool in_place = dtype == attn.scalar_type();
  Tensor sum = grad_k;
  if (grad_k.defined() && !in_place) {
    sum = at::zeros(grad_k.sizes(), grad_k.options().dtype(dtype));
  }
  for (int64_t i = 0; i < n; i += block) {
    const auto rows = [&](const Tensor& t) {
      return t.defined() ? t.narrow(0, i, std::min(block, n - i)) : t;
    };
    const Tensor x =
        scores_gradient(rows(grad_output), rows(grad_attn), v, rows(attn));
    if (grad_q.defined()) {
      Tensor to = rows(grad_q);
      at::mm_out(to, x, k.conj());
    }
    if (!grad_k.defined()) {
      continue;
    }
    const Tensor q_conj = rows(q).conj();
    if (in_place) {
      sum.addmm_(x.t(), q_conj, /*beta=*/i > 0 ? 1 : 0);
    } else {
      sum.add_(at::mm(x.t(), q_conj));
    }
  }
  if (grad_k.defined() && !in_place) {
    grad_k.copy_(sum);
  }
}

// For every backend without kernels of its own, and for symbolic sizes.
std::tuple<Tensor, Tensor>
attn(const Tensor& q_, const Tensor& k_, const Tensor& v_) {
  check_attn_inputs(q_, k_, v_);
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor attn = at::tanh(at::matmul(q, k.t()));
  Tensor output = at::matmul(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor>
attn_cpu(const Tensor& q_, const Tensor& k_, const Tensor& v_) {
  check_attn_inputs(q_, k_, v_);
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const int64_t n = q.size(0);
  if (!is_fused(q.scalar_type(), n, q.size(1) + v.size(1), false)) {
    Tensor attn = at::mm(q, k.t()).tanh_();
    Tensor output = at::mm(attn, v);
    return std::make_tuple(std::move(output), std::move(attn));
  }
  Tensor attn = at::detail::empty_cpu({n, n}, q.options());
  Tensor output = at::detail::empty_cpu({n, v.size(1)}, q.options());
  if (n > 0) {
    advise_huge_pages(attn);
    attn_stub(
        kCPU, output, attn, q.contiguous(), k.contiguous(), v.contiguous());
  }
  return std::make_tuple(std::move(output), std::move(attn));
}

// With X = (grad_attn + grad_output @ v^H) * conj(1 - attn^2):
//   grad_q = X @ conj(k)
//   grad_k = X^T @ conj(q)
//   grad_v = attn^H @ grad_output
// An undefined gradient has no term; what has no term or is not asked for in
// output_mask is undefined.
std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor grad_q, grad_k, grad_v;
  if ((output_mask[0] || output_mask[1]) &&
      (grad_output.defined() || grad_attn.defined())) {
    const Tensor x = scores_gradient(grad_output, grad_attn, v, attn);
    if (output_mask[0]) {
      grad_q = at::matmul(x, k.conj());
    }
    if (output_mask[1]) {
      grad_k = at::matmul(x.mT(), q.conj());
    }
  }
  if (output_mask[2] && grad_output.defined()) {
    grad_v = at::matmul(attn.mH(), grad_output);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn_,
    std::array<bool, 3> output_mask) {
  const Tensor grad_output = attn_resolved(grad_output_),
               grad_attn = attn_resolved(grad_attn_);
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  const Tensor attn = attn_resolved(attn_);
  check_attn_backward_inputs(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  return attn_backward_composed(
      grad_output, grad_attn, q, k, v, attn, output_mask);
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cpu(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn_,
    std::array<bool, 3> output_mask) {
  const Tensor grad_output = attn_resolved(grad_output_),
               grad_attn = attn_resolved(grad_attn_);
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  const Tensor attn = attn_resolved(attn_);
  check_attn_backward_inputs(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const bool any = grad_output.defined() || grad_attn.defined();
  int64_t columns = 0;
  for (const Tensor& t : {q.defined() ? q : k, grad_output}) {
    columns += t.defined() ? t.size(1) : 0;
  }
  if (!attn.is_complex() &&
      !is_fused(attn.scalar_type(), attn.size(0), columns, true)) {
    return attn_backward_composed(
        grad_output, grad_attn, q, k, v, attn, output_mask);
  }
  Tensor grad_q, grad_k, grad_v;
  if (output_mask[0] && any) {
    grad_q = at::detail::empty_cpu(k.sizes(), attn.options());
  }
  if (output_mask[1] && any) {
    grad_k = at::detail::empty_cpu(q.sizes(), attn.options());
  }
  if (output_mask[2] && grad_output.defined()) {
    grad_v = at::detail::empty_cpu(grad_output.sizes(), attn.options());
  }
  if (attn.numel() == 0 ||
      !(grad_q.defined() || grad_k.defined() || grad_v.defined())) {
    // Nothing to fill.
  } else if (attn.is_complex()) {
    if (grad_q.defined() || grad_k.defined()) {
      const int64_t block = std::max<int64_t>(32, attn.size(0) / 128);
      attn_backward_by_rows(
          grad_q, grad_k, grad_output, grad_attn, q, k, v, attn, block);
    }
    if (grad_v.defined()) {
      at::mm_out(grad_v, attn.mH(), grad_output);
    }
  } else {
    attn_backward_stub(
        kCPU,
        AttnBackward{
            grad_q,
            grad_k,
            grad_v,
            contiguous(grad_output),
            grad_attn,
            contiguous(q),
            contiguous(k),
            contiguous(v),
            attn.contiguous()});
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native
