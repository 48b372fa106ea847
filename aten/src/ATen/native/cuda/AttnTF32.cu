// attn's fused kernels in float32 on tensor cores, rounded to TensorFloat-32.
#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#if !defined(USE_ROCM)
#include <ATen/native/cuda/AttnLaunch.cuh>

INSTANTIATE_ATTN(TF32Cores)

#endif // !USE_ROCM
