// attn(q, k, v): attn = tanh(q @ k.T) and output = attn @ v, and its backward.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/attn.h>
#include <c10/util/irange.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
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

// (2, 3); sizes may be symbolic.
std::string shape(const Tensor& t) {
  std::ostringstream text;
  text << '(';
  for (const auto d : c10::irange(t.dim())) {
    text << (d ? ", " : "") << t.sym_size(d);
  }
  text << ')';
  return text.str();
}

void check_matrix(const Tensor& t, const char* name) {
  TORCH_CHECK(
      t.dim() == 2,
      "attn: expected ",
      name,
      " to be 2-D, but got a ",
      t.dim(),
      "-D tensor of size ",
      shape(t));
}

// The dtypes for which torch.attn is defined.
bool is_supported(ScalarType dtype) {
  return dtype == kHalf || dtype == kBFloat16 || dtype == kFloat ||
      dtype == kDouble || dtype == kComplexFloat || dtype == kComplexDouble;
}

// Whether the kernels shall do it. Where attn is small beside these columns of
// the inputs, passes over it are not what costs time, and a BLAS prepares its
// products with less effort; few have a fast one for float16.
bool is_fused(ScalarType dtype, int64_t n, int64_t columns) {
  const bool slow_products = dtype == kHalf && n >= 8;
  return !isComplexType(dtype) && (columns <= 512 + 4 * n || slow_products);
}

// The first write to every 4 KiB page of a large new tensor is a page fault,
// which together take longer than all the arithmetic; 2 MiB pages are zeroed
// ten times faster.
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

Tensor value(const std::optional<Tensor>& t) {
  return t.value_or(Tensor());
}

Tensor contiguous(const Tensor& t) {
  return t.defined() ? t.contiguous() : t;
}

// What attn_backward_stub does, composed for a few rows of attn at a time, so
// that no temporary is as large as attn.
void attn_backward_by_rows(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_v,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  const int64_t n = attn.size(0);
  const int64_t block = std::max<int64_t>(32, n / 128);
  for (int64_t i = 0; i < n; i += block) {
    const auto rows = [&](const Tensor& t) {
      return t.defined() ? t.narrow(0, i, std::min(block, n - i)) : t;
    };
    const Tensor a = rows(attn), grad = rows(grad_output);
    const Scalar beta = i > 0 ? 1 : 0;
    if (grad_q.defined() || grad_k.defined()) {
      Tensor x = rows(grad_attn);
      if (grad.defined()) {
        x = at::mm(grad, v.mH());
        if (grad_attn.defined()) {
          x.add_(rows(grad_attn));
        }
      }
      x = x * ((1 - a).mul_(1 + a)).conj();
      if (grad_q.defined()) {
        Tensor to = rows(grad_q);
        at::mm_out(to, x, k.conj());
      }
      if (grad_k.defined()) {
        grad_k.addmm_(x.t(), rows(q).conj(), beta);
      }
    }
    if (grad_v.defined()) {
      grad_v.addmm_(a.mH(), grad, beta);
    }
  }
}

} // namespace

void check_attn_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_matrix(q, "q");
  check_matrix(k, "k");
  check_matrix(v, "v");
  TORCH_CHECK(
      q.device() == k.device() && q.device() == v.device(),
      "attn: expected q, k and v to be on the same device, but got q ",
      q.device(),
      ", k ",
      k.device(),
      ", v ",
      v.device());
  const auto dtype = q.scalar_type();
  TORCH_CHECK(
      dtype == k.scalar_type() && dtype == v.scalar_type(),
      "attn: expected q, k and v to have the same dtype, but got q ",
      dtype,
      ", k ",
      k.scalar_type(),
      ", v ",
      v.scalar_type());
  TORCH_CHECK(
      is_supported(dtype),
      "attn: expected floating point or complex inputs, but got ",
      dtype);
  // Two checks, so that symbolic sizes learn two plain equalities.
  for (const Tensor& t : {k, v}) {
    TORCH_SYM_CHECK(
        q.sym_size(0).sym_eq(t.sym_size(0)),
        "attn: expected q, k and v to have the same number of rows, but got q ",
        shape(q),
        ", k ",
        shape(k),
        ", v ",
        shape(v));
  }
  TORCH_SYM_CHECK(
      q.sym_size(1).sym_eq(k.sym_size(1)),
      "attn: expected q and k to have the same number of columns, but got q ",
      shape(q),
      ", k ",
      shape(k));
}

void check_attn_backward_inputs(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask) {
  TORCH_CHECK(
      attn.dim() == 2 && attn.size(0) == attn.size(1),
      "_attn_backward: expected attn to be square, but got size ",
      attn.sizes());
  const bool any = grad_output.defined() || grad_attn.defined();
  const bool from_output =
      (output_mask[0] || output_mask[1]) && grad_output.defined();
  const auto columns = [](const Tensor& t, const Tensor& other) {
    const Tensor& first = t.defined() ? t : other;
    return first.defined() && first.dim() == 2 ? first.size(1) : 0;
  };
  const int64_t n = attn.size(0), d = columns(q, k),
                e = columns(v, grad_output);
  const auto check =
      [&](const Tensor& t, const char* name, int64_t size, bool needed) {
        TORCH_CHECK(
            t.defined() || !needed,
            "_attn_backward: expected ",
            name,
            ", which output_mask asks for, but got None");
        if (!t.defined()) {
          return;
        }
        TORCH_CHECK(
            t.dim() == 2,
            "_attn_backward: expected ",
            name,
            " to be 2-D, but got size ",
            t.sizes());
        TORCH_CHECK(
            t.size(0) == n && t.size(1) == size,
            "_attn_backward: expected ",
            name,
            " to have size ",
            IntArrayRef({n, size}),
            ", but got ",
            t.sizes());
        TORCH_CHECK(
            t.scalar_type() == attn.scalar_type() &&
                t.device() == attn.device(),
            "_attn_backward: expected ",
            name,
            " to have the dtype and device of attn, which are ",
            attn.scalar_type(),
            " and ",
            attn.device(),
            ", but got ",
            t.scalar_type(),
            " and ",
            t.device());
      };
  check(q, "q", d, output_mask[1] && any);
  check(k, "k", d, output_mask[0] && any);
  check(v, "v", e, from_output);
  check(grad_output, "grad_output", e, false);
  check(grad_attn, "grad_attn", n, false);
}

// Every backend without kernels of its own, symbolic sizes included.
std::tuple<Tensor, Tensor>
attn(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attn_inputs(q, k, v);
  Tensor attn = at::tanh(at::matmul(q, k.t()));
  Tensor output = at::matmul(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor>
attn_cpu(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attn_inputs(q, k, v);
  const int64_t n = q.size(0);
  if (!is_fused(q.scalar_type(), n, q.size(1) + v.size(1))) {
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
std::tuple<Tensor, Tensor, Tensor> _attn_backward(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  const Tensor grad_output = value(grad_output_), grad_attn = value(grad_attn_);
  const Tensor q = value(q_), k = value(k_), v = value(v_);
  Tensor grad_q, grad_k, grad_v;
  if ((output_mask[0] || output_mask[1]) &&
      (grad_output.defined() || grad_attn.defined())) {
    Tensor grad_scores = grad_attn;
    if (grad_output.defined()) {
      grad_scores = at::matmul(grad_output, v.mH());
      if (grad_attn.defined()) {
        grad_scores = grad_scores + grad_attn;
      }
    }
    grad_scores = grad_scores * ((1 - attn) * (1 + attn)).conj();
    if (output_mask[0]) {
      grad_q = at::matmul(grad_scores, k.conj());
    }
    if (output_mask[1]) {
      grad_k = at::matmul(grad_scores.mT(), q.conj());
    }
  }
  if (output_mask[2] && grad_output.defined()) {
    grad_v = at::matmul(attn.mH(), grad_output);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cpu(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  const Tensor grad_output = value(grad_output_), grad_attn = value(grad_attn_);
  const Tensor q = value(q_), k = value(k_), v = value(v_);
  check_attn_backward_inputs(
      grad_output, grad_attn, q, k, v, attn, output_mask);
  const bool any = grad_output.defined() || grad_attn.defined();
  int64_t columns = 0;
  for (const Tensor& t : {q.defined() ? q : k, grad_output}) {
    columns += t.defined() ? t.size(1) : 0;
  }
  if (!attn.is_complex() &&
      !is_fused(attn.scalar_type(), attn.size(0), columns)) {
    return _attn_backward(
        grad_output_, grad_attn_, q_, k_, v_, attn, output_mask);
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
    attn_backward_by_rows(
        grad_q, grad_k, grad_v, grad_output, grad_attn, q, k, v, attn);
  } else {
    attn_backward_stub(
        kCPU,
        grad_q,
        grad_k,
        grad_v,
        contiguous(grad_output),
        grad_attn,
        contiguous(q),
        contiguous(k),
        contiguous(v),
        attn.contiguous());
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native
