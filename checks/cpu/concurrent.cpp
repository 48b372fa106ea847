// Calls attn inside of at::parallel_for, where its own parallel loops must run
// in one thread, and prints the largest error.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const auto q = torch::randn({200, 16}), v = torch::randn({200, 8});
  const auto expected = torch::matmul(torch::tanh(torch::matmul(q, q.t())), v);
  std::vector<torch::Tensor> outputs(64);
  at::parallel_for(0, 64, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      outputs[i] = std::get<0>(at::attn(q, q, v));
    }
  });
  double error = 0;
  for (const auto& output : outputs) {
    error = std::max(error, (output - expected).abs().max().item<double>());
  }
  std::cout << "largest error " << error << '\n';
  return error < 1e-4 ? 0 : 1;
}
