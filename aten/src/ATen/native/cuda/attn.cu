// attn(q, k, v) and its backward on CUDA: the fused kernels where they fit,
// else cuBLAS products with what lies between them fused.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/Context.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/attn.h>
#include <ATen/native/cuda/AttnFused.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/_attn_backward_native.h>
#include <ATen/ops/attn_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#endif

#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnLaunch.cuh>
#endif

#include <algorithm>
#include <type_traits>

namespace at::native {

namespace {

// Calls f with the arithmetic whose fused kernels serve this dtype and these
// widths here; false if there is none.
template <typename F>
bool with_fused_kernels(
    ScalarType dtype,
    int64_t columns,
    bool grad_attn,
    const F& f) {
#if !defined(USE_ROCM)
  using namespace attn_tile;
  const auto try_with = [&](auto* arithmetic) {
    using A = std::remove_pointer_t<decltype(arithmetic)>;
    const bool fit = fits<A>(columns, grad_attn);
    if (fit) {
      f(arithmetic);
    }
    return fit;
  };
  const auto tf32_allowed = [] {
    return !NoTF32Guard::should_disable_tf32() &&
        globalContext().float32Precision(
            Float32Backend::CUDA, Float32Op::MATMUL) == Float32Precision::TF32;
  };
  switch (dtype) {
    case kHalf:
      return try_with(static_cast<HalfCores<c10::Half>*>(nullptr));
    case kBFloat16:
      return try_with(static_cast<HalfCores<c10::BFloat16>*>(nullptr));
    case kFloat:
      return tf32_allowed() ? try_with(static_cast<TF32Cores*>(nullptr))
                            : try_with(static_cast<FloatLanes*>(nullptr));
    case kDouble:
      return try_with(static_cast<DoubleCores*>(nullptr));
    default:
      return false;
  }
#else
  return false;
#endif
}

constexpr int kThreads = 256;

// x = (x + grad_attn) * conj(1 - attn^2), x being contiguous rows of the scores
template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) times_tanh_derivative(
    scalar_t* x,
    const scalar_t* attn,
    const scalar_t* grad_attn,
    int64_t row_stride,
    int64_t column_stride,
    int64_t columns,
    int64_t count) {
  using opmath_t = at::opmath_type<scalar_t>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < count;
       i += step) {
    opmath_t sum = x[i];
    if (grad_attn) {
      sum += static_cast<opmath_t>(
          grad_attn[i / columns * row_stride + i % columns * column_stride]);
    }
    const opmath_t a = attn[i];
    const opmath_t one(1);
    opmath_t derivative = (one - a) * (one + a);
    if constexpr (c10::is_complex<scalar_t>::value) {
      derivative = std::conj(derivative);
    }
    x[i] = static_cast<scalar_t>(sum * derivative);
  }
}

// The rows of X = (grad_attn + grad_output @ v^H) * conj(1 - attn^2) for these
// rows of grad_output, grad_attn and attn.
Tensor scores_gradient(
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& v,
    const Tensor& attn) {
  const Tensor x = grad_output.defined()
      ? at::mm(grad_output, v.mH())
      : at::zeros(attn.sizes(), attn.options());
  if (x.numel() == 0) {
    return x;
  }
  const auto blocks =
      std::min<int64_t>(at::ceil_div<int64_t>(x.numel(), kThreads), 1 << 16);
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
      kHalf, kBFloat16, attn.scalar_type(), "attn_backward_cuda", [&] {
        times_tanh_derivative<scalar_t>
            <<<static_cast<unsigned>(blocks),
               kThreads,
               0,
               c10::cuda::getCurrentCUDAStream()>>>(
                x.mutable_data_ptr<scalar_t>(),
                attn.const_data_ptr<scalar_t>(),
                grad_attn.defined() ? grad_attn.const_data_ptr<scalar_t>()
                                    : nullptr,
                grad_attn.defined() ? grad_attn.stride(0) : 0,
                grad_attn.defined() ? grad_attn.stride(1) : 0,
                x.size(1),
                x.numel());
        C10_CUDA_KERNEL_LAUNCH_CHECK();
      });
  return x;
}

// grad_q and grad_k from cuBLAS products over blocks of rows, an eighth of them
// at a time: no N x N tensor is made, and a half gradient of k is summed in
// float32.
void backward_by_products(
    const Tensor& grad_q,
    const Tensor& grad_k,
    const Tensor& grad_output,
    const Tensor& grad_attn,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& attn) {
  const int64_t n = attn.size(0);
  Tensor sum;
  if (grad_k.defined()) {
    sum = at::zeros(
        grad_k.sizes(),
        grad_k.options().dtype(at::toOpMathType(grad_k.scalar_type())));
  }
  const int64_t rows = std::max<int64_t>(at::ceil_div<int64_t>(n, 8), 512);
  const auto part = [&](const Tensor& t, int64_t row) {
    return t.defined() ? t.narrow(0, row, std::min<int64_t>(rows, n - row)) : t;
  };
  for (int64_t row = 0; row < n; row += rows) {
    const Tensor x = scores_gradient(
        part(grad_output, row), part(grad_attn, row), v, part(attn, row));
    if (grad_q.defined()) {
      part(grad_q, row).copy_(at::mm(x, k.conj()));
    }
    if (grad_k.defined()) {
      sum.add_(at::mm(x.t(), part(q, row).conj()));
    }
  }
  if (grad_k.defined()) {
    grad_k.copy_(sum);
  }
}

Tensor value(const std::optional<Tensor>& t) {
  return t.value_or(Tensor());
}

} // namespace

std::tuple<Tensor, Tensor>
attn_cuda(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_attn_inputs(q, k, v);
  const int64_t n = q.size(0), d = q.size(1), e = v.size(1);
  if (n > 0 && d > 0 && e > 0) {
    Tensor output, attn;
    const bool fused = with_fused_kernels(
        q.scalar_type(), std::max<int64_t>(d, e), false, [&](auto* arithmetic) {
          using A = std::remove_pointer_t<decltype(arithmetic)>;
          attn = at::empty({n, n}, q.options());
          output = at::empty({n, e}, q.options());
          attn_tile::fused_forward<A>(output, attn, q, k, v);
        });
    if (fused) {
      return std::make_tuple(std::move(output), std::move(attn));
    }
  }
  Tensor attn = at::mm(q, k.t()).tanh_();
  Tensor output = at::mm(attn, v);
  return std::make_tuple(std::move(output), std::move(attn));
}

std::tuple<Tensor, Tensor, Tensor> _attn_backward_cuda(
    const std::optional<Tensor>& grad_output_,
    const std::optional<Tensor>& grad_attn_,
    const std::optional<Tensor>& q_,
    const std::optional<Tensor>& k_,
    const std::optional<Tensor>& v_,
    const Tensor& attn_,
    std::array<bool, 3> output_mask) {
  // The dispatcher's own guard is that of grad_output, which can be missing.
  const c10::DeviceGuard guard(attn_.device());
  const Tensor grad_output = value(grad_output_), grad_attn = value(grad_attn_);
  const Tensor q = value(q_), k = value(k_), v = value(v_);
  check_attn_backward_inputs(
      grad_output, grad_attn, q, k, v, attn_, output_mask);
  const Tensor attn = attn_.contiguous();
  const bool any = grad_output.defined() || grad_attn.defined();
  const bool want_q = output_mask[0] && any, want_k = output_mask[1] && any;
  const bool want_v = output_mask[2] && grad_output.defined();
  const auto like = [](const Tensor& t) {
    return at::empty(t.sizes(), t.options());
  };
  Tensor grad_q, grad_k, grad_v;
  if (want_q) {
    grad_q = like(k);
  }
  if (want_k) {
    grad_k = like(q);
  }
  if (want_q || want_k) {
    int64_t least = attn.size(0), most = 0;
    for (const Tensor& t : {grad_q, grad_k, grad_output}) {
      if (t.defined()) {
        least = std::min<int64_t>(least, t.size(1));
        most = std::max<int64_t>(most, t.size(1));
      }
    }
    const bool fused =
        least > 0 &&
        with_fused_kernels(
            attn.scalar_type(),
            most,
            grad_attn.defined(),
            [&](auto* arithmetic) {
              using A = std::remove_pointer_t<decltype(arithmetic)>;
              if (want_q) {
                attn_tile::fused_backward_q<A>(
                    grad_q, grad_output, grad_attn, k, v, attn);
              }
              if (want_k) {
                if (want_v) {
                  grad_v = like(grad_output);
                }
                attn_tile::fused_backward_kv<A>(
                    grad_k, grad_v, grad_output, grad_attn, q, v, attn);
              }
            });
    if (!fused) {
      backward_by_products(
          grad_q, grad_k, grad_output, grad_attn, q, k, v, attn);
    }
  }
  if (want_v && !grad_v.defined()) {
    grad_v = at::mm(attn.mH(), grad_output);
  }
  return std::make_tuple(
      std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

} // namespace at::native
