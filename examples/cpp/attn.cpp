// Calls at::attn from C++ and compares its gradients with those of composition.
#include <torch/torch.h>

#include <iostream>

namespace {

using Gradients = torch::autograd::variable_list;

// The gradients of sum(output) + sum(attn^2), so that both outputs count.
Gradients gradients(
    const torch::Tensor& output,
    const torch::Tensor& attn,
    const Gradients& inputs) {
  return torch::autograd::grad({output.sum() + attn.square().sum()}, inputs);
}

} // namespace

int main() {
  torch::manual_seed(0);
  const auto options = torch::dtype(torch::kDouble).requires_grad(true);
  const Gradients inputs = {
      torch::rand({64, 8}, options),
      torch::rand({64, 8}, options),
      torch::rand({64, 4}, options)};
  const auto& q = inputs[0];
  const auto& k = inputs[1];
  const auto& v = inputs[2];

  const auto [output, attn] = at::attn(q, k, v);
  const auto scores = torch::tanh(torch::matmul(q, k.t()));
  const auto ours = gradients(output, attn, inputs);
  const auto theirs = gradients(torch::matmul(scores, v), scores, inputs);

  double error = (attn - scores).abs().max().item<double>();
  for (size_t i = 0; i < inputs.size(); ++i) {
    error = std::max(error, (ours[i] - theirs[i]).abs().max().item<double>());
  }
  std::cout << "output " << output.sizes() << ", attn " << attn.sizes()
            << ", backward by " << attn.grad_fn()->name() << '\n'
            << "largest difference from the composition: " << error << '\n';
  return error < 1e-10 ? 0 : 1;
}
