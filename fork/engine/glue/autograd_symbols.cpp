// What the generated VariableType code calls and libtorch_cpu keeps hidden.
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

namespace torch::autograd::VariableType {

const at::Tensor& unpack(const at::Tensor& t, const char* name, int pos) {
  TORCH_CHECK(
      t.defined(),
      "expected a tensor for argument '",
      name,
      "' (position ",
      pos + 1,
      "), but got none");
  return t;
}

at::Tensor& unpack(at::Tensor& t, const char* name, int pos) {
  unpack(static_cast<const at::Tensor&>(t), name, pos);
  return t;
}

at::Tensor unpack_opt(const at::Tensor& t, const char* name, int pos) {
  return t.defined() ? unpack(t, name, pos) : at::Tensor();
}

std::vector<at::Tensor> unpack(
    const at::ITensorListRef& tl,
    const char* name,
    int pos) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& t : tl) {
    tensors.push_back(unpack(t, name, pos));
  }
  return tensors;
}

} // namespace torch::autograd::VariableType
