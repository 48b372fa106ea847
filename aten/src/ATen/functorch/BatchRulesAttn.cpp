// attn and its backward under vmap: the operators again, with one leading
// dimension more, or with more rows of q where k and v are shared.
#include <ATen/EmptyTensor.h>
#include <ATen/functorch/BatchRulesHelper.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/attn.h>

#include <ATen/ops/_attn_backward.h>
#include <ATen/ops/attn.h>

namespace at::functorch {

namespace {

using Bdim = std::optional<int64_t>;

using Operand = std::pair<std::optional<Tensor>, Bdim>;

// Has the sizes of an operand as the function under vmap sees them, so that the
// operator's checks speak of these. Their dtypes autocast may still change.
Tensor sample(const Operand& operand) {
  const auto& [t, bdim] = operand;
  if (!t || !t->defined()) {
    return {};
  }
  auto sizes = t->sym_sizes().vec();
  if (bdim) {
    sizes.erase(sizes.begin() + *bdim);
  }
  // Without the dispatcher, no graph and no mode records this tensor.
  return Tensor(at::detail::empty_symint_meta(
      sizes, kFloat, kStrided, kMeta, false, std::nullopt));
}

// The operands with the batch in front, which those without one get too. They
// are views, which autocast's cache does not keep: it outlives the transforms.
template <size_t count>
std::array<Tensor, count> in_front(const std::array<Operand, count>& operands) {
  c10::SymInt size;
  for (const auto& [t, bdim] : operands) {
    size = bdim ? t->sym_size(*bdim) : size;
  }
  std::array<Tensor, count> tensors;
  for (const auto i : c10::irange(count)) {
    const auto& [t, bdim] = operands[i];
    if (t && t->defined()) {
      tensors[i] = ensure_has_bdim(
          moveBatchDimToFront(t->alias(), bdim), bdim.has_value(), size);
    }
  }
  return tensors;
}

std::tuple<Tensor, Bdim, Tensor, Bdim> attn_batch_rule(
    const Tensor& q_,
    Bdim q_bdim,
    const Tensor& k_,
    Bdim k_bdim,
    const Tensor& v_,
    Bdim v_bdim) {
  const std::array<Operand, 3> operands = {
      {{q_, q_bdim}, {k_, k_bdim}, {v_, v_bdim}}};
  at::native::check_attn_inputs(
      sample(operands[0]), sample(operands[1]), sample(operands[2]));
  if (!q_bdim && !k_bdim) {
    // v's columns are those of all samples, of which attn has none.
    const int64_t columns = v_.dim() - 2;
    const Tensor v = v_.movedim(*v_bdim, columns);
    auto [output, attn] = at::attn(q_.alias(), k_.alias(), v.flatten(columns));
    return std::make_tuple(
        output.unflatten_symint(
            columns, {v.sym_size(columns), v.sym_size(columns + 1)}),
        columns,
        std::move(attn),
        std::nullopt);
  }
  const auto [q, k, v] = in_front(operands);
  if (k_bdim || v_bdim) {
    auto [output, attn] = at::attn(q, k, v);
    return std::make_tuple(std::move(output), 0, std::move(attn), 0);
  }
  // One matrix has all rows of q, and its backward sums grad_k and grad_v.
  const int64_t rows = q.dim() - 3;
  const auto batch = q.sym_size(0), m = q.sym_size(-2);
  const Tensor moved = q.movedim(0, rows);
  auto [output, attn] =
      at::attn(moved.flatten(rows, rows + 1), k_.alias(), v_.alias());
  // Rows that lie apart were copied: the order of a sample's strides is lost.
  auto sizes = moved.sym_sizes().vec();
  sizes[rows] = 1;
  const Tensor like =
      at::detail::empty_strided_symint_meta(sizes, moved.sym_strides(), kFloat);
  return std::make_tuple(
      at::native::attn_laid_out_like(
          like, output.unflatten_symint(rows, {batch, m})),
      rows,
      attn.unflatten_symint(rows, {batch, m}),
      rows);
}

std::tuple<Tensor, Bdim, Tensor, Bdim, Tensor, Bdim> attn_backward_batch_rule(
    const std::optional<Tensor>& grad_output_,
    Bdim grad_output_bdim,
    const std::optional<Tensor>& grad_attn_,
    Bdim grad_attn_bdim,
    const std::optional<Tensor>& q_,
    Bdim q_bdim,
    const std::optional<Tensor>& k_,
    Bdim k_bdim,
    const Tensor& v_,
    Bdim v_bdim,
    const Tensor& attn_,
    Bdim attn_bdim,
    std::array<bool, 3> output_mask) {
  const std::array<Operand, 6> operands = {
      {{grad_output_, grad_output_bdim},
       {grad_attn_, grad_attn_bdim},
       {q_, q_bdim},
       {k_, k_bdim},
       {v_, v_bdim},
       {attn_, attn_bdim}}};
  at::native::AttnBackwardArgs{
      sample(operands[0]),
      sample(operands[1]),
      sample(operands[2]),
      sample(operands[3]),
      sample(operands[4]),
      sample(operands[5]),
      output_mask}
      .check();
  const auto [grad_output, grad_attn, q, k, v, attn] = in_front(operands);
  auto [grad_q, grad_k, grad_v] =
      at::_attn_backward(grad_output, grad_attn, q, k, v, attn, output_mask);
  const auto bdim = [](const Tensor& t) {
    return t.defined() ? Bdim(0) : std::nullopt;
  };
  return std::make_tuple(
      grad_q, bdim(grad_q), grad_k, bdim(grad_k), grad_v, bdim(grad_v));
}

} // namespace

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  VMAP_SUPPORT(attn, attn_batch_rule);
  VMAP_SUPPORT(_attn_backward, attn_backward_batch_rule);
}

} // namespace at::functorch
