// attn(q, k, v): attn = tanh(q @ k.mT) and output = attn @ v, composed of
// differentiable operators.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>

#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/attn_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
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

void check_operands(
    const char* op,
    std::initializer_list<Operand> all_operands) {
  Operands operands;
  for (const Operand& x : all_operands) {
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

// x with its dimensions in memory in the order of like's.
Tensor laid_out_like(const Tensor& like, const Tensor& x) {
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

} // namespace

std::tuple<Tensor, Tensor> attn(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  check_operands("attn", {{"q", "MD", q}, {"k", "ND", k}, {"v", "NE", v}});
  Tensor attn = at::tanh(at::matmul(q, k.mT()));
  Tensor output = laid_out_like(q, at::matmul(attn, v));
  return std::make_tuple(std::move(output), std::move(attn));
}

} // namespace at::native
