// attn(q, k, v): attn = tanh(q @ k.T) and output = attn @ v, and its backward:
// the checks, and both composed of ATen's operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <ATen/TensorOperators.h>
#include <ATen/native/attn.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/attn_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh_backward.h>
#endif

#include <sstream>
#include <tuple>

namespace at::native {

namespace {

struct Operand {
  const char* name;
  Tensor tensor;
};

using Operands = SmallVector<Operand, 6>;

// "q, k and v"
std::string names(const Operands& operands) {
  std::string text;
  for (const auto i : c10::irange(operands.size())) {
    const bool last = i + 1 == operands.size();
    text += i == 0 ? "" : last ? " and " : ", ";
    text += operands[i].name;
  }
  return text;
}

// "q Half, k Float, v Float"
template <typename Show>
std::string values(const Operands& operands, const Show& show) {
  std::ostringstream text;
  for (const auto& [name, tensor] : operands) {
    text << (name == operands[0].name ? "" : ", ") << name << ' '
         << show(tensor);
  }
  return text.str();
}

SymIntArrayRef sizes(const Tensor& t) {
  return t.sym_sizes();
}

// Compares pair by pair, so that symbolic sizes learn plain equalities.
template <typename Same, typename Show>
void check_same(
    const char* op,
    const char* what,
    const Operands& operands,
    const Same& same,
    const Show& show) {
  for (const auto& [_, tensor] : operands) {
    TORCH_SYM_CHECK(
        same(operands[0].tensor, tensor),
        op,
        ": expected ",
        names(operands),
        " to ",
        what,
        ", but got ",
        values(operands, show));
  }
}

void check_same_columns(
    const char* op,
    const Operand& first,
    const Operand& second) {
  if (first.tensor.defined() && second.tensor.defined()) {
    check_same(
        op,
        "have the same number of columns",
        {first, second},
        [](const Tensor& a, const Tensor& b) {
          return a.sym_size(1).sym_eq(b.sym_size(1));
        },
        sizes);
  }
}

// The dtypes that torch.attn supports.
bool is_supported(ScalarType dtype) {
  return dtype == kHalf || dtype == kBFloat16 || dtype == kFloat ||
      dtype == kDouble || dtype == kComplexFloat || dtype == kComplexDouble;
}

// The checks that attn and its backward share. Undefined tensors are skipped.
void check_operands(
    const char* op,
    std::initializer_list<Operand> all_operands) {
  Operands operands;
  for (const auto& operand : all_operands) {
    if (operand.tensor.defined()) {
      operands.push_back(operand);
    }
  }
  for (const auto& [name, tensor] : operands) {
    TORCH_CHECK(
        tensor.dim() == 2,
        op,
        ": expected ",
        name,
        " to be 2-D, but got a ",
        tensor.dim(),
        "-D tensor of size ",
        sizes(tensor));
  }
  check_same(
      op,
      "be on the same device",
      operands,
      [](const Tensor& a, const Tensor& b) {
        return SymBool(a.device() == b.device());
      },
      [](const Tensor& t) { return t.device(); });
  check_same(
      op,
      "have the same dtype",
      operands,
      [](const Tensor& a, const Tensor& b) {
        return SymBool(a.scalar_type() == b.scalar_type());
      },
      [](const Tensor& t) { return t.scalar_type(); });
  const auto dtype = operands[0].tensor.scalar_type();
  TORCH_CHECK(
      is_supported(dtype),
      op,
      ": expected inputs of float16, bfloat16, float32, float64, complex64 or "
      "complex128, but got ",
      dtype);
  check_same(
      op,
      "have the same number of rows",
      operands,
      [](const Tensor& a, const Tensor& b) {
        return a.sym_size(0).sym_eq(b.sym_size(0));
      },
      sizes);
}

// The gradient of q @ k.T. tanh_backward conjugates the derivative itself; a
// lazy conjugate might reach `*` unresolved. grad_attn comes first, because
// `add` multiplies its second argument by 1, which makes a complex infinity
// NaN.
Tensor scores_gradient(const AttnBackward& args, bool in_place) {
  if (!args.grad_output.defined()) {
    return at::tanh_backward(args.grad_attn, args.attn);
  }
  Tensor grad = at::matmul(args.grad_output, args.v.mH());
  if (!in_place) {
    grad = args.grad_attn.defined() ? args.grad_attn + grad : grad;
    return at::tanh_backward(grad, args.attn);
  }
  if (args.grad_attn.defined()) {
    at::add_out(grad, args.grad_attn, grad);
  }
  return at::tanh_backward_out(grad, grad, args.attn);
}

} // namespace

Tensor attn_resolved(const std::optional<Tensor>& t) {
  if (!t || !t->defined()) {
    return Tensor();
  }
  return t->is_conj() || t->is_neg() ? t->resolve_conj().resolve_neg() : *t;
}

void check_attn_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_operands("attn", {{"q", q}, {"k", k}, {"v", v}});
  check_same_columns("attn", {"q", q}, {"k", k});
}

bool AttnBackward::wants_scores_gradient() const {
  return (output_mask[0] || output_mask[1]) &&
      (grad_output.defined() || grad_attn.defined());
}

void AttnBackward::check() const {
  constexpr const char* op = "_attn_backward";
  const auto check_needed = [&](const char* name,
                                const Tensor& t,
                                const char* gradient,
                                bool needed) {
    TORCH_CHECK(
        t.defined() || !needed,
        op,
        ": expected ",
        name,
        ", which ",
        gradient,
        " needs, but got None");
  };
  const bool scores = wants_scores_gradient();
  const bool output = grad_output.defined();
  check_needed("q", q, "grad_k", output_mask[1] && scores);
  check_needed("k", k, "grad_q", output_mask[0] && scores);
  check_needed("v", v, "grad_q", output_mask[0] && output);
  check_needed("v", v, "grad_k", output_mask[1] && output);
  check_operands(
      op,
      {{"grad_output", grad_output},
       {"grad_attn", grad_attn},
       {"q", q},
       {"k", k},
       {"v", v},
       {"attn", attn}});
  check_same_columns(op, {"q", q}, {"k", k});
  check_same_columns(op, {"grad_output", grad_output}, {"v", v});
  for (const auto& [name, tensor] :
       {Operand{"grad_attn", grad_attn}, Operand{"attn", attn}}) {
    if (tensor.defined()) {
      TORCH_SYM_CHECK(
          tensor.sym_size(0).sym_eq(tensor.sym_size(1)),
          op,
          ": expected ",
          name,
          " to be square, but got size ",
          sizes(tensor));
    }
  }
}

AttnBackward attn_backward_operands(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const std::optional<Tensor>& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask) {
  AttnBackward args{
      attn_resolved(grad_output),
      attn_resolved(grad_attn),
      attn_resolved(q),
      attn_resolved(k),
      attn_resolved(v),
      attn_resolved(attn),
      output_mask};
  args.check();
  return args;
}

std::tuple<Tensor, Tensor> attn_composed(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor attn = at::mm(q, k.t()).tanh_();
  Tensor output = at::mm(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const AttnBackward& args,
    bool in_place) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor grad_q, grad_k, grad_v;
  if (args.wants_scores_gradient()) {
    const Tensor grad = scores_gradient(args, in_place);
    if (args.output_mask[0]) {
      grad_q = at::matmul(grad, args.k.conj());
    }
    if (args.output_mask[1]) {
      grad_k = at::matmul(grad.mT(), args.q.conj());
    }
  }
  if (args.output_mask[2] && args.grad_output.defined()) {
    grad_v = at::matmul(args.attn.mH(), args.grad_output);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

// For every backend without kernels of its own.
std::tuple<Tensor, Tensor> attn(
    const Tensor& q_,
    const Tensor& k_,
    const Tensor& v_) {
  const Tensor q = attn_resolved(q_), k = attn_resolved(k_),
               v = attn_resolved(v_);
  check_attn_inputs(q, k, v);
  return attn_composed(q, k, v);
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const std::optional<Tensor>& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  return attn_backward_composed(attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask));
}

} // namespace at::native
