// attn(q, k, v): attn = tanh(q @ k.mT) and output = attn @ v, and its backward:
// the checks, and both composed of ATen's operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

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
#include <ATen/ops/empty_permuted.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh_backward.h>
#endif

#include <algorithm>
#include <iterator>
#include <sstream>
#include <tuple>

namespace at::native {

namespace {

// shape has the letters of the last two sizes: q is {"q", "MD", q}.
struct Operand {
  const char* name;
  const char* shape;
  const Tensor& tensor;

  bool has(char size) const {
    return shape[0] == size || shape[1] == size;
  }
  c10::SymInt size(char size) const {
    return tensor.sym_size(shape[0] == size ? -2 : -1);
  }
};

using Operands = SmallVector<const Operand*, 6>;

// "q, k and v"
std::string names(const Operands& operands) {
  std::string text;
  for (const auto i : c10::irange(operands.size())) {
    const bool last = i + 1 == operands.size();
    text += i == 0 ? "" : last ? " and " : ", ";
    text += operands[i]->name;
  }
  return text;
}

// "q Half, k Float, v Float"
template <typename Show>
std::string values(const Operands& operands, const Show& show) {
  std::ostringstream text;
  for (const Operand* x : operands) {
    text << (x == operands[0] ? "" : ", ") << x->name << ' ' << show(*x);
  }
  return text.str();
}

// "(*, M, D) = [2, 3]"
std::string sizes(const Operand& x) {
  return c10::str(
      "(*, ", x.shape[0], ", ", x.shape[1], ") = ", x.tensor.sym_sizes());
}

// Compares pair by pair, so that symbolic sizes learn plain equalities.
template <typename What, typename Same, typename Show>
void check_same(
    const char* op,
    const What& what,
    const Operands& operands,
    const Same& same,
    const Show& show) {
  for (const Operand* x : operands) {
    TORCH_SYM_CHECK(
        same(*operands[0], *x),
        op,
        ": expected ",
        names(operands),
        " to have the same ",
        what,
        ", but got ",
        values(operands, show));
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
  for (const Operand& x : all_operands) {
    if (x.tensor.defined()) {
      operands.push_back(&x);
      TORCH_CHECK(
          x.tensor.dim() >= 2,
          op,
          ": expected ",
          x.name,
          " to have at least two dimensions, but got ",
          x.name,
          ' ',
          sizes(x));
    }
  }
  check_same(
      op,
      "device",
      operands,
      [](const Operand& a, const Operand& b) {
        return SymBool(a.tensor.device() == b.tensor.device());
      },
      [](const Operand& x) { return x.tensor.device(); });
  check_same(
      op,
      "dtype",
      operands,
      [](const Operand& a, const Operand& b) {
        return SymBool(a.tensor.scalar_type() == b.tensor.scalar_type());
      },
      [](const Operand& x) { return x.tensor.scalar_type(); });
  const Tensor& first = operands[0]->tensor;
  TORCH_CHECK(
      is_supported(first.scalar_type()),
      op,
      ": expected inputs of float16, bfloat16, float32, float64, complex64 or "
      "complex128, but got ",
      first.scalar_type());
  const auto check_leading = [&](const auto& same) {
    check_same(op, "leading dimensions", operands, same, sizes);
  };
  check_leading([](const Operand& a, const Operand& b) {
    return SymBool(a.tensor.dim() == b.tensor.dim());
  });
  for (const auto i : c10::irange(first.dim() - 2)) {
    check_leading([&](const Operand& a, const Operand& b) {
      return a.tensor.sym_size(i).sym_eq(b.tensor.sym_size(i));
    });
  }
  for (const char size : {'M', 'N', 'D', 'E'}) {
    Operands with;
    std::copy_if(
        operands.begin(),
        operands.end(),
        std::back_inserter(with),
        [&](const Operand* x) { return x->has(size); });
    check_same(
        op,
        size,
        with,
        [&](const Operand& a, const Operand& b) {
          return a.size(size).sym_eq(b.size(size));
        },
        sizes);
  }
}

// The dimensions of x from the outermost to the innermost in memory, as results
// laid out like x have them: the last dimension last, the others in the order
// of their strides, where expanded ones come first, and one of size 1 stands
// before its successor, whatever its stride is.
DimVector order_in_memory(const Tensor& x) {
  const auto sizes = x.sym_sizes(), strides = x.sym_strides();
  const auto holds = [](const SymBool& condition) {
    return condition.has_hint() && condition.guard_bool(__FILE__, __LINE__);
  };
  const auto is_outside = [&](int64_t a, int64_t b) {
    if (holds(strides[b].sym_eq(0))) {
      return false;
    }
    if (holds(strides[a].sym_eq(0))) {
      return true;
    }
    const SymBool larger = strides[a].sym_gt(strides[b]);
    if (!larger.has_hint()) { // Data decide, but no multiple is smaller.
      if (holds((strides[a] % strides[b]).sym_eq(0))) {
        return true;
      }
      if (holds((strides[b] % strides[a]).sym_eq(0))) {
        return false;
      }
    }
    return larger.guard_bool(__FILE__, __LINE__);
  };
  const int64_t last = x.dim() - 1;
  DimVector order, ones;
  for (const auto i : c10::irange(last)) {
    if (holds(sizes[i].sym_eq(1))) {
      ones.push_back(i);
      continue;
    }
    auto place = order.end();
    while (place != order.begin() && is_outside(i, *(place - 1))) {
      --place;
    }
    order.insert(place, i);
  }
  order.push_back(last);
  for (auto i = ones.rbegin(); i != ones.rend(); ++i) {
    order.insert(std::find(order.begin(), order.end(), *i + 1), *i);
  }
  return order;
}

// at::matmul without the operator that it adds to a single matrix product.
Tensor product(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 ? at::mm(a, b) : at::matmul(a, b);
}

// The gradient of q @ k.mT. tanh_backward conjugates the derivative itself; a
// lazy conjugate might reach `*` unresolved. grad_attn comes first, because
// `add` multiplies its second argument by 1, which makes a complex infinity
// NaN.
Tensor scores_gradient(const AttnBackwardArgs& args) {
  if (!args.grad_output.defined()) {
    return at::tanh_backward(args.grad_attn, args.attn);
  }
  Tensor grad = product(args.grad_output, args.v.mH());
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

Tensor attn_empty_like(const Tensor& like, int64_t columns) {
  DimVector sizes(like.sizes());
  sizes.back() = columns;
  return at::empty_permuted(sizes, order_in_memory(like), like.options());
}

Tensor attn_laid_out_like(const Tensor& like, const Tensor& x) {
  if (like.layout() != kStrided || x.layout() != kStrided) {
    return x;
  }
  const DimVector order = order_in_memory(like);
  if (std::is_sorted(order.begin(), order.end())) {
    return x; // products are contiguous
  }
  DimVector inverse(order.size());
  for (const auto i : c10::irange(order.size())) {
    inverse[order[i]] = i;
  }
  return x.permute(order).clone(at::MemoryFormat::Contiguous).permute(inverse);
}

void check_attn_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_operands("attn", {{"q", "MD", q}, {"k", "ND", k}, {"v", "NE", v}});
}

bool AttnBackwardArgs::wants_scores_gradient() const {
  return (output_mask[0] || output_mask[1]) &&
      (grad_output.defined() || grad_attn.defined());
}

void AttnBackwardArgs::check() const {
  constexpr const char* op = "_attn_backward";
  TORCH_CHECK(
      (q.defined() && k.defined()) || !wants_scores_gradient(),
      op,
      ": expected q and k, which grad_q and grad_k need, but got None for ",
      q.defined() ? "k" : "q");
  check_operands(
      op,
      {{"grad_output", "ME", grad_output},
       {"grad_attn", "MN", grad_attn},
       {"q", "MD", q},
       {"k", "ND", k},
       {"v", "NE", v},
       {"attn", "MN", attn}});
}

AttnBackwardArgs attn_backward_operands(
    const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_attn,
    const std::optional<Tensor>& q,
    const std::optional<Tensor>& k,
    const Tensor& v,
    const Tensor& attn,
    const std::array<bool, 3>& output_mask) {
  AttnBackwardArgs args{
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
  Tensor attn = product(q, k.mT()).tanh_();
  Tensor output = attn_laid_out_like(q, product(attn, v));
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> attn_backward_composed(
    const AttnBackwardArgs& args) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor grad_q, grad_k, grad_v;
  if (args.wants_scores_gradient()) {
    const Tensor grad = scores_gradient(args);
    if (args.output_mask[0]) {
      grad_q = attn_laid_out_like(args.q, product(grad, args.k.conj()));
    }
    if (args.output_mask[1]) {
      grad_k = attn_laid_out_like(args.k, product(grad.mT(), args.q.conj()));
    }
  }
  if (args.output_mask[2] && args.grad_output.defined()) {
    grad_v =
        attn_laid_out_like(args.v, product(args.attn.mH(), args.grad_output));
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
    const Tensor& v,
    const Tensor& attn,
    std::array<bool, 3> output_mask) {
  return attn_backward_composed(attn_backward_operands(
      grad_output, grad_attn, q, k, v, attn, output_mask));
}

} // namespace at::native
