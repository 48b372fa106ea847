// attn(q, k, v): attn = tanh(q @ k.T) and output = attn @ v, composed of
// differentiable operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/attn_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#endif

#include <tuple>

namespace at::native {

namespace {

void check_matrix(const Tensor& t, const char* name) {
  TORCH_CHECK(
      t.dim() == 2,
      "attn: expected ",
      name,
      " to be 2-D, but got a ",
      t.dim(),
      "-D tensor of size ",
      t.sym_sizes());
}

// The dtypes for which torch.attn is defined.
bool is_supported(ScalarType dtype) {
  return dtype == kHalf || dtype == kBFloat16 || dtype == kFloat ||
      dtype == kDouble || dtype == kComplexFloat || dtype == kComplexDouble;
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
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
      "attn: expected inputs of float16, bfloat16, float32, float64, complex64 "
      "or complex128, but got ",
      dtype);
  // Two checks, so that symbolic sizes learn two plain equalities.
  for (const Tensor& t : {k, v}) {
    TORCH_SYM_CHECK(
        q.sym_size(0).sym_eq(t.sym_size(0)),
        "attn: expected q, k and v to have the same number of rows, but got q ",
        q.sym_sizes(),
        ", k ",
        k.sym_sizes(),
        ", v ",
        v.sym_sizes());
  }
  TORCH_SYM_CHECK(
      q.sym_size(1).sym_eq(k.sym_size(1)),
      "attn: expected q and k to have the same number of columns, but got q ",
      q.sym_sizes(),
      ", k ",
      k.sym_sizes());
}

} // namespace

std::tuple<Tensor, Tensor> attn(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  check_inputs(q, k, v);
  Tensor attn = at::tanh(at::matmul(q, k.t()));
  Tensor output = at::matmul(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

} // namespace at::native
